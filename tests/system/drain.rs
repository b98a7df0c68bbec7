//! Tests the end of a session: a worker drains, or a broker stops.

use howdah_proto::v1::{DrainReason, work_response::Message};

use crate::{sessions::without_expiry, support::*};

#[tokio::test]
async fn a_worker_that_asks_to_drain_gets_no_more_and_settles_what_it_holds() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("d").window(2).await;
    broker.enqueue_all(["d"; 5]).await;
    let (first, second) = (worker.next().await, worker.next().await);
    worker.drain().await;
    assert_eq!(worker.drained().await.reason(), DrainReason::Requested);
    worker.settle(vec![ack(&first), ack(&second)]).await;
    let Some(Message::Settled(settled)) = worker.message().await.unwrap() else { panic!("more jobs") };
    assert_eq!(settled.results.len(), 2);
    assert_eq!(broker.count("SELECT count(*) FROM howdah.ready").await, 3);
}

#[tokio::test]
async fn workers_of_a_stopping_broker_drain_and_go_on_elsewhere_with_their_leases() {
    let a = TestBroker::start_with(without_expiry).await;
    let b = a.another().await;
    let mut worker = a.worker("d").await;
    a.enqueue("d").await;
    let job = worker.next().await;
    let stopping = tokio::spawn(a.stop());
    let drain = worker.drained().await;
    assert_eq!(drain.reason(), DrainReason::Shutdown);
    assert!(drain.reconnect_after.is_some());
    let back = b.worker("d").resumes(&worker.welcome.session_id, &[&job]);
    worker.vanish();
    stopping.await.expect("a good end");
    let mut worker = back.await;
    assert_eq!(worker.welcome.kept.len(), 1);
    worker.ack(&job).await;
    assert_eq!(b.count("SELECT count(*) FROM howdah.history WHERE attempt = 1").await, 1);
}

#[tokio::test]
async fn a_worker_that_has_asked_to_drain_takes_its_last_job_along_when_the_broker_stops() {
    let a = TestBroker::start_with(without_expiry).await;
    let b = a.another().await;
    let mut worker = a.worker("d").await;
    a.enqueue("d").await;
    let job = worker.next().await;
    worker.drain().await;
    assert_eq!(worker.drained().await.reason(), DrainReason::Requested);
    let stopping = tokio::spawn(a.stop());
    assert_eq!(worker.drained().await.reason(), DrainReason::Shutdown);
    let back = b.worker("d").resumes(&worker.welcome.session_id, &[&job]);
    worker.vanish();
    stopping.await.expect("a good end");
    back.await.ack(&job).await;
    assert_eq!(b.count("SELECT count(*) FROM howdah.history WHERE attempt = 1").await, 1);
}

#[tokio::test]
async fn a_broker_with_a_silent_worker_still_stops_by_its_deadline() {
    let broker = TestBroker::start_with(|c| c.drain_deadline = secs(3)).await;
    let _worker = broker.worker("d").await;
    let silent = tokio::net::TcpStream::connect(broker.address()).await.expect("connect");
    // The broker stops at its drain deadline of 3 s. Otherwise it would wait forever for the worker and for the silent
    // connection.
    broker.stop().await;
    drop(silent);
}

#[tokio::test]
async fn a_worker_that_comes_back_while_its_broker_begins_to_stop_is_told_to_leave() {
    let broker = TestBroker::start().await;
    let mut witness = broker.worker("other").window(1).await;
    broker.enqueue("resumed").await;
    let mut worker = broker.worker("resumed").window(1).await;
    let job = worker.next().await;
    let back = broker.worker("resumed").resumes(&worker.welcome.session_id, &[&job]);
    worker.vanish();
    // Blocks the adoption of the worker's lease, so that the broker begins to stop during the adoption.
    let database = broker.database.clone();
    let gate = gate(&database, "leased", "UPDATE").await;
    let coming = tokio::spawn(async move { back.await });
    gate.reached(&database).await;
    let stopping = tokio::spawn(broker.stop());
    witness.drained().await;
    gate.open(&database).await;
    let mut worker = coming.await.unwrap();
    assert_eq!(worker.welcome.kept.len(), 1);
    worker.drained().await;
    worker.vanish();
    witness.vanish();
    stopping.await.unwrap();
}
