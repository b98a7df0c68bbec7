//! Tests that workers which send nothing are counted as lost, and that their late outcomes are accepted until their
//! jobs are delivered again.

use std::time::Duration;

use howdah_client::{Client, Job as ClientJob, Outcome};
use howdah_proto::v1::{JobState, LeasedJob, SettleStatus};
use tonic::Code;
use tonic_types::StatusExt as _;

use crate::support::*;

fn impatient(config: &mut howdah_core::config::Config) {
    config.liveness = secs(2);
}

/// Configures a grace time of 1 ms, so that leases end as soon as the stream breaks.
fn no_grace(config: &mut howdah_core::config::Config) {
    config.session_grace = millis(1);
}

/// A worker vanishes with a job. Waits until its lease has ended: the job is then ready, dead or in its fallback type. Returns
/// the job and the worker's session id.
async fn lost(broker: &TestBroker, task_type: &str) -> (LeasedJob, String) {
    let mut worker = broker.worker(task_type).window(1).await;
    let job = worker.next().await;
    let session_id = worker.welcome.session_id.clone();
    worker.vanish();
    broker.until("the end of the lease", "SELECT count(*) = 0 FROM howdah.leased").await;
    (job, session_id)
}

#[tokio::test]
async fn a_worker_that_answers_no_ping_loses_its_jobs_though_its_connection_lives() {
    let broker = TestBroker::start_with(impatient).await;
    let mut silent = broker.worker("l").window(1).await;
    let id = broker.enqueue("l").await;
    let first = silent.next().await;
    // The worker sends no message. Its HTTP/2 library still answers HTTP/2 pings, as a proxy would for a dead worker.
    let end = silent.silent().await;
    assert_eq!(end.code(), Code::Unavailable, "{end:?}");
    assert_eq!(end.get_error_details().error_info().map(|info| info.reason.as_str()), Some("WORKER_SILENT"));
    let mut other = broker.worker("l").window(1).liveness(HOUR).await;
    let again = other.next().await;
    assert_eq!((again.id, again.attempt), (id, 2));
    assert_eq!(other.ack(&first).status().await, SettleStatus::LeaseLost);
    other.ack(&again).await;
    let job = broker.job(id).await;
    assert!(job.failures[0].error.contains("was lost"), "{:?}", job.failures);
}

#[tokio::test]
async fn a_worker_that_does_not_even_read_loses_its_jobs_after_its_liveness() {
    let broker = TestBroker::start_with(impatient).await;
    let mut stuck = broker.worker("big").window(1_000).bytes(1 << 30).await;
    broker.enqueue_all((0..64).map(|_| new_job("big", vec![0; 64 << 10]))).await;
    stuck.next().await;
    // The jobs do not fit into the HTTP/2 windows of the stuck worker, which reads nothing. So the broker cannot even send the
    // end of the stream.
    let mut other = broker.worker("big").window(100).liveness(HOUR).await;
    for _ in 0..64 {
        let job = other.next().await;
        other.ack(&job).sent().await;
    }
    drop(stuck);
}

#[tokio::test]
async fn a_worker_that_only_answers_pings_keeps_its_job() {
    let broker = TestBroker::start_with(impatient).await;
    let mut worker = broker.worker("l").window(1).await;
    assert_eq!(worker.welcome.liveness, Some(wire(secs(2))));
    assert_eq!(worker.welcome.ping_interval, Some(wire(millis(500))));
    let id = broker.enqueue("l").await;
    let job = worker.next().await;
    worker.answer_pings(8).await;
    worker.ack(&job).await;
    let job = broker.job(id).await;
    assert_eq!((job.attempt, job.failures.len()), (1, 0));
}

#[tokio::test]
async fn a_worker_may_ask_for_ten_seconds_to_an_hour_of_silence() {
    let broker = TestBroker::start_with(impatient).await;
    let worker = broker.worker("l").liveness(HOUR).await;
    assert_eq!(worker.welcome.liveness, Some(wire(HOUR)));
    // The pings keep the stream open, because proxies close a stream without traffic after a minute.
    assert_eq!(worker.welcome.ping_interval, Some(wire(Duration::from_secs(15))));
    for refused in [millis(9_999), HOUR + millis(1), Duration::ZERO] {
        let status = broker.worker("l").liveness(refused).refused().await;
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains("liveness"), "{status:?}");
    }
}

#[tokio::test]
async fn a_handler_that_blocks_its_runtime_for_longer_than_the_liveness_keeps_its_job() {
    let broker = TestBroker::start_with(|config| {
        impatient(config);
        config.liveness = millis(1_000);
    })
    .await;
    let id = broker.enqueue("b").await;
    let address = broker.address().to_owned();
    let report = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = Client::connect(address).await.unwrap();
            let block = async |_: ClientJob| {
                std::thread::sleep(millis(4_000));
                Outcome::ack("")
            };
            client.worker().handle("b", block).max_jobs(1_u64).build().run().await.unwrap()
        })
    });
    assert_eq!(with_timeout("the end of the worker", report).await.unwrap().acked, 1);
    let job = broker.job(id).await;
    assert_eq!((job.state(), job.attempt, job.failures.len()), (JobState::Succeeded, 1, 0));
}

