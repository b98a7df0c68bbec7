//! Jobs that go straight to a worker: never past others, never twice, never lost.

use howdah_proto::v1::{EnqueueJobsRequest, NewJob, SettleStatus, StreamEnqueueRequest};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::support::{TestBroker, Worker, ack, database, jobs_client, new_job, soon};

/// Enqueues in one request; the ids.
async fn enqueue(broker: &TestBroker, jobs: Vec<NewJob>, request_key: &str) -> Vec<(i64, bool)> {
    let request = EnqueueJobsRequest { jobs, request_key: request_key.into() };
    let answer = soon("an answer", jobs_client(&broker.grpc).await.enqueue_jobs(request)).await;
    answer.expect("enqueue").into_inner().jobs.iter().map(|j| (j.id, j.is_new)).collect()
}

#[tokio::test]
async fn with_nothing_waiting_and_room_at_a_worker_a_job_is_leased_as_it_is_stored() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let log = "CREATE TABLE seen (id bigint);
               CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS
                   $$ BEGIN INSERT INTO seen VALUES (new.id); RETURN new; END $$;
               CREATE TRIGGER see AFTER INSERT ON howdah.ready FOR EACH ROW EXECUTE FUNCTION see()";
    database.connect().await.batch_execute(log).await.expect("trigger");
    let mut worker = Worker::connect(&broker.grpc, "d", 10).await;
    for n in 0..20 {
        let key = if n % 2 == 0 { String::new() } else { format!("key {n}") };
        let ids = enqueue(&broker, vec![new_job("d", "x")], &key).await;
        let job = worker.job().await;
        assert_eq!((job.id, job.attempt, job.max_attempts), (ids[0].0, 1, 10));
        assert_eq!(worker.ack(&job).await.status(), SettleStatus::Ok);
    }
    // The first may come before the broker knows that nothing waits.
    let through_ready = database.count("SELECT count(*) FROM seen").await;
    assert!(through_ready <= 5, "{through_ready} of 20 jobs went through ready");
    assert_eq!(database.count("SELECT count(*) FROM howdah.job WHERE state = 'succeeded'").await, 20);
    broker.stop().await;
}

#[tokio::test]
async fn a_job_never_overtakes_those_that_wait_for_the_same_worker() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let mut worker = Worker::connect(&broker.grpc, "d", 3).await;
    let (send, requests) = mpsc::channel(4);
    let mut client = jobs_client(&broker.grpc).await;
    let producer = tokio::spawn(async move {
        let mut answers = client.stream_enqueue(ReceiverStream::new(requests)).await.expect("stream").into_inner();
        while let Some(answer) = answers.message().await.expect("answer") {
            assert_eq!(answer.error, None);
        }
    });
    let sender = tokio::spawn(async move {
        for sequence in 0..400_u64 {
            // Runs of one, two and three: some fit the room there is, some do not.
            let jobs = (0..=sequence % 3).map(|n| new_job("d", format!("{sequence:04}.{n}"))).collect();
            send.send(StreamEnqueueRequest { sequence, jobs, ..Default::default() }).await.expect("send");
        }
    });
    let mut got = Vec::new();
    for _ in 0..799 {
        let job = worker.job().await;
        worker.settle(vec![ack(&job)]).await;
        got.push(String::from_utf8(job.payload.to_vec()).expect("text"));
    }
    assert!(got.is_sorted(), "out of order at {:?}", got.iter().zip(&got[1..]).find(|(a, b)| a > b));
    soon("the sender", sender).await.expect("no panic");
    soon("the producer", producer).await.expect("no panic");
}

#[tokio::test]
async fn a_repeated_request_reaches_a_waiting_worker_once() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let mut worker = Worker::connect(&broker.grpc, "d", 100).await;
    let first = enqueue(&broker, vec![new_job("d", "1"), new_job("d", "2")], "k").await;
    let again = enqueue(&broker, vec![new_job("d", "1"), new_job("d", "2")], "k").await;
    assert_eq!(again, [(first[0].0, false), (first[1].0, false)]);
    let last = enqueue(&broker, vec![new_job("d", "3")], "other").await;
    let got = [worker.job().await.id, worker.job().await.id, worker.job().await.id];
    assert_eq!(got, [first[0].0, first[1].0, last[0].0]);
    assert_eq!(database.count("SELECT count(*) FROM howdah.job").await, 3);
}

#[tokio::test]
async fn a_broker_whose_lease_has_expired_stores_jobs_and_leases_none() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let mut worker = Worker::connect(&broker.grpc, "d", 10).await;
    enqueue(&broker, vec![new_job("d", "before")], "").await;
    let before = worker.job().await;
    assert_eq!(worker.ack(&before).await.status(), SettleStatus::Ok);
    let expire = "UPDATE howdah.broker SET expires = now() - interval '1 second'";
    database.connect().await.batch_execute(expire).await.expect(expire);
    let ids = enqueue(&broker, vec![new_job("d", "after")], "k").await;
    // It comes as soon as the broker has registered anew.
    let after = worker.job().await;
    assert_eq!((after.id, after.attempt), (ids[0].0, 1));
    assert_eq!(worker.ack(&after).await.status(), SettleStatus::Ok);
    assert_eq!(enqueue(&broker, vec![new_job("d", "after")], "k").await, [(ids[0].0, false)]);
}

#[tokio::test]
async fn a_request_too_large_for_the_room_there_is_goes_through_ready_whole() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let mut worker = Worker::connect(&broker.grpc, "d", 4).await;
    enqueue(&broker, vec![new_job("d", "warm up")], "").await;
    let job = worker.job().await;
    worker.ack(&job).await;
    let jobs = (0..50).map(|n| new_job("d", format!("{n}"))).collect();
    let ids = enqueue(&broker, jobs, "").await;
    for (id, _) in ids {
        assert!(worker.buffered() < 4, "the window was exceeded");
        let job = worker.job().await;
        assert_eq!((job.id, job.attempt), (id, 1));
        worker.settle(vec![ack(&job)]).await;
    }
    broker.stop().await;
    assert_eq!(database.count("SELECT count(*) FROM howdah.job WHERE state = 'succeeded'").await, 51);
}
