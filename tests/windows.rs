//! What a worker holds at once, and what is taken from it.

use howdah_proto::v1::{JobState, SettleStatus, Window, work_request};

use crate::support::*;

#[tokio::test]
async fn windows_are_never_exceeded_in_jobs_or_bytes_and_can_be_resized() {
    let broker = TestBroker::start().await;
    broker.enqueue_all((0..50).map(|_| new_job("w", vec![0; 1000]))).await;
    let mut worker = broker.worker("w").bytes(3_500).await;
    // 3,500 bytes hold three jobs of 1,000; the fourth comes when one is settled.
    let mut held = worker.take(3).await;
    broker.until("a quiet queue", "SELECT count(*) = 3 FROM howdah.leased").await;
    for _ in 0..10 {
        let done = held.remove(0);
        worker.ack(&done).await;
        held.push(worker.next().await);
        assert_eq!(worker.buffered(), 0, "a fourth came while three were held");
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
    // The second fits the window but not the room that the first leaves: claimed, and kept for a while.
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
    assert_eq!(a.job(job.id).await.state(), JobState::Cancelled);
}
