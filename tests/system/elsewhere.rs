//! Tests workers that reconnect to another broker and report the jobs they hold. The former broker learns of the move, and
//! releases jobs that it had sent and the worker never received.

use howdah_proto::v1::SettleStatus;

use crate::{hostile::secrets::listen, sessions::without_expiry, support::*};

/// Starts two brokers and waits until they receive each other's notifications.
async fn pair() -> (TestBroker, TestBroker) {
    let (a, b) = TestBroker::pair_with(without_expiry).await;
    for broker in [&a, &b] {
        eventually("a broker that listens", async || broker.metrics().await.contains("\nhowdah_listening 1\n")).await;
    }
    (a, b)
}

#[tokio::test]
async fn jobs_lost_with_a_stream_come_to_the_worker_at_its_other_broker_and_no_attempt_is_counted() {
    let (a, b) = pair().await;
    let mut worker = a.worker("r").window(2).await;
    a.enqueue_all(["r", "r"]).await;
    let sent = worker.take(2).await;
    let session_id = worker.welcome.session_id.clone();
    worker.vanish();
    // The worker reports no jobs, as if both had been lost on the way. So the second broker adopts no lease, and only a
    // notification can tell the first broker of the move, because its grace time is an hour.
    let mut worker = b.worker("r").window(2).resumes(&session_id, &[]).await;
    for again in worker.take(2).await {
        assert_eq!(again.attempt, 1);
        assert!(sent.iter().all(|job| job.token != again.token));
        worker.ack(&again).await;
    }
}

#[tokio::test]
async fn a_job_that_never_arrived_is_delivered_again_although_the_worker_kept_and_settled_another() {
    let (a, b) = pair().await;
    for _ in 0..10 {
        let mut worker = a.worker("r").window(2).await;
        a.enqueue_all(["r", "r"]).await;
        let jobs = worker.take(2).await;
        let session_id = worker.welcome.session_id.clone();
        worker.vanish();
        let mut worker = b.worker("r").window(2).resumes(&session_id, &[&jobs[0]]).await;
        worker.ack(&jobs[0]).await;
        let again = worker.next().await;
        assert_eq!((again.id, again.attempt), (jobs[1].id, 1));
        worker.ack(&again).await;
        // Ends the session's current stream, which is at the second broker.
        worker.vanish();
    }
}

#[tokio::test]
async fn an_old_notification_that_a_session_moved_is_ignored_after_the_worker_has_come_back() {
    let (a, b) = pair().await;
    let (_listening, mut notifications) = listen(&a.database).await;
    let worker = a.worker("r").window(2).await;
    let first = worker.welcome.session_id.clone();
    worker.vanish();
    let worker = b.worker("r").window(2).resumes(&first, &[]).await;
    let notification = loop {
        let message = with_timeout("a notification", notifications.recv()).await.expect("a connection");
        if message.starts_with("m ") {
            break message;
        }
    };
    assert!(!notification.contains(&first[..32]), "{notification}");
    let second = worker.welcome.session_id.clone();
    assert_ne!(second, first);
    worker.vanish();
    let mut worker = a.worker("r").window(2).resumes(&second, &[]).await;
    a.enqueue("r").await;
    let job = worker.next().await;
    // Sends the old notification again and then enqueues a job. When this job arrives, the broker has also read the
    // notification.
    a.sql(&format!("SELECT pg_notify('howdah_wake', '{notification}'); SELECT howdah.enqueue('r')")).await;
    let next = worker.next().await;
    assert_eq!(worker.ack(&job).status().await, SettleStatus::Ok);
    worker.ack(&next).await;
}

#[tokio::test]
async fn a_worker_that_reconnects_at_once_keeps_the_leases_that_it_reports() {
    let (a, b) = pair().await;
    let mut worker = a.worker("r").window(1).await;
    a.enqueue("r").await;
    let job = worker.next().await;
    for turn in 0..20 {
        let session_id = worker.welcome.session_id.clone();
        worker.vanish();
        let broker = if turn % 2 == 0 { &b } else { &a };
        // The broker answers UNAVAILABLE while it is still releasing jobs of the session, so the worker tries again.
        worker = loop {
            match broker.worker("r").window(1).resumes(&session_id, &[&job]).answer().await {
                Ok(worker) => break worker,
                Err(status) => assert_eq!(status.code(), tonic::Code::Unavailable, "{status:?}"),
            }
        };
        assert_eq!(worker.welcome.kept, [lease(&job)], "at turn {turn}");
    }
    worker.ack(&job).await;
}
