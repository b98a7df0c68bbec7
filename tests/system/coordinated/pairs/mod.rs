//! Tests every pair of job options, each on a separate task type, all concurrently, on two brokers. Workers fail, are too slow,
//! and vanish. Each job must end once, as expected, and leave no rows behind.

mod cases;
mod workers;

use std::{collections::HashMap, sync::Arc, time::Duration};

use cases::{Case, JobOption, PARENT, ROLE};
use howdah_core::config::Config;
use howdah_proto::v1::{EnqueueOutcome, EnqueuedJob, NewJob, UpdateTaskTypeRequest};
use tonic::Code;

use crate::support::*;

/// Number of jobs per request.
const CHUNK: usize = 200;

#[tokio::test]
async fn two_contradicting_options_are_refused_with_the_name_of_the_field() {
    let broker = TestBroker::start().await;
    let cases = cases::all();
    let refused: Vec<(&Case, &str)> = cases.iter().filter_map(|case| Some((case, case.refused()?))).collect();
    assert!(refused.len() > 50, "{}", refused.len());
    for (case, field) in refused {
        let mut job = case.job();
        if case.has(JobOption::After) {
            job.after = vec![1];
        }
        // The broker refuses the whole request, with the index of the wrong job.
        broker.enqueue_all([new_job("fine", ""), job]).refused().await.names(&format!("jobs[1].{field}"));
    }
    assert_eq!(broker.count("SELECT count(*) FROM howdah.job").await, 0);
}

#[tokio::test]
async fn every_pair_of_options_works_together() {
    let database = database().await;
    // The grace time is so short that vanished workers cannot resume their leases.
    let short_grace = |config: &mut Config| config.session_grace = Duration::from_millis(100);
    let a = TestBroker::on_with(&database, short_grace).await;
    let cases = Arc::new(cases::all());
    set_types(&a, &cases).await;
    let b = TestBroker::on_with(&database, short_grace).await;
    let stored = store(&a, &cases).await;
    store_seconds(&b, &cases, &stored).await;
    let late = "SELECT NOT EXISTS (SELECT FROM howdah.expiry WHERE expire_at < now() + interval '1 minute')";
    until(&database, "the end of the jobs that had expired", late).await;

    let acked = workers::Acked::default();
    let (vanishing, others): (Vec<_>, Vec<_>) = runnable(&cases).partition(|case| case.has(JobOption::Vanishes));
    let names = |cases: Vec<&Case>| cases.iter().map(|case| case.task_type()).collect::<Vec<String>>();
    let shared = [cases::NEXT, cases::FALLBACK, PARENT].map(str::to_owned);
    let (vanishing, others) = (names(vanishing), [names(others), shared.to_vec()].concat());
    let mut tasks = tokio::task::JoinSet::new();
    for (broker, types) in [(&a, &vanishing), (&b, &vanishing), (&a, &others), (&b, &others)] {
        tasks.spawn(workers::work(broker.grpc.clone(), types.clone(), cases.clone(), acked.clone()));
    }
    let paused = "SELECT id FROM howdah.task_type WHERE paused";
    ended(&database, &format!("type_id NOT IN ({paused})")).await;
    let begun = format!("SELECT count(*) FROM howdah.job WHERE type_id IN ({paused}) AND attempt > 0");
    assert_eq!(database.count(&begun).await, 0, "jobs of a paused type have run");
    resume(&a, &cases).await;
    ended(&database, "true").await;
    tasks.abort_all();

    check_endings(&database, &cases, &stored).await;
    for ((id, task_type), times) in acked.lock().unwrap().iter() {
        assert_eq!(*times, 1, "acks of job {id} in {task_type}");
    }
    nothing_is_left(&database, &cases).await;
}

fn runnable(cases: &[Case]) -> impl Iterator<Item = &Case> {
    cases.iter().filter(|case| case.refused().is_none())
}

async fn set_types(broker: &TestBroker, cases: &[Case]) {
    let mut types = broker.task_types();
    for case in runnable(cases) {
        if let Some(settings) = case.settings() {
            let request =
                UpdateTaskTypeRequest { task_type: case.task_type(), settings: Some(settings), update_mask: None };
            types.update_task_type(request).await.expect("settings");
        }
    }
}

