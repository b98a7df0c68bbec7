//! Sessions: resume, grace, drain, a worker that does not read, wake-ups that do not come.

use std::time::Duration;

use howdah_proto::v1::{
    EnqueueJobsRequest, GetJobRequest, JobState, Lease, NewJob, SettleStatus, Subscribe, Window, work_request,
    work_response,
};
use howdah_server::{
    config::{Config, WakeMode},
    store::Store,
};

use crate::support::{TestBroker, Worker, ack, database, jobs_client, new_job, soon, until};

const HOUR: Duration = Duration::from_secs(3600);

async fn enqueue(broker: &TestBroker, task_type: &str, count: usize, payload: usize) -> Vec<i64> {
    let jobs = (0..count).map(|_| new_job(task_type, vec![0; payload])).collect();
    let request = EnqueueJobsRequest { jobs, ..Default::default() };
    let answer = jobs_client(&broker.grpc).await.enqueue_jobs(request).await.expect("enqueue");
    answer.into_inner().jobs.iter().map(|j| j.id).collect()
}

fn resume(worker: &Worker, task_type: &str, held: Vec<Lease>) -> Subscribe {
    let windows = vec![Window { task_type: task_type.into(), jobs: 10, bytes: 0 }];
    Subscribe { windows, session_id: worker.welcome.session_id.clone(), held, ..Subscribe::default() }
}

/// A worker may be as slow as it likes to come back, here or after the broker's end.
fn patient(config: &mut Config) {
    (config.session_grace, config.broker_lease) = (HOUR, HOUR);
}

#[tokio::test]
async fn a_worker_that_lost_its_stream_resumes_on_the_other_broker_and_its_ack_counts() {
    let database = database().await;
    let (a, b) = (TestBroker::start_with(&database, patient).await, TestBroker::start(&database).await);
    let mut worker = Worker::connect(&a.grpc, "r", 10).await;
    enqueue(&a, "r", 1, 0).await;
    let job = worker.job().await;
    let forged = Lease { id: job.id, token: job.token ^ 1 };
    let held = vec![Lease { id: job.id, token: job.token }];
    let back = resume(&worker, "r", held.clone());
    worker.vanish();
    let mut worker = Worker::subscribe(&b.grpc, back).await;
    assert_eq!((&worker.welcome.kept, worker.welcome.lost.len()), (&held, 0));
    // The first broker ends in vain: the lease is not its own any more.
    a.stop().await;
    assert_eq!(worker.ack(&job).await.status(), SettleStatus::Ok);
    let again =
        Worker::subscribe(&b.grpc, Subscribe { held: vec![forged], task_type: "r".into(), ..Default::default() }).await;
    assert_eq!(again.welcome.lost, [forged]);
}

#[tokio::test]
async fn what_a_resuming_worker_does_not_list_goes_back_without_using_up_an_attempt() {
    let database = database().await;
    let broker = TestBroker::start_with(&database, patient).await;
    let mut worker = Worker::connect(&broker.grpc, "r", 10).await;
    enqueue(&broker, "r", 2, 0).await;
    let (first, second) = (worker.job().await, worker.job().await);
    let back = resume(&worker, "r", vec![Lease { id: first.id, token: first.token }]);
    worker.vanish();
    let mut worker = Worker::subscribe(&broker.grpc, back).await;
    let again = worker.job().await;
    assert_eq!((again.id, again.attempt), (second.id, 1));
    assert_ne!(again.token, second.token);
    assert_eq!(worker.ack(&second).await.status(), SettleStatus::LeaseLost);
    assert_eq!(worker.ack(&first).await.status(), SettleStatus::Ok);
}

#[tokio::test]
async fn a_worker_that_does_not_come_back_loses_its_jobs_after_the_grace_time_and_the_attempt_counts() {
    let database = database().await;
    let broker = TestBroker::start_with(&database, |c| c.session_grace = Duration::from_millis(200)).await;
    let mut worker = Worker::connect(&broker.grpc, "g", 1).await;
    let id = enqueue(&broker, "g", 1, 0).await[0];
    let first = worker.job().await;
    worker.vanish();
    let mut other = Worker::connect(&broker.grpc, "g", 1).await;
    let again = other.job().await;
    assert_eq!((again.id, again.attempt), (id, 2));
    assert_eq!(other.ack(&first).await.status(), SettleStatus::LeaseLost);
    assert_eq!(other.ack(&again).await.status(), SettleStatus::Ok);
    let job = jobs_client(&broker.grpc).await.get_job(GetJobRequest { id }).await.unwrap().into_inner().job.unwrap();
    assert!(job.failures[0].error.contains("went away"), "{:?}", job.failures);
}

