//! Tests leases that are not the sender's: unknown, foreign, stale and forged. Also tests streams without a valid first
//! message.

use std::time::Duration;

use howdah_proto::v1::{
    self, Extend, ExtendJobsRequest, Extension, JobState, Lease, LeasedJob, Outcome, Release, Settle,
    SettleJobsRequest, SettleResult, SettleStatus, Snooze, StreamEnqueueRequest, Subscribe, Window, outcome,
    work_request, work_response,
};
use tonic::Code;
use tonic_types::StatusExt as _;

use super::{assert_serves, enqueue, fingerprint, get, raw, refused};
use crate::support::{
    OutcomeOptions as _, TestBroker, Worker, ack, database, jobs_client, nack, new_job, open, with_timeout,
    workers_client,
};

/// Returns outcomes of all kinds for this lease.
fn settlements(lease: Lease) -> Vec<Outcome> {
    let job = LeasedJob { id: lease.id, token: lease.token, ..Default::default() };
    let minute = Some(prost_types::Duration { seconds: 60, nanos: 0 });
    let of_lease = |outcome| Outcome { id: lease.id, token: lease.token, outcome: Some(outcome) };
    vec![
        ack(&job),
        nack(&job, "not mine").at_once(),
        of_lease(outcome::Outcome::Snooze(Snooze { delay: minute })),
        of_lease(outcome::Outcome::Release(Release {})),
    ]
}

/// Returns leases that are invalid for the sender: wrong tokens of a job that it holds, wrong ids, another worker's job, and a
/// lease that the sender lost.
fn foreign(own: &LeasedJob, other: &LeasedJob, stale: Lease) -> Vec<Lease> {
    let mut leases = vec![stale];
    for token in [other.token, own.token ^ 1, !own.token, -own.token, own.token.swap_bytes(), 0, -1, i64::MIN, i64::MAX]
    {
        leases.push(Lease::new(own.id, token));
    }
    for id in [other.id + 1_000_000, 0, -1, -own.id, i64::MIN, i64::MAX] {
        leases.push(Lease::new(id, own.token));
    }
    leases.push(Lease::new(other.id, own.token));
    leases
}

#[track_caller]
fn assert_lost_alike(answers: &[SettleResult]) {
    for answer in answers {
        assert_eq!(answer.status(), SettleStatus::LeaseLost, "{answer:?}");
        assert_eq!(answer.message, answers[0].message, "the message tells wrong leases apart");
    }
}

#[tokio::test]
async fn a_lease_that_is_not_the_senders_is_lost_whatever_is_wrong_with_it_and_changes_nothing() {
    let database = database().await;
    let broker = TestBroker::on_with(&database, |c| c.session_grace = Duration::from_millis(1)).await;
    enqueue(&broker.grpc, vec![new_job("t", ""); 3]).await;
    // A worker vanishes with a job, which is delivered again with a new token. So the old lease is stale.
    let mut gone = Worker::connect(&broker.grpc, "t", 1).await;
    let stale = gone.next().await;
    gone.vanish();
    let mut worker = Worker::connect(&broker.grpc, "t", 2).await;
    let mut other = Worker::connect(&broker.grpc, "t", 1).await;
    let (first, second, others) = (worker.next().await, worker.next().await, other.next().await);
    let stale = Lease::new(stale.id, stale.token);
    let hostile = foreign(&first, &others, stale);
    let before = fingerprint(&database).await;

    let mut workers = workers_client(&broker.grpc).await;
    let mut answers = Vec::new();
    let minute = Some(prost_types::Duration { seconds: 60, nanos: 0 });
    for lease in &hostile {
        for outcome in settlements(*lease) {
            let request = SettleJobsRequest { outcomes: vec![outcome.clone()] };
            answers.extend(workers.settle_jobs(request).await.expect("answers").into_inner().results);
            worker.settle(vec![outcome]).await;
            answers.push(worker.settled().await);
        }
        let extensions = vec![Extension { id: lease.id, token: lease.token, duration: minute }];
        let request = ExtendJobsRequest { extensions: extensions.clone() };
        answers.extend(workers.extend_jobs(request).await.expect("answers").into_inner().results);
        worker.send(work_request::Message::Extend(Extend { extensions })).await;
        let Some(work_response::Message::Extended(extended)) = worker.message().await.unwrap() else {
            panic!("no answer")
        };
        answers.extend(extended.results);
    }
    assert_eq!(answers.len(), hostile.len() * 10);
    assert_lost_alike(&answers);
    assert_eq!(fingerprint(&database).await, before, "a wrong lease changed stored data");
    // A worker does not get another worker's lease by listing it as held.
    let mut claims = Worker::subscribe(&broker.grpc, Subscribe { held: vec![hostile[2]], ..Default::default() }).await;
    assert_eq!((claims.lost(1).await.len(), claims.welcome.kept.len()), (1, 0));

    worker.ack(&first).await;
    worker.ack(&second).await;
    other.ack(&others).await;
}