async fn resume(broker: &TestBroker, cases: &[Case]) {
    let mut types = broker.task_types();
    for case in runnable(cases).filter(|case| case.has(JobOption::Paused)) {
        let settings = howdah_proto::v1::TaskTypeSettings { paused: false, ..case.settings().unwrap() };
        let request =
            UpdateTaskTypeRequest { task_type: case.task_type(), settings: Some(settings), update_mask: None };
        types.update_task_type(request).await.expect("settings");
    }
}

fn parent(role: &str, name: &str) -> NewJob {
    new_job(PARENT, "").local_name(name).header(ROLE, role)
}

/// Enqueues the job of each case, and returns the ids by case number.
async fn store(broker: &TestBroker, cases: &[Case]) -> HashMap<usize, i64> {
    let parents = broker.enqueue_all([parent("parent", ""), parent("dying", "")]).await;
    let mut stored = HashMap::new();
    let (mut batch, mut numbers) = (Vec::new(), Vec::new());
    for case in runnable(cases) {
        let mut job = case.job();
        for (option, id) in [(JobOption::After, parents[0]), (JobOption::AfterDead, parents[1])] {
            if case.has(option) {
                job.after.push(id);
            }
        }
        let mut jobs = case.companions();
        if case.has(JobOption::AfterLocal) {
            let name = format!("parent of {}", case.number);
            jobs.push(parent("parent", &name));
            job = job.after_local(&[&name]);
        }
        if case.has(JobOption::RequestKey) {
            jobs.insert(0, job);
            stored.insert(case.number, twice(broker, jobs, case.number).await);
            continue;
        }
        numbers.extend(jobs.iter().map(|_| None).chain([Some(case.number)]));
        batch.extend(jobs);
        batch.push(job);
        if batch.len() >= CHUNK {
            record_ids(&mut stored, &numbers, &broker.enqueue_all(std::mem::take(&mut batch)).await);
            numbers.clear();
        }
    }
    record_ids(&mut stored, &numbers, &broker.enqueue_all(batch).await);
    stored
}

fn record_ids(stored: &mut HashMap<usize, i64>, numbers: &[Option<usize>], ids: &[i64]) {
    stored.extend(numbers.iter().zip(ids).filter_map(|(number, id)| Some(((*number)?, *id))));
}

/// Sends a request with a request key twice. Both must return the same ids.
async fn twice(broker: &TestBroker, jobs: Vec<NewJob>, number: usize) -> i64 {
    let key = format!("request {number}");
    let first = broker.enqueue_all(jobs.clone()).request_key(&key).outcomes().await;
    let again = broker.enqueue_all(jobs).request_key(&key).outcomes().await;
    let ids = |jobs: &[EnqueuedJob]| jobs.iter().map(|job| job.id).collect::<Vec<_>>();
    assert_eq!(ids(&first), ids(&again), "request {number}");
    assert!(again.iter().all(|job| job.outcome() == EnqueueOutcome::Repeated));
    first[0].id
}

/// Enqueues the second job of each case, which has the same key, at the other broker.
async fn store_seconds(broker: &TestBroker, cases: &[Case], stored: &HashMap<usize, i64>) {
    let (mut jobs, mut expected) = (Vec::new(), Vec::new());
    for case in runnable(cases) {
        match case.second() {
            Some((job, EnqueueOutcome::Unspecified)) => {
                let error = broker.enqueue(job).refused().await;
                assert_eq!(error.code, Code::AlreadyExists, "{case:?}: {error}");
            }
            Some((job, outcome)) => {
                jobs.push(job);
                expected.push((case, outcome));
            }
            None => {}
        }
    }
    let answers = broker.enqueue_all(jobs).outcomes().await;
    for (answer, (case, outcome)) in answers.iter().zip(expected) {
        assert_eq!((answer.id, answer.is_new, answer.outcome()), (stored[&case.number], false, outcome), "{case:?}");
    }
}

/// Waits until all jobs of these types have ended, and checks that no limit was exceeded until then.
async fn ended(database: &TestDatabase, types: &str) {
    let live = "(SELECT id, type_id FROM howdah.ready UNION ALL SELECT id, type_id FROM howdah.leased
        UNION ALL SELECT id, type_id FROM howdah.scheduled UNION ALL SELECT id, type_id FROM howdah.waiting) j";
    let exceeded = "SELECT count(*) FROM (
            SELECT type_id, count(*) FILTER (WHERE key IS NOT NULL) AS keyed, count(*) FILTER (WHERE running) AS running
            FROM (SELECT type_id, options ->> 'limit_key' AS key, false AS running FROM howdah.ready
                  UNION ALL SELECT type_id, options ->> 'limit_key', true FROM howdah.leased) h GROUP BY 1) n
        JOIN howdah.task_type t ON t.id = n.type_id WHERE keyed > t.key_max_running OR running > t.max_running";
    let is_over = format!("SELECT NOT EXISTS (SELECT FROM {live} WHERE {types}) OR ({exceeded}) > 0");
    until(database, "the end of all jobs", &is_over).await;
    assert_eq!(database.count(exceeded).await, 0, "a limit is exceeded");
}

