//! Tests windows of workers, and cancelled leases.

use std::collections::{HashMap, HashSet};

use howdah_core::config::WakeMode;
use howdah_proto::v1::{
    CancelReason, EndLeasesRequest, JobFilter, JobState, SettleStatus, Window, work_request, work_response,
};

use crate::support::*;

#[tokio::test]
async fn windows_are_never_exceeded_in_jobs_or_bytes_and_can_be_resized() {
    let broker = TestBroker::start().await;
    broker.enqueue_all((0..50).map(|_| new_job("w", vec![0; 1000]))).await;
    let mut worker = broker.worker("w").bytes(3_500).await;
    // The window of 3,500 bytes has room for three jobs of 1,000 bytes. The fourth job is sent when one of the three is
    // settled.
    let mut held = worker.take(3).await;
    broker.until("three leases", "SELECT count(*) = 3 FROM howdah.leased").await;
    for _ in 0..10 {
        let done = held.remove(0);
        worker.ack(&done).await;
        held.push(worker.next().await);
        assert_eq!(worker.buffered(), 0, "a fourth job was sent while three were held");
    }
    worker.send(work_request::Message::Window(Window { task_type: "w".into(), jobs: 5, bytes: 1 << 20 })).await;
    held.extend(worker.take(2).await);
    broker.until("five leases", "SELECT count(*) = 5 FROM howdah.leased").await;
    worker.window("w", 0).await;
    for job in held {
        worker.ack(&job).await;
    }
    assert_eq!(broker.count("SELECT count(*) FROM howdah.leased").await, 0);
}

#[tokio::test]
async fn a_job_that_is_cancelled_before_it_was_sent_is_not_sent() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("c").bytes(100).await;
    // The window of 100 bytes has room for either job but not for both. The broker claims the second job and keeps it until
    // there is room.
    let ids = broker.enqueue_all([new_job("c", [b'1'; 90]), new_job("c", [b'2'; 90])]).await;
    let first = worker.next().await;
    assert_eq!(first.id, ids[0]);
    assert_eq!(broker.cancel(&ids[1..]).await, [ids[1]]);
    worker.ack(&first).await;
    let third = broker.enqueue(new_job("c", [b'3'; 90])).await;
    assert_eq!(worker.next().await.id, third);
}

#[tokio::test]
async fn a_cancelled_job_is_taken_from_its_worker_also_on_another_broker() {
    let (a, b) = TestBroker::pair().await;
    let mut worker = b.worker("c").window(1).await;
    let ids = a.enqueue_all(["c", "c"]).await;
    let job = worker.next().await;
    assert_eq!(a.cancel(&[&ids[..], &[i64::MAX]].concat()).await, ids);
    let cancel = worker.cancelled().await;
    assert_eq!((cancel.id, cancel.token), (job.id, job.token));
    assert_eq!(worker.ack(&job).status().await, SettleStatus::LeaseLost);
    assert_eq!(a.state(job.id).await, JobState::Cancelled);
}

#[tokio::test]
async fn leases_ended_elsewhere_leave_the_window_without_notifications() {
    let (a, b) = TestBroker::pair_with(|config| {
        config.wake = WakeMode::Poll;
        config.poll_interval = millis(50);
    })
    .await;
    let mut worker = b.worker("w").window(7).await;
    a.enqueue_all([
        new_job("w", "cancelled by a broker"),
        new_job("w", "cancelled by SQL"),
        new_job("w", "timed out").timeout(HOUR).retry_after_each(HOUR),
        new_job("w", "completed by SQL"),
        new_job("w", "failed by SQL"),
        new_job("w", "taken by a broker").retry_after_each(HOUR),
        new_job("w", "taken by SQL").retry_after_each(HOUR),
    ])
    .await;
    let jobs = worker.take(7).await;
    let job_named = |payload: &str| jobs.iter().find(|job| job.payload == payload.as_bytes()).expect("a job");
    a.cancel(&[job_named("cancelled by a broker").id]).await;
    let filter = Some(JobFilter { ids: vec![job_named("taken by a broker").id], ..Default::default() });
    let take = EndLeasesRequest { filter, error: Some("it hangs".into()), ..Default::default() };
    a.jobs().end_leases(take).await.expect("end the lease");
    a.sql(&format!("UPDATE howdah.leased SET deadline = now() WHERE id = {}", job_named("timed out").id)).await;
    let (cancelled, done, failed) =
        (job_named("cancelled by SQL"), job_named("completed by SQL"), job_named("failed by SQL"));
    a.sql(&format!(
        "SELECT howdah.cancel({}), howdah.complete({}, {}), howdah.fail({}, {}, 'no', '1 hour'),
                howdah.end_lease({}, 'it hangs')",
        cancelled.id,
        done.id,
        done.token,
        failed.id,
        failed.token,
        job_named("taken by SQL").id
    ))
    .await;
    let mut reasons = HashMap::new();
    while reasons.len() < 5 {
        match worker.message().await.expect("an open stream") {
            Some(work_response::Message::Cancel(cancel)) => {
                reasons.extend(cancel.jobs.iter().map(|job| (job.id, job.reason())));
            }
            other => panic!("{other:?}"),
        }
    }
    // The reason is `Timeout` if this broker finds the timeout itself, and `LeaseLost` if the other broker finds it.
    let timed_out = reasons.remove(&job_named("timed out").id);
    assert!([Some(CancelReason::Timeout), Some(CancelReason::LeaseLost)].contains(&timed_out), "{timed_out:?}");
    let expected = [
        ("cancelled by a broker", CancelReason::Cancelled),
        ("cancelled by SQL", CancelReason::Cancelled),
        ("taken by a broker", CancelReason::LeaseLost),
        ("taken by SQL", CancelReason::LeaseLost),
    ];
    assert_eq!(reasons, HashMap::from(expected.map(|(job, reason)| (job_named(job).id, reason))));
    // The whole window of seven jobs is free again, although the broker does not tell the worker of jobs that SQL
    // settled.
    let more = a.enqueue_all(["w"; 7]).await;
    let mut come = HashSet::new();
    while !more.iter().all(|id| come.contains(id)) {
        let job = worker.next().await;
        come.insert(job.id);
        if !more.contains(&job.id) {
            worker.ack(&job).await;
        }
    }
}

#[tokio::test]
async fn outcomes_do_not_wait_for_others_when_their_worker_waits_for_an_answer() {
    let broker = TestBroker::start_with(|config| config.outcome_wait = HOUR).await;
    broker.enqueue_all((0..200).map(|_| "o")).await;
    let mut worker = broker.worker("o").window(200).await;
    // The worker waits while four messages are unanswered, because the broker delays outcomes that arrive faster than 500 per
    // second.
    let mut unanswered = 0;
    for job in worker.take(200).await {
        if unanswered == 4 {
            assert_eq!(worker.settled().await.status(), SettleStatus::Ok);
            unanswered -= 1;
        }
        worker.ack(&job).sent().await;
        unanswered += 1;
    }
}