#[tokio::test]
async fn a_job_that_ends_every_worker_is_dead_at_its_limit() {
    let database = database().await;
    let broker = TestBroker::start_with(&database, |c| c.session_grace = Duration::from_millis(1)).await;
    let job = howdah_proto::v1::NewJob { max_attempts: 3, ..new_job("deadly", "") };
    let request = EnqueueJobsRequest { jobs: vec![job], ..Default::default() };
    let id = jobs_client(&broker.grpc).await.enqueue_jobs(request).await.unwrap().into_inner().jobs[0].id;
    for attempt in 1..=3 {
        let mut worker = Worker::connect(&broker.grpc, "deadly", 1).await;
        assert_eq!(worker.job().await.attempt, attempt);
    }
    until(&database, "a dead job", &format!("SELECT count(*) = 1 FROM howdah.dead WHERE id = {id} AND attempt = 3"))
        .await;
}

#[tokio::test]
async fn a_worker_that_asks_to_drain_gets_no_more_and_settles_what_it_holds() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let mut worker = Worker::connect(&broker.grpc, "d", 2).await;
    enqueue(&broker, "d", 5, 0).await;
    let (first, second) = (worker.job().await, worker.job().await);
    worker.send(work_request::Message::Drain(howdah_proto::v1::DrainRequest {})).await;
    let Some(work_response::Message::Drain(drain)) = worker.message().await.unwrap() else { panic!("no drain") };
    assert_eq!(drain.reason(), howdah_proto::v1::DrainReason::Requested);
    worker.settle(vec![ack(&first), ack(&second)]).await;
    let Some(work_response::Message::Settled(settled)) = worker.message().await.unwrap() else { panic!("more jobs") };
    assert_eq!(settled.results.len(), 2);
    assert_eq!(database.count("SELECT count(*) FROM howdah.ready").await, 3);
}

#[tokio::test]
async fn a_stopping_broker_drains_its_workers_who_go_on_elsewhere_with_their_leases() {
    let database = database().await;
    let (a, b) = (TestBroker::start_with(&database, patient).await, TestBroker::start(&database).await);
    let mut worker = Worker::connect(&a.grpc, "d", 10).await;
    enqueue(&a, "d", 1, 0).await;
    let job = worker.job().await;
    let stopping = tokio::spawn(a.stop());
    let Some(work_response::Message::Drain(drain)) = worker.message().await.unwrap() else { panic!("no drain") };
    assert_eq!(drain.reason(), howdah_proto::v1::DrainReason::Shutdown);
    assert!(drain.reconnect_after.is_some());
    let back = resume(&worker, "d", vec![Lease { id: job.id, token: job.token }]);
    worker.vanish();
    stopping.await.expect("a good end");
    let mut worker = Worker::subscribe(&b.grpc, back).await;
    assert_eq!(worker.welcome.kept.len(), 1);
    assert_eq!(worker.ack(&job).await.status(), SettleStatus::Ok);
    assert_eq!(database.count("SELECT count(*) FROM howdah.history WHERE attempt = 1").await, 1);
}

#[tokio::test]
async fn a_broker_with_a_silent_worker_still_stops_by_its_deadline() {
    let database = database().await;
    let broker = TestBroker::start_with(&database, |c| c.drain_deadline = Duration::from_secs(3)).await;
    let _worker = Worker::connect(&broker.grpc, "d", 10).await;
    let silent = tokio::net::TcpStream::connect(broker.grpc.trim_start_matches("http://")).await.expect("connect");
    // Without a deadline it would wait for both of them for ever.
    broker.stop().await;
    drop(silent);
}

#[tokio::test]
async fn a_worker_that_does_not_read_gets_a_bounded_part_and_the_rest_goes_to_others() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    // 64 MiB of jobs, and a window that would take them all.
    let windows = vec![Window { task_type: "big".into(), jobs: 1_000, bytes: 1 << 30 }];
    let stuck = Worker::subscribe(&broker.grpc, Subscribe { windows, ..Subscribe::default() }).await;
    for _ in 0..16 {
        enqueue(&broker, "big", 64, 64 << 10).await;
    }
    // What it was sent is what fits HTTP/2's windows; what it was not goes back, uncounted.
    let sql = "SELECT count(*) > 900 AND max(attempt) = 0 FROM howdah.ready";
    until(&database, "the unsent jobs", sql).await;
    let mut other = Worker::connect(&broker.grpc, "big", 100).await;
    let mut got = 0;
    while got < 900 {
        let job = other.job().await;
        assert_eq!(job.attempt, 1);
        other.settle(vec![ack(&job)]).await;
        got += 1;
    }
    drop(stuck);
}