/// Checks that each job has its expected final state, exactly once.
async fn check_endings(database: &TestDatabase, cases: &[Case], stored: &HashMap<usize, i64>) {
    let sql = "SELECT id, state, task_type, payload, result, failures IS NOT NULL AS failed FROM howdah.job";
    let rows = database.connect().await.query(sql, &[]).await.expect(sql);
    let mut found: HashMap<i64, Vec<cases::Ending>> = HashMap::new();
    for row in &rows {
        let result: Option<&[u8]> = row.get("result");
        let ending = cases::Ending {
            state: ["succeeded", "dead", "cancelled", "expired"]
                .into_iter()
                .find(|s| *s == row.get::<_, &str>("state"))
                .unwrap(),
            task_type: row.get("task_type"),
            payload: row.get("payload"),
            result: match result.unwrap_or_default() {
                b"" => "",
                b"done" => "done",
                other => panic!("{other:?}"),
            },
            failed: row.get("failed"),
        };
        found.entry(row.get("id")).or_default().push(ending);
    }
    let mut wrong = Vec::new();
    for case in runnable(cases) {
        let endings = found.remove(&stored[&case.number]).unwrap_or_default();
        if endings != Vec::from_iter(case.ending()) {
            wrong.push(format!("{case:?}: {endings:?}, not {:?}", case.ending()));
        }
    }
    assert!(wrong.is_empty(), "{} pairs:\n{}", wrong.len(), wrong.join("\n"));
    // `found` still has the jobs that are not the job of a case: dependencies and companions.
    let others = found.values().flatten();
    let (dead, fine): (Vec<_>, Vec<_>) = others.partition(|ending| ending.state == "dead");
    assert_eq!(dead.len(), 1, "{dead:?}");
    assert!(found.values().all(|endings| endings.len() == 1) && fine.iter().all(|ending| ending.state == "succeeded"));
}

async fn nothing_is_left(database: &TestDatabase, cases: &[Case]) {
    let before = database.count("SELECT count(*) FROM howdah.job").await;
    // Makes all expiry times pass. The jobs have ended, so brokers only delete the rows of the expiry times.
    until(
        database,
        "the changed expiry times",
        "WITH e AS (UPDATE howdah.expiry SET expire_at = expire_at - interval '1 day') SELECT true",
    )
    .await;
    until(database, "the check of expired jobs", "SELECT NOT EXISTS (SELECT FROM howdah.expiry)").await;
    let gates = "SELECT NOT EXISTS (SELECT FROM howdah.limit_state WHERE check_at IS NOT NULL)";
    until(database, "the last check of the limits", gates).await;
    let held = runnable(cases).filter(|case| case.has(JobOption::Hold)).count() as i64;
    let short = runnable(cases)
        .filter(|case| case.has(JobOption::Large) && case.ending().is_none() && !case.has(JobOption::HistoryNone));
    let short = short.count() as i64;
    for (name, sql, count) in [
        ("jobs", "SELECT count(*) FROM howdah.job", before),
        // Ignores dependencies of cancelled jobs that a retry would revive, because these dependencies are kept.
        (
            "dependencies",
            "SELECT count(*) FROM howdah.dependency d
             WHERE NOT EXISTS (SELECT FROM howdah.history h WHERE h.id = d.job_id AND h.options ? 'revive')",
            0,
        ),
        ("keys that are held on", "SELECT count(*) FROM howdah.job_key WHERE held_until > now()", held),
        ("keys", "SELECT count(*) FROM howdah.job_key", held),
        // If history keeps no row of a job, its payload stays until the day partition of the payload is dropped.
        (
            "payloads of no job",
            "SELECT count(*) FROM howdah.payload p WHERE NOT EXISTS (SELECT FROM howdah.job j WHERE j.id = p.id)",
            short,
        ),
        ("limited leases", "SELECT count(*) FROM howdah.leased", 0),
    ] {
        assert_eq!(database.count(sql).await, count, "{name}");
    }
}
