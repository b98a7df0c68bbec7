//! Tests the option `history` of a job, which overrides the setting of its task type.

use howdah_proto::v1::{HistoryMode, JobState, NewJob, TaskTypeSettings, WaitJobsRequest};

use crate::support::*;

fn with(mode: HistoryMode, task_type: &str) -> NewJob {
    new_job(task_type, "").with(|job: &mut NewJob| job.history = mode as i32)
}

/// Returns which of these jobs are in history.
async fn kept(broker: &Service, ids: &[i64]) -> Vec<bool> {
    let mut kept = Vec::new();
    for id in ids {
        kept.push(broker.count(&format!("SELECT count(*) FROM howdah.history WHERE id = {id}")).await == 1);
    }
    kept
}

async fn refused_wait(broker: &Service, id: i64) -> bool {
    let request = WaitJobsRequest { ids: vec![id], timeout: Some(wire(MINUTE)) };
    let mut ends = with_timeout("an answer", broker.jobs().wait_jobs(request)).await.expect("a stream").into_inner();
    with_timeout("the end of the job", ends.message()).await.is_err_and(|status| status.message().contains("history"))
}

#[tokio::test]
async fn the_history_mode_of_a_job_overrides_that_of_its_type() {
    let broker = TestBroker::start().await;
    broker.set("none", TaskTypeSettings { history: HistoryMode::None as i32, ..Default::default() }).await;
    let modes = [HistoryMode::Full, HistoryMode::Failures, HistoryMode::WithoutEmpty, HistoryMode::None];
    for (task_type, by_type) in [("full", true), ("none", false)] {
        let ids = broker.enqueue_all(modes.map(|mode| with(mode, task_type))).await;
        let plain = broker.enqueue(task_type).await;
        for (id, mode) in ids.iter().zip(modes) {
            assert_eq!(broker.job(*id).await.history(), mode);
        }
        let mut worker = broker.worker(task_type).window(10).await;
        for job in worker.take(5).await {
            worker.ack(&job).await;
        }
        assert_eq!(kept(&broker, &ids).await, [true, false, false, false], "{task_type}");
        assert_eq!(kept(&broker, &[plain]).await, [by_type]);
        // With a result or a failed attempt.
        let ids = broker
            .enqueue_all([with(HistoryMode::WithoutEmpty, task_type), with(HistoryMode::Failures, task_type)])
            .await;
        let (first, second) = (worker.next().await, worker.next().await);
        worker.ack(&first).result("r").await;
        worker.nack(&second, "once").at_once().await;
        let again = worker.next().await;
        worker.ack(&again).await;
        assert_eq!(kept(&broker, &ids).await, [true, true], "{task_type}");
    }
}

#[tokio::test]
async fn jobs_by_sql_have_their_mode_and_end_by_sql_as_by_a_worker() {
    let broker = TestBroker::start().await;
    let client = broker.database.connect().await;
    let enqueue = "SELECT howdah.enqueue('t', history => 'none'), howdah.enqueue('t', history => 'full')";
    let row = client.query_one(enqueue, &[]).await.expect(enqueue);
    let ids: [i64; 2] = [row.get(0), row.get(1)];
    let mut worker = broker.worker("t").window(10).await;
    for job in worker.take(2).await {
        broker.sql(&format!("SELECT howdah.complete({}, {})", job.id, job.token)).await;
    }
    assert_eq!(kept(&broker, &ids).await, [false, true]);
    let wrong = client.batch_execute("SELECT howdah.enqueue('t', history => 'some')").await.expect_err("a refusal");
    assert!(wrong.to_string().contains("history") || format!("{wrong:?}").contains("history"), "{wrong:?}");
}

#[tokio::test]
async fn a_job_keeps_its_mode_in_its_next_stage_and_in_its_fallback() {
    let broker = TestBroker::start().await;
    let staged = broker.enqueue(with(HistoryMode::None, "one").next_stages(&["two"])).await;
    let fallen = broker.enqueue(with(HistoryMode::None, "bad").fallback("two")).await;
    let mut worker = broker.worker("one").and("bad").and("two").window(10).await;
    for _ in 0..4 {
        let job = worker.next().await;
        match job.task_type.as_str() {
            "bad" => worker.nack(&job, "no").no_retry().await,
            _ => worker.ack(&job).await,
        }
    }
    // A failed attempt does not matter with the mode none.
    assert_eq!(kept(&broker, &[staged, fallen]).await, [false, false]);
    let cancelled = broker.enqueue(with(HistoryMode::None, "later").delay(HOUR)).await;
    broker.cancel(&[cancelled]).await;
    assert_eq!(broker.state(cancelled).await, JobState::Cancelled);
}

#[tokio::test]
async fn only_a_job_that_history_keeps_can_be_waited_for() {
    let broker = TestBroker::start().await;
    broker.set("none", TaskTypeSettings { history: HistoryMode::None as i32, ..Default::default() }).await;
    let short = broker.enqueue(with(HistoryMode::WithoutEmpty, "full")).await;
    assert!(refused_wait(&broker, short).await);
    let full = broker.enqueue(with(HistoryMode::Full, "none")).await;
    let waiting = tokio::spawn({
        let service = Service::clone(&broker);
        async move { service.wait(full).await }
    });
    broker.until("the mark", "SELECT EXISTS (SELECT FROM howdah.ready WHERE options ? 'awaited')").await;
    let mut worker = broker.worker("none").await;
    let job = worker.next().await;
    worker.ack(&job).await;
    assert_eq!(waiting.await.expect("no panic").state(), JobState::Succeeded);
}