#[tokio::test]
async fn bad_tokens_among_good_ones_in_one_message_harm_none_of_them() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    enqueue(&broker.grpc, vec![new_job("t", ""); 100]).await;
    let mut worker = Worker::connect(&broker.grpc, "t", 100).await;
    let (mut outcomes, mut expected) = (Vec::new(), Vec::new());
    for n in 0..100 {
        let mut job = worker.next().await;
        job.token ^= n % 2;
        outcomes.push(ack(&job));
        expected.push((job.id, if n % 2 == 0 { SettleStatus::Ok } else { SettleStatus::LeaseLost }));
    }
    let mut workers = workers_client(&broker.grpc).await;
    let answers = workers.settle_jobs(SettleJobsRequest { outcomes }).await.expect("answers").into_inner().results;
    assert_eq!(answers.iter().map(|a| (a.id, a.status())).collect::<Vec<_>>(), expected, "in the order of the request");
    assert_eq!(database.count("SELECT count(*) FROM howdah.leased").await, 50);
}

#[tokio::test]
async fn of_two_outcomes_for_one_job_in_one_message_the_first_counts_whichever_they_are() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let mut workers = workers_client(&broker.grpc).await;
    let states = [JobState::Succeeded, JobState::Ready, JobState::Scheduled, JobState::Ready];
    for (n, state) in states.into_iter().enumerate() {
        let task_type = format!("t{n}");
        let id = enqueue(&broker.grpc, vec![new_job(&task_type, "")]).await[0].id;
        let mut worker = Worker::connect(&broker.grpc, &task_type, 1).await;
        let job = worker.next().await;
        worker.send(work_request::Message::Window(Window { task_type, jobs: 0, bytes: 0 })).await;
        worker.ping().await;
        let mut outcomes = settlements(Lease::new(job.id, job.token));
        outcomes.rotate_left(n);
        let answers = workers.settle_jobs(SettleJobsRequest { outcomes }).await.expect("answers").into_inner().results;
        assert_eq!((answers.len(), answers[0].status()), (4, SettleStatus::Ok), "{answers:?}");
        assert_lost_alike(&answers[1..]);
        assert_eq!(get(&broker.grpc, id).await.state(), state);
    }
}

#[tokio::test]
async fn a_worker_that_names_a_lease_twice_when_it_comes_back_keeps_the_lease() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    enqueue(&broker.grpc, vec![new_job("t", "")]).await;
    let mut worker = Worker::connect(&broker.grpc, "t", 1).await;
    let job = worker.next().await;
    let (good, forged) = (Lease::new(job.id, job.token), Lease::new(job.id, job.token.wrapping_add(1)));
    for held in [vec![good, good], vec![good, forged], vec![forged, good]] {
        let session_id = worker.welcome.session_id.clone();
        let subscribe = Subscribe { session_id, held, ..Default::default() };
        let forgeries = subscribe.held.iter().filter(|lease| **lease == forged).count();
        worker = with_timeout("a welcome", Worker::try_subscribe(&broker.grpc, subscribe)).await.expect("a welcome");
        worker.lost(forgeries).await;
        assert!(worker.welcome.kept.contains(&good), "{:?}", worker.welcome);
        assert!(!worker.welcome.kept.contains(&forged), "{:?}", worker.welcome);
    }
    worker.ack(&job).await;
}

#[tokio::test]
async fn a_worker_that_names_one_job_a_hundred_thousand_times_does_not_block_other_callers() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    enqueue(&broker.grpc, vec![new_job("t", "")]).await;
    let mut worker = Worker::connect(&broker.grpc, "t", 1).await;
    let job = worker.next().await;
    let held = (1..=100_000).map(|n| Lease::new(job.id, job.token.wrapping_add(n))).collect();
    let claims = tokio::spawn({
        let grpc = broker.grpc.clone();
        async move {
            let mut claims = Worker::subscribe(&grpc, Subscribe { held, ..Default::default() }).await;
            (claims.lost(100_000).await.len(), claims.welcome.kept.len())
        }
    });
    assert_serves(&broker.grpc).await;
    assert_eq!(claims.await.expect("no panic"), (100_000, 0));
    worker.ack(&job).await;
}

