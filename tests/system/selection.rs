//! Tests the conditions that select jobs of a type: each condition in each command that accepts it, which also covers each
//! call.

use howdah_proto::v1::{
    self, BulkOperation, BulkSpec, BulkState, CancelJobsRequest, DependencyFailure, EndLeasesRequest, JobConditions,
    JobFilter, JobState, NewJob, SearchJobsRequest, StartBulkRequest,
};
use tonic::Code;

use crate::{access::Guarded, support::*};

/// Flags of a condition, a job that meets the condition, and a job that does not. Each job is given by its options and an
/// update of its row.
struct Case {
    flags: &'static str,
    wanted: (fn(NewJob) -> NewJob, &'static str),
    other: (fn(NewJob) -> NewJob, &'static str),
}

const PLAIN: fn(NewJob) -> NewJob = |job| job;
const OLD: &str = "created = now() - interval '2 days'";
const TRIED: &str = "attempt = 5";

const CASES: [Case; 7] = [
    Case { flags: "--older-than 1d", wanted: (PLAIN, OLD), other: (PLAIN, "") },
    Case { flags: "--newer-than 1d", wanted: (PLAIN, ""), other: (PLAIN, OLD) },
    Case { flags: "--tag red", wanted: (|job| job.tags(&["blue", "red"]), ""), other: (|job| job.tags(&["blue"]), "") },
    Case { flags: "--fair-key acme", wanted: (|job| job.fair_key("acme"), ""), other: (|job| job.fair_key("b"), "") },
    Case {
        flags: "--limit-key acme",
        wanted: (|job| job.limit_key("acme"), ""),
        other: (|job| job.limit_key("b"), ""),
    },
    Case { flags: "--attempts-at-least 3", wanted: (PLAIN, TRIED), other: (PLAIN, "") },
    Case { flags: "--attempts-at-most 3", wanted: (PLAIN, ""), other: (PLAIN, TRIED) },
];

/// Commands, with the state of the jobs that they find.
const COMMANDS: [(&str, JobState); 13] = [
    ("cancel --type", JobState::Ready),
    ("cancel --type", JobState::Scheduled),
    ("cancel --type", JobState::Waiting),
    ("cancel --type", JobState::Leased),
    ("cancel --type", JobState::Dead),
    ("retry --type", JobState::Dead),
    ("discard --type", JobState::Dead),
    ("release --type", JobState::Leased),
    ("bulk start cancel --yes --wait --type", JobState::Ready),
    ("bulk start cancel --yes --wait --type", JobState::Scheduled),
    ("bulk start retry --yes --wait --type", JobState::Dead),
    ("search --json --state ready", JobState::Ready),
    ("search --json --state dead", JobState::Dead),
];

fn with(conditions: JobConditions, task_type: &str) -> Option<JobFilter> {
    Some(JobFilter { task_type: task_type.into(), conditions: Some(conditions), ..JobFilter::default() })
}

fn tagged(tag: &str) -> JobConditions {
    JobConditions { tag: tag.into(), ..JobConditions::default() }
}

async fn cancelled(broker: &Service, filter: Option<JobFilter>) -> Vec<i64> {
    let request = CancelJobsRequest { filter, ..CancelJobsRequest::default() };
    with_timeout("an answer", broker.jobs().cancel_jobs(request)).await.expect("cancel").into_inner().cancelled_ids
}

/// Enqueues these jobs and brings them into a state. The worker, if any, keeps them leased.
async fn in_state(broker: &TestBroker, jobs: [NewJob; 2], state: JobState) -> (Vec<i64>, Option<Worker>) {
    let task_type = jobs[0].task_type.clone();
    match state {
        JobState::Scheduled => (broker.enqueue_all(jobs.map(|job| job.delay(HOUR))).await, None),
        JobState::Waiting => {
            let blocker = broker.enqueue(new_job("blocker", "").delay(HOUR)).await;
            (broker.enqueue_all(jobs.map(|job| job.after(&[blocker]))).await, None)
        }
        JobState::Leased | JobState::Dead => {
            let ids = broker.enqueue_all(jobs).await;
            let mut worker = broker.worker(&task_type).window(2).await;
            for job in worker.take(2).await {
                if state == JobState::Dead {
                    worker.nack(&job, "no").no_retry().await;
                }
            }
            (ids, Some(worker))
        }
        _ => (broker.enqueue_all(jobs).await, None),
    }
}

#[tokio::test]
async fn each_condition_selects_jobs_in_each_command() {
    let broker = TestBroker::start().await;
    for (index, (command, state)) in COMMANDS.into_iter().enumerate() {
        let table = state.as_str_name().trim_start_matches("JOB_STATE_").to_lowercase();
        for Case { flags, wanted, other } in CASES {
            let case = format!("{command} {flags} of {table} jobs");
            let task_type = format!("t{index}{}", flags.replace(' ', "."));
            let jobs = [wanted.0(new_job(&task_type, "")), other.0(new_job(&task_type, ""))];
            let (ids, _worker) = in_state(&broker, jobs, state).await;
            for (id, change) in ids.iter().zip([wanted.1, other.1]).filter(|(_, change)| !change.is_empty()) {
                broker.sql(&format!("UPDATE howdah.{table} SET {change} WHERE id = {id}")).await;
            }
            let (before, after) = command.split_once(' ').map_or((command, ""), |parts| parts);
            let scans = before == "search" && !flags.starts_with("--tag");
            let line = format!("{before} {after} {task_type} {flags}{}", if scans { " --since 30d" } else { "" });
            let words: Vec<&str> = line.split_whitespace().chain(["--server", broker.address()]).collect();
            let (status, out, err) = run(&words, b"").await;
            assert!(status.success(), "{case}: {err}");
            match before {
                "bulk" => {
                    assert!(err.contains("is completed: 1 of 1 job done"), "{case}: {err}");
                    let unlike = [broker.state(ids[0]).await, broker.state(ids[1]).await];
                    assert!(unlike[0] != state && unlike[1] == state, "{case}: {unlike:?}");
                }
                "search" => {
                    let found: serde_json::Value = serde_json::from_str(&out).expect(&case);
                    assert_eq!(id_of(&found), ids[0], "{case}");
                }
                _ => assert_eq!(out.trim(), ids[0].to_string(), "{case}: {err}"),
            }
        }
    }
}

#[tokio::test]
async fn all_conditions_must_hold() {
    let broker = TestBroker::start().await;
    let job = |tag: &str, key: &str| new_job("t", "").tags(&[tag]).limit_key(key);
    let ids = broker.enqueue_all([job("red", "a"), job("red", "b"), job("blue", "a")]).await;
    let both = JobConditions { limit_key: "a".into(), ..tagged("red") };
    assert_eq!(cancelled(&broker, with(both, "t")).await, ids[..1]);
    let never = JobConditions { attempts_at_least: Some(1), ..tagged("red") };
    assert_eq!(cancelled(&broker, with(never, "t")).await, [0_i64; 0]);
}

#[tokio::test]
async fn the_jobs_of_a_worker_are_released_cancelled_and_found_by_its_id() {
    let (a, b) = TestBroker::pair().await;
    let ids = a.enqueue_all(["t"; 4]).await;
    a.enqueue("u").await;
    let mut first = a.worker("t").window(2).await;
    first.take(2).await;
    let mut second = a.worker("t").window(2).await;
    second.take(2).await;
    first.window("t", 0).await;
    first.ping().await;
    second.window("t", 0).await;
    second.ping().await;
    let worker_id = a.job(ids[0]).await.worker_id;
    let held = JobConditions { worker_id: worker_id.clone(), ..JobConditions::default() };
    let search = |conditions: &JobConditions| SearchJobsRequest {
        task_type: "t".into(),
        conditions: Some(conditions.clone()),
        ..SearchJobsRequest::default()
    };
    let found = a.jobs().search_jobs(search(&held)).await.expect("a search").into_inner();
    assert_eq!(found.jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [ids[1], ids[0]], "the newest first");
    let release = |filter| EndLeasesRequest { filter, ..EndLeasesRequest::default() };
    let of = |task_type: &str| release(with(held.clone(), task_type));
    let none = a.jobs().end_leases(of("u")).await.expect("an answer").into_inner();
    assert_eq!(none.ended_ids, [0_i64; 0], "the worker holds no job of this type");
    let ended = a.jobs().end_leases(of("t")).await.expect("an answer").into_inner();
    assert_eq!((ended.ended_ids, ended.next_page_token.as_str()), (ids[..2].to_vec(), ""));
    for (id, state) in [(ids[0], JobState::Ready), (ids[2], JobState::Leased)] {
        assert_eq!(a.state(id).await, state);
    }

    // The other broker knows only what the worker's broker has reported: here, one of its two jobs.
    let report = format!(
        "INSERT INTO howdah.worker
         SELECT broker_id, 4711, now(), '{{t}}', '{{{0}}}',
                '{{\"worker_id\": \"00000000000000aa\", \"windows\": [{{\"task_type\": \"t\", \"oldest\": [{0}]}}]}}'
         FROM howdah.leased WHERE id = {0}",
        ids[2]
    );
    a.sql(&report).await;
    let reported = JobConditions { worker_id: "00000000000000aa".into(), ..JobConditions::default() };
    let found = b.jobs().search_jobs(search(&reported)).await.expect("a search").into_inner();
    assert_eq!(found.jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [ids[2]]);
    assert_eq!(cancelled(&b, with(reported, "t")).await, [ids[2]]);
    assert_eq!(a.state(ids[3]).await, JobState::Leased);

    let server = ["--server", a.address()];
    let (status, _, err) =
        run(&[&["release", "--type", "t", "--worker", "00000000000000bb"], &server[..]].concat(), b"").await;
    assert!(!status.success() && err.contains("`howdah workers` lists the workers"), "{err}");
}

#[tokio::test]
async fn a_worker_is_a_condition_only_for_leased_jobs_that_a_call_changes_itself() {
    let broker = TestBroker::start().await;
    let held = JobConditions { worker_id: "00000000000000aa".into(), ..JobConditions::default() };
    let filter =
        |state: JobState| Some(JobFilter { state: state as i32, ..with(held.clone(), "t").unwrap_or_default() });
    let mut jobs = broker.jobs();
    let ready = CancelJobsRequest { filter: filter(JobState::Ready), ..CancelJobsRequest::default() };
    let any = filter(JobState::Unspecified);
    let retry = v1::RetryJobsRequest { filter: any.clone(), ..v1::RetryJobsRequest::default() };
    let discard = v1::DiscardJobsRequest { filter: any, ..v1::DiscardJobsRequest::default() };
    let refusals = [
        jobs.cancel_jobs(ready).await.map(drop),
        jobs.retry_jobs(retry).await.map(drop),
        jobs.discard_jobs(discard).await.map(drop),
    ];
    for refused in refusals {
        let refused = Refusal::from(refused.expect_err("a refusal"));
        assert_eq!((refused.code, refused.field.as_str()), (Code::InvalidArgument, "filter.conditions.worker_id"));
    }
    let spec = BulkSpec {
        operation: BulkOperation::Cancel as i32,
        task_type: "t".into(),
        conditions: Some(held),
        ..BulkSpec::default()
    };
    let start = StartBulkRequest { spec: Some(spec), ..StartBulkRequest::default() };
    let refused = Refusal::from(broker.bulks().start_bulk(start).await.expect_err("a refusal"));
    assert_eq!((refused.code, refused.field.as_str()), (Code::InvalidArgument, "spec.conditions.worker_id"));
    let server = ["--server", broker.address()];
    let line = ["retry", "--type", "t", "--worker", "00000000000000aa"];
    let (_, _, err) = run(&[&line[..], &server].concat(), b"").await;
    assert!(err.contains("--worker selects leased jobs"), "the error names the flag: {err}");
}

#[tokio::test]
async fn a_selection_by_tag_passes_index_entries_of_other_jobs_and_continues_behind_them() {
    let broker = TestBroker::start().await;
    let first = broker.enqueue(new_job("t", "").tags(&["red"])).await;
    broker.sql(
        "INSERT INTO howdah.job_tag (id, created, hash, type_id)
         SELECT i, now(), hashtext('red'), t.id FROM howdah.task_type t, generate_series(100, 25100) i WHERE t.name = 't'",
    )
    .await;
    broker.database.skip_ids(30_000).await;
    let moved = broker.enqueue(new_job("t", "").tags(&["red"])).await;
    let last = broker.enqueue(new_job("t", "").tags(&["red"])).await;
    // The index still has an entry for a job that has gone to another type.
    broker.enqueue("u").await;
    broker
        .sql(&format!(
            "UPDATE howdah.ready SET type_id = (SELECT id FROM howdah.task_type WHERE name = 'u') WHERE id = {moved}"
        ))
        .await;
    assert_eq!(cancelled(&broker, with(tagged("red"), "t")).await, [first, last]);
    assert_eq!(broker.state(moved).await, JobState::Ready);
}

#[tokio::test]
async fn a_caller_selects_only_jobs_of_types_that_it_may_operate() {
    let guarded = Guarded::start().await;
    let ann = guarded.caller("ann", &["operate:mine", "read:mine"]).await;
    let mut ids = Vec::new();
    for task_type in ["mine", "theirs"] {
        ids.push(guarded.admin.enqueue(new_job(task_type, "").tags(&["red"])).await);
    }
    let request = CancelJobsRequest { filter: with(tagged("red"), "theirs"), ..CancelJobsRequest::default() };
    assert_eq!(ann.jobs().cancel_jobs(request).await.expect_err("a refusal").code(), Code::PermissionDenied);
    let find = |task_type: &str| SearchJobsRequest {
        task_type: task_type.into(),
        conditions: Some(tagged("red")),
        ..SearchJobsRequest::default()
    };
    assert_eq!(ann.jobs().search_jobs(find("theirs")).await.expect_err("a refusal").code(), Code::PermissionDenied);
    let found = ann.jobs().search_jobs(find("mine")).await.expect("a search").into_inner();
    assert_eq!(found.jobs.iter().map(|job| job.id).collect::<Vec<_>>(), ids[..1]);
    assert_eq!(cancelled(&ann, with(tagged("red"), "mine")).await, ids[..1]);
    assert_eq!(guarded.admin.state(ids[1]).await, JobState::Ready);
}

#[tokio::test]
async fn a_bulk_cancel_spares_dependents_that_do_not_meet_its_conditions() {
    let broker = TestBroker::start().await;
    let parent = broker.enqueue(new_job("t", "").tags(&["red"]).delay(HOUR)).await;
    let dependent = || new_job("t", "").after(&[parent]).if_dependency_fails(DependencyFailure::Run);
    let spared = broker.enqueue(dependent()).await;
    let gone = broker.enqueue(dependent().tags(&["red"])).await;
    let spec = BulkSpec {
        operation: BulkOperation::Cancel as i32,
        task_type: "t".into(),
        conditions: Some(tagged("red")),
        ..BulkSpec::default()
    };
    let start = StartBulkRequest { spec: Some(spec.clone()), ..StartBulkRequest::default() };
    let bulk = broker.bulks().start_bulk(start).await.expect("a start").into_inner().bulk.expect("one");
    assert_eq!((bulk.selected_count, bulk.spec), (2, Some(spec)));
    broker.until("its end", &format!("SELECT ended IS NOT NULL FROM howdah.bulk WHERE id = {}", bulk.id)).await;
    let request = v1::GetBulkRequest { id: bulk.id };
    let bulk = broker.bulks().get_bulk(request).await.expect("it").into_inner().bulk.expect("one");
    assert_eq!((bulk.state(), bulk.done_count), (BulkState::Completed, 2));
    assert_eq!((broker.state(gone).await, broker.state(spared).await), (JobState::Cancelled, JobState::Ready));
}
