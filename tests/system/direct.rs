//! Tests that jobs enqueued directly into `leased` keep the order, are delivered once and are not lost.

use howdah_proto::v1::StreamEnqueueRequest;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::support::*;

#[tokio::test]
async fn with_nothing_waiting_and_room_at_a_worker_a_job_is_leased_as_it_is_stored() {
    let broker = TestBroker::start().await;
    let log = "CREATE TABLE seen (id bigint);
               CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS
                   $$ BEGIN INSERT INTO public.seen VALUES (new.id); RETURN new; END $$;
               CREATE TRIGGER see AFTER INSERT ON howdah.ready FOR EACH ROW EXECUTE FUNCTION see()";
    broker.sql(log).await;
    let mut worker = broker.worker("d").await;
    // The broker stores a job directly in `leased` only while it knows that no job is ready. At its start and after a poll the
    // broker does not know this, and the job goes through `ready`.
    let (mut in_a_row, mut all) = (0, 0);
    let all_direct = async {
        while in_a_row < 15 {
            let before = broker.count("SELECT count(*) FROM seen").await;
            let request = broker.enqueue(new_job("d", "x"));
            let id = if all % 2 == 0 { request.await } else { request.request_key(&format!("key {all}")).await };
            let job = worker.next().await;
            assert_eq!((job.id, job.attempt, job.max_attempts), (id, 1, 10));
            worker.ack(&job).await;
            let was_direct = broker.count("SELECT count(*) FROM seen").await == before;
            in_a_row = if was_direct { in_a_row + 1 } else { 0 };
            all += 1;
        }
    };
    with_timeout("15 jobs in a row that were enqueued directly into leased", all_direct).await;
    assert_eq!(broker.count("SELECT count(*) FROM howdah.job WHERE state = 'succeeded'").await, all);
    drop(worker);
    broker.stop().await;
}

#[tokio::test]
async fn a_job_never_overtakes_those_that_wait_for_the_same_worker() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("d").window(3).await;
    let (send, requests) = mpsc::channel(4);
    let mut client = broker.jobs();
    let producer = tokio::spawn(async move {
        let mut answers = client.stream_enqueue(ReceiverStream::new(requests)).await.expect("stream").into_inner();
        while let Some(answer) = answers.message().await.expect("answer") {
            assert_eq!(answer.error, None);
        }
    });
    let sender = tokio::spawn(async move {
        for sequence in 0..400_u64 {
            // Sends requests with one, two and three jobs, so that some requests fit into the window and some do not.
            let jobs = (0..=sequence % 3).map(|n| new_job("d", format!("{sequence:04}.{n}"))).collect();
            send.send(StreamEnqueueRequest { sequence, jobs, ..Default::default() }).await.expect("send");
        }
    });
    let mut got = Vec::new();
    for _ in 0..799 {
        let job = worker.next().await;
        worker.ack(&job).sent().await;
        got.push(String::from_utf8(job.payload.to_vec()).expect("text"));
    }
    assert!(got.is_sorted(), "out of order at {:?}", got.iter().zip(&got[1..]).find(|(a, b)| a > b));
    with_timeout("the end of the sender", sender).await.expect("no panic");
    with_timeout("the end of the producer", producer).await.expect("no panic");
}

#[tokio::test]
async fn a_repeated_request_reaches_a_waiting_worker_once() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("d").window(100).await;
    let two = || broker.enqueue_all([new_job("d", "1"), new_job("d", "2")]).request_key("k");
    let first = two().await;
    let again = two().outcomes().await;
    assert_eq!(
        [(again[0].id, again[0].is_new), (again[1].id, again[1].is_new)],
        [(first[0], false), (first[1], false)]
    );
    let last = broker.enqueue(new_job("d", "3")).request_key("other").await;
    let got = [worker.next().await.id, worker.next().await.id, worker.next().await.id];
    assert_eq!(got, [first[0], first[1], last]);
    assert_eq!(broker.count("SELECT count(*) FROM howdah.job").await, 3);
}

#[tokio::test]
async fn a_broker_whose_lease_has_expired_stores_jobs_and_leases_none() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("d").await;
    broker.enqueue(new_job("d", "before")).await;
    let before = worker.next().await;
    worker.ack(&before).await;
    broker.sql("UPDATE howdah.broker SET expires = now() - interval '1 second'").await;
    let id = broker.enqueue(new_job("d", "after")).request_key("k").await;
    // The broker's row has expired, so the job is delivered only after the broker has registered again.
    let after = worker.next().await;
    assert_eq!((after.id, after.attempt), (id, 1));
    worker.ack(&after).await;
    let again = broker.enqueue(new_job("d", "after")).request_key("k").outcome().await;
    assert_eq!((again.id, again.is_new), (id, false));
}

#[tokio::test]
async fn a_request_larger_than_the_free_window_is_delivered_in_order_within_the_window() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let mut worker = broker.worker("d").window(4).await;
    broker.enqueue(new_job("d", "warm up")).await;
    let job = worker.next().await;
    worker.ack(&job).await;
    for id in broker.enqueue_all((0..50).map(|n| new_job("d", format!("{n}")))).await {
        assert!(worker.buffered() < 4, "the window was exceeded");
        let job = worker.next().await;
        assert_eq!((job.id, job.attempt), (id, 1));
        worker.ack(&job).sent().await;
    }
    broker.until("all have succeeded", "SELECT count(*) = 51 FROM howdah.job WHERE state = 'succeeded'").await;
    drop(worker);
    broker.stop().await;
}