#[tokio::test]
async fn a_stream_that_does_not_begin_with_subscribe_is_refused_and_does_nothing() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    enqueue(&broker.grpc, vec![new_job("t", "")]).await;
    let mut worker = Worker::connect(&broker.grpc, "t", 1).await;
    let job = worker.next().await;
    let before = fingerprint(&database).await;
    let minute = Some(prost_types::Duration { seconds: 60, nanos: 0 });
    let extension = Extension { id: job.id, token: job.token, duration: minute };
    let messages = [
        work_request::Message::Settle(Settle { outcomes: vec![ack(&job)] }),
        work_request::Message::Extend(Extend { extensions: vec![extension] }),
        work_request::Message::Window(Window { task_type: "t".into(), jobs: 1, bytes: 0 }),
        work_request::Message::Drain(v1::DrainRequest {}),
        work_request::Message::Ping(v1::Ping {}),
    ];
    let assert_wrong = |status: &tonic::Status| {
        assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
        let details = status.get_error_details();
        assert_eq!(
            details.error_info().map(|i| (i.domain.as_str(), i.reason.as_str())),
            Some(("howdah.dev", "WRONG_MESSAGE"))
        );
    };
    for message in messages {
        let (send, mut receive) = open(&broker.grpc).await;
        send.send(v1::WorkRequest { message: Some(message) }).await.expect("send");
        assert_wrong(&refused(receive.message()).await);
    }
    // Tests a stream that ends without a message, and a stream with a second `Subscribe`.
    let (send, mut receive) = open(&broker.grpc).await;
    drop(send);
    assert_wrong(&refused(receive.message()).await);
    let mut twice = Worker::connect(&broker.grpc, "t", 1).await;
    twice.send(work_request::Message::Subscribe(Subscribe::default())).await;
    assert_wrong(&refused(twice.message()).await);

    assert_eq!(fingerprint(&database).await, before, "a refused stream changed stored data");
    worker.ack(&job).await;
}

/// Subscribes at a broker with a short timeout for the first message. Tries again, because on a slow machine even a message
/// that is sent at once may arrive late.
async fn in_time(grpc: &str, task_type: &str) -> Worker {
    with_timeout("a worker in time", async {
        loop {
            let subscribe = Subscribe { task_type: task_type.into(), window: 1, ..Default::default() };
            match Worker::try_subscribe(grpc, subscribe).await {
                Ok(worker) => return worker,
                Err(status) => assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}"),
            }
        }
    })
    .await
}

#[tokio::test]
async fn silence_after_opening_ends_a_stream_and_silence_later_does_not() {
    let database = database().await;
    let broker = TestBroker::on_with(&database, |c| c.limits.first_message = Duration::from_millis(200)).await;
    let mut worker = in_time(&broker.grpc, "t").await;
    let (_requests, waiting) = tokio::sync::mpsc::channel::<StreamEnqueueRequest>(1);
    let waiting = tokio_stream::wrappers::ReceiverStream::new(waiting);
    let mut client = jobs_client(&broker.grpc).await;
    let mut silent = with_timeout("a stream", client.stream_enqueue(waiting)).await.expect("a stream").into_inner();
    let status = refused(silent.message()).await;
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
    assert!(status.message().contains("200ms"), "{status:?}");

    let (_send, mut receive) = open(&broker.grpc).await;
    let status = refused(receive.message()).await;
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
    assert!(status.message().contains("200ms"), "{status:?}");

    // Sends five bytes of a first message of a hundred bytes. The broker treats an incomplete message like a missing
    // one.
    let mut http = raw::Http2::connect(&broker.grpc).await;
    let half = raw::frame(raw::Frame::DATA, 0, 1, &[0, 0, 0, 0, 100, 10, 98, 10, 1, b't']);
    http.write(&[raw::headers(1, raw::WORK), half].concat()).await.expect("write");
    while with_timeout("the end of the stream", http.next()).await.is_some_and(|f| !f.ends_stream()) {}

    // The timeout for the first message affects neither existing workers nor new workers that subscribe in time.
    let mut another = in_time(&broker.grpc, "u").await;
    for (worker, task_type) in [(&mut worker, "t"), (&mut another, "u")] {
        enqueue(&broker.grpc, vec![new_job(task_type, "")]).await;
        let job = worker.next().await;
        worker.ack(&job).await;
    }
}