#[tokio::test]
async fn with_notifications_lost_a_job_is_picked_up_within_the_poll_interval() {
    let database = database().await;
    let poll = |c: &mut howdah_server::config::Config| c.wake = WakeMode::Poll;
    let (a, b) = (TestBroker::start_with(&database, poll).await, TestBroker::start_with(&database, poll).await);
    let mut worker = Worker::connect(&b.grpc, "p", 1).await;
    enqueue(&a, "p", 1, 0).await;
    // It comes at all: a slow machine may take longer than the interval.
    let job = worker.job().await;
    assert_eq!(worker.ack(&job).await.status(), SettleStatus::Ok);
}

#[tokio::test]
async fn a_broker_that_was_given_up_starts_over_and_tells_its_workers_what_is_lost() {
    let database = database().await;
    let broker = TestBroker::start_with(&database, |c| c.renew_interval = Duration::from_millis(200)).await;
    let mut worker = Worker::connect(&broker.grpc, "x", 2).await;
    enqueue(&broker, "x", 2, 0).await;
    let (kept, lost) = (worker.job().await, worker.job().await);
    // As if it had been stopped for longer than its lease, and another had rescued one of its jobs.
    let take = format!(
        "UPDATE howdah.broker SET expires = now() - interval '1 s';
         DELETE FROM howdah.leased WHERE id = {}; DELETE FROM howdah.broker",
        lost.id
    );
    database.connect().await.batch_execute(&take).await.expect("take");
    let Some(work_response::Message::Cancel(cancel)) = worker.message().await.unwrap() else { panic!("no cancel") };
    assert_eq!(cancel.jobs[0].id, lost.id);
    assert_eq!(cancel.jobs[0].reason(), howdah_proto::v1::CancelReason::LeaseLost);
    assert_eq!(worker.ack(&kept).await.status(), SettleStatus::Ok);
    assert_eq!(worker.ack(&lost).await.status(), SettleStatus::LeaseLost);
}

#[tokio::test]
async fn a_broker_that_has_expired_itself_takes_nothing_back() {
    let database = database().await;
    // Its lease is over, and the next time to renew far away, as after it was stopped.
    let broker = TestBroker::start_with(&database, |c| c.renew_interval = HOUR).await;
    let mut worker = Worker::connect(&broker.grpc, "x", 2).await;
    enqueue(&broker, "x", 1, 0).await;
    let special = NewJob { limit_key: "k".into(), ..new_job("x", "special") };
    let request = EnqueueJobsRequest { jobs: vec![special], ..Default::default() };
    jobs_client(&broker.grpc).await.enqueue_jobs(request).await.expect("enqueue");
    let jobs = [worker.job().await, worker.job().await];
    let own = database.count("SELECT id::bigint FROM howdah.broker").await as i32;
    let client = database.connect().await;
    client.batch_execute("UPDATE howdah.broker SET expires = now() - interval '1 s'").await.expect("expire");
    let store = Store::new(&Config::new(&database.url)).expect("store");
    assert_eq!(store.rescue(10, own).await.expect("rescue").len(), 0);
    assert_eq!(store.lost_coordinated(10, own).await.expect("look").len(), 0);
    let other = store.register_broker("other", HOUR).await.expect("register");
    assert_eq!(store.lost_coordinated(10, other).await.expect("look").len(), 1);
    assert_eq!(store.rescue(10, other).await.expect("rescue").iter().map(|moved| moved.jobs).sum::<i64>(), 1);
    let mut statuses = Vec::new();
    for job in &jobs {
        statuses.push(worker.ack(job).await.status());
    }
    assert_eq!(statuses.iter().filter(|status| **status == SettleStatus::LeaseLost).count(), 1);
}