#[tokio::test]
async fn an_outcome_of_a_lost_worker_counts_until_its_job_is_delivered_again() {
    let broker = TestBroker::start_with(no_grace).await;
    let first = broker.enqueue("first").await;
    let jobs = [
        new_job("l", "plain"),
        new_job("l", "its key").key("k"),
        new_job("l", "its limit key").limit_key("k"),
        new_job("l", "its last attempt").max_attempts(1),
        new_job("l", "its last attempt, with a key").max_attempts(1).key("k"),
        new_job("l", "its last attempt, with a limit key").max_attempts(1).limit_key("k"),
    ];
    for job in jobs {
        let id = broker.enqueue(job).await;
        let dependent = broker.enqueue(new_job("then", "").after(&[id])).await;
        let (job, _) = lost(&broker, "l").await;
        let mut worker = broker.worker("none").await;
        worker.ack(&job).result("late").await;
        let text = String::from_utf8_lossy(&job.payload);
        let stored = broker.job(id).await;
        assert_eq!(
            (stored.state(), stored.attempt, &stored.result[..]),
            (JobState::Succeeded, 1, &b"late"[..]),
            "{text}"
        );
        assert_eq!(stored.failures, [], "{text}");
        // The late ack is accepted once: a repeated ack succeeds, and another outcome gets `LEASE_LOST`.
        worker.ack(&job).await;
        assert_eq!(worker.nack(&job, "no").status().await, SettleStatus::LeaseLost, "{text}");
        assert_eq!(broker.state(dependent).await, JobState::Ready, "{text}");
    }
    assert_eq!(broker.state(first).await, JobState::Ready);
}

#[tokio::test]
async fn a_late_nack_follows_the_retry_policy_and_a_late_snooze_uses_up_no_attempt() {
    let broker = TestBroker::start_with(no_grace).await;
    let mut worker = broker.worker("none").await;
    let failed = broker.enqueue("l").await;
    let (job, _) = lost(&broker, "l").await;
    worker.nack(&job, "its own words").await;
    let stored = broker.job(failed).await;
    assert_eq!((stored.state(), stored.attempt, stored.failures.len()), (JobState::Scheduled, 1, 1));
    assert_eq!(stored.failures[0].error, "its own words");
    let snoozed = broker.enqueue("m").await;
    let (job, _) = lost(&broker, "m").await;
    worker.snooze(&job, HOUR).await;
    let stored = broker.job(snoozed).await;
    assert_eq!((stored.state(), stored.attempt, stored.failures.len()), (JobState::Scheduled, 0, 0));
}

#[tokio::test]
async fn a_worker_that_comes_back_late_has_lost_its_lease_but_its_outcome_counts() {
    let (a, b) = TestBroker::pair_with(no_grace).await;
    for attempts in [2, 1] {
        let id = a.enqueue(new_job("l", "").max_attempts(attempts).key("k")).await;
        let (job, session_id) = lost(&a, "l").await;
        let mut back = b.worker("none").resumes(&session_id, &[&job]).await;
        assert_eq!((back.welcome.kept.len(), &back.welcome.lost[..]), (0, &[lease(&job)][..]));
        back.ack(&job).await;
        let job = a.job(id).await;
        assert_eq!((job.state(), job.attempt, job.failures.len()), (JobState::Succeeded, 1, 0));
    }
}

#[tokio::test]
async fn a_late_outcome_counts_in_sql_too() {
    let broker = TestBroker::start_with(no_grace).await;
    let done = broker.enqueue("l").await;
    let (job, _) = lost(&broker, "l").await;
    broker.sql(&format!("SELECT howdah.complete({done}, {}, ''::bytea)", job.token)).await;
    assert_eq!(broker.state(done).await, JobState::Succeeded);
    let failed = broker.enqueue("m").await;
    let (job, _) = lost(&broker, "m").await;
    broker.sql(&format!("SELECT howdah.fail({failed}, {}, 'its own words')", job.token)).await;
    let failed = broker.job(failed).await;
    assert_eq!((failed.state(), failed.failures.len()), (JobState::Scheduled, 1));
}

#[tokio::test]
async fn a_late_outcome_of_a_job_that_was_changed_does_not_count() {
    let broker = TestBroker::start_with(no_grace).await;
    let mut worker = broker.worker("none").await;
    // Case: the job was cancelled.
    let id = broker.enqueue("l").await;
    let (job, _) = lost(&broker, "l").await;
    broker.cancel(&[id]).await;
    assert_eq!(worker.ack(&job).status().await, SettleStatus::LeaseLost);
    assert_eq!(broker.state(id).await, JobState::Cancelled);
    // Case: the job died, and an operator retried it with new attempts.
    let id = broker.enqueue(new_job("l", "").max_attempts(1)).await;
    let (job, _) = lost(&broker, "l").await;
    broker.until_state(id, JobState::Dead).await;
    broker.retry(&[id]).await;
    assert_eq!(worker.ack(&job).status().await, SettleStatus::LeaseLost);
    assert_eq!(broker.state(id).await, JobState::Ready);
    broker.cancel(&[id]).await;
    // Case: the job went to its fallback type.
    let id = broker.enqueue(new_job("l", "").max_attempts(1).fallback("f")).await;
    let (job, _) = lost(&broker, "l").await;
    assert_eq!(worker.ack(&job).status().await, SettleStatus::LeaseLost);
    assert_eq!(broker.job(id).await.task_type, "f");
    // Case: the job is dead, and another job holds its key.
    let id = broker.enqueue(new_job("l", "").max_attempts(1).key("k")).await;
    let (job, _) = lost(&broker, "l").await;
    broker.until_state(id, JobState::Dead).await;
    broker.enqueue(new_job("other", "").key("k")).await;
    broker.enqueue(new_job("l", "").key("k")).await;
    assert_eq!(worker.ack(&job).status().await, SettleStatus::LeaseLost);
    assert_eq!(broker.state(id).await, JobState::Dead);
}