#[tokio::test]
async fn an_idle_broker_with_a_hundred_workers_sends_at_most_two_statements_a_second() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let mut workers = Vec::new();
    for n in 0..100 {
        workers.push(Worker::connect(&broker.grpc, &format!("type-{}", n % 10), 10).await);
    }
    let client = database.connect().await;
    // The database's clock is the measure. A connection reports what it did within 10 s of falling idle, or later
    // on a slow machine, and autovacuum comes by: so there is a first time that is quiet, not each.
    let sql = "SELECT xact_commit + xact_rollback, extract(epoch FROM clock_timestamp())::float8
               FROM pg_stat_database WHERE datname = current_database()";
    let look = async || -> (i64, f64) {
        let row = client.query_one(sql, &[]).await.expect(sql);
        (row.get(0), row.get(1))
    };
    soon("ten quiet seconds", async {
        loop {
            let before = look().await;
            client.simple_query("SELECT pg_sleep(10)").await.expect("wait");
            let after = look().await;
            // Three of them are this test's own.
            if (after.0 - before.0 - 3) as f64 <= 2.0 * (after.1 - before.1) {
                return;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn pulled_jobs_live_by_their_own_deadline() {
    use howdah_proto::v1::{PullJobsRequest, SettleJobsRequest};
    let database = database().await;
    // What has run out is tried again long after we have looked.
    let broker = TestBroker::start_with(&database, |c| c.retry.initial = HOUR).await;
    let mut workers = crate::support::workers_client(&broker.grpc).await;
    let wait = Some(Duration::from_secs(60).try_into().unwrap());
    let pull = PullJobsRequest { task_types: vec!["u".into()], max_jobs: 2, wait, ..Default::default() };
    // It waits for the first job, and is woken by it.
    let waiting = tokio::spawn({
        let (mut workers, pull) = (workers.clone(), pull.clone());
        async move { workers.pull_jobs(pull).await }
    });
    enqueue(&broker, "u", 3, 0).await;
    let jobs = waiting.await.unwrap().expect("pull").into_inner().jobs;
    assert!(!jobs.is_empty() && jobs.len() <= 2 && jobs[0].deadline.is_some());
    let outcomes = vec![ack(&jobs[0]), ack(&jobs[0])];
    let results = workers.settle_jobs(SettleJobsRequest { outcomes }).await.expect("settle").into_inner().results;
    assert_eq!(results.iter().map(|r| r.status()).collect::<Vec<_>>(), [SettleStatus::Ok, SettleStatus::LeaseLost]);
    let short = PullJobsRequest { lease_duration: Some(Duration::from_secs(1).try_into().unwrap()), ..pull };
    let job = workers.pull_jobs(short).await.expect("pull").into_inner().jobs.remove(0);
    let sql = format!("SELECT count(*) = 1 FROM howdah.scheduled WHERE id = {}", job.id);
    until(&database, "the end of the lease", &sql).await;
    let late = workers.settle_jobs(SettleJobsRequest { outcomes: vec![ack(&job)] }).await.expect("settle").into_inner();
    assert_eq!(late.results[0].status(), SettleStatus::LeaseLost);
    let job =
        jobs_client(&broker.grpc).await.get_job(GetJobRequest { id: job.id }).await.unwrap().into_inner().job.unwrap();
    assert_eq!(job.state(), JobState::Scheduled);
}

#[tokio::test]
async fn a_worker_that_comes_back_while_its_broker_begins_to_stop_is_told_to_leave() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let grpc = broker.grpc.clone();
    let mut witness = Worker::connect(&grpc, "other", 1).await;
    enqueue(&broker, "resumed", 1, 0).await;
    let mut worker = Worker::connect(&grpc, "resumed", 1).await;
    let job = worker.job().await;
    let subscribe = resume(&worker, "resumed", vec![Lease { id: job.id, token: job.token }]);
    worker.vanish();
    // Its adoption waits, and in the middle of it the broker begins to stop.
    let mut other = database.connect().await;
    let lock = other.transaction().await.unwrap();
    lock.batch_execute("LOCK TABLE howdah.leased IN EXCLUSIVE MODE").await.unwrap();
    let coming = tokio::spawn(async move { Worker::subscribe(&grpc, subscribe).await });
    let waits =
        "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    until(&database, "the adoption", waits).await;
    let stopping = tokio::spawn(broker.stop());
    assert!(matches!(witness.message().await, Ok(Some(work_response::Message::Drain(_)))));
    lock.rollback().await.unwrap();
    let mut worker = coming.await.unwrap();
    assert_eq!(worker.welcome.kept.len(), 1);
    assert!(matches!(worker.message().await, Ok(Some(work_response::Message::Drain(_)))));
    worker.vanish();
    witness.vanish();
    stopping.await.unwrap();
}
