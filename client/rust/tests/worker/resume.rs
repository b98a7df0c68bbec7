//! Tests of a worker whose stream breaks, is silent, or is drained.

use std::time::Duration;

use howdah_client::{
    Client, Job, Outcome, WorkerState,
    proto::{self, CancelReason, DrainReason},
};
use tonic::Status;

use crate::{
    Held, held, ids,
    support::{FakeBroker, job, prost_duration, within},
};

#[tokio::test]
async fn an_outcome_is_sent_again_until_it_is_confirmed() {
    let mut broker = FakeBroker::start().await;
    let mut worker = Held::start(&broker.client().await);
    let mut stream = broker.welcomed().await;
    stream.push(vec![job(1), job(2), job(3)]).await;
    let (_, end_1) = worker.begun().await;
    let (_, end_2) = worker.begun().await;
    let (_running, end_3) = worker.begun().await;
    end_1.send(Outcome::ack("one")).unwrap();
    let first = stream.outcomes(1).await;
    stream.confirm(&first).await;
    end_2.send(Outcome::ack("two")).unwrap();
    let second = stream.outcomes(1).await;
    stream.break_off().await;

    let mut stream = broker.welcomed().await;
    assert_eq!(stream.subscribe.session_id, "s1");
    assert_eq!(held(&stream.subscribe), [2, 3], "the running job and the one with an unconfirmed outcome");
    assert_eq!(stream.outcomes(1).await, second);
    end_3.send(Outcome::ack("three")).unwrap();
    let third = stream.outcomes(1).await;
    stream.confirm(&second).await;
    stream.confirm(&third).await;

    let stopping = tokio::spawn(async move { worker.handle.stop().await });
    stream.finish().await;
    let report = within(stopping).await.unwrap().unwrap();
    assert_eq!((report.acked, report.lost, report.reconnects), (3, 0, 1));
}

#[tokio::test]
async fn an_unconfirmed_outcome_is_sent_again_even_if_its_lease_is_lost() {
    let mut broker = FakeBroker::start().await;
    let mut worker = Held::start(&broker.client().await);
    let mut stream = broker.welcomed().await;
    stream.push(vec![job(1)]).await;
    worker.begun().await.1.send(Outcome::ack("done")).unwrap();
    let outcomes = stream.outcomes(1).await;
    stream.break_off().await;

    let mut stream = broker.stream().await;
    let mut welcome = stream.welcome_keeping_all();
    welcome.lost = std::mem::take(&mut welcome.kept);
    stream.welcome(welcome).await;
    assert_eq!(stream.outcomes(1).await, outcomes);
    stream.confirm(&outcomes).await;
    let stopping = tokio::spawn(async move { worker.handle.stop().await });
    stream.finish().await;
    let report = within(stopping).await.unwrap().unwrap();
    assert_eq!((report.acked, report.lost), (1, 0));
}

#[tokio::test]
async fn handlers_are_cancelled_after_the_grace_time_but_a_kept_lease_is_still_settled() {
    let mut broker = FakeBroker::start().await;
    let mut worker = Held::start(&broker.client().await);
    let stream = broker.stream().await;
    let mut welcome = stream.welcome_keeping_all();
    welcome.session_grace = Some(prost_duration(Duration::from_millis(50)));
    stream.welcome(welcome).await;
    stream.push(vec![job(1)]).await;
    let (running, end) = worker.begun().await;
    stream.break_off().await;
    // At this point, the worker has opened the next stream, and the broker has not sent its Welcome yet.
    let stream = broker.stream().await;
    within(running.cancelled()).await;
    assert_eq!(running.cancel_reason(), Some(CancelReason::LeaseLost));
    end.send(Outcome::ack("finished all the same")).unwrap();
    stream.welcome(stream.welcome_keeping_all()).await;
    let mut stream = stream;
    assert_eq!(ids(&stream.outcomes(1).await), [1]);
    worker.handle.abort();
}

#[tokio::test]
async fn after_a_drain_a_worker_reconnects_to_the_next_broker_and_keeps_its_leases() {
    let mut first = FakeBroker::start().await;
    let mut second = FakeBroker::start().await;
    let client = Client::builder().endpoint(first.url()).endpoint(second.url()).connect().await.unwrap();
    let mut worker = Held::start(&client);
    let mut stream = first.welcomed().await;
    stream.push(vec![job(1), job(2)]).await;
    let (_, end_1) = worker.begun().await;
    let (running, end_2) = worker.begun().await;
    stream.drain(DrainReason::Shutdown, Some(Duration::from_hours(1))).await;
    // The Drain gives the worker an hour to reconnect. Meanwhile the old stream still accepts outcomes.
    end_1.send(Outcome::ack("")).unwrap();
    let outcomes = stream.outcomes(1).await;
    stream.confirm(&outcomes).await;
    // A second Drain asks the worker to reconnect at once.
    stream.drain(DrainReason::Shutdown, Some(Duration::ZERO)).await;

    let mut stream = second.welcomed().await;
    assert_eq!(stream.subscribe.session_id, "s1");
    assert_eq!(held(&stream.subscribe), [2]);
    assert!(!running.is_cancelled());
    end_2.send(Outcome::ack("")).unwrap();
    let outcomes = stream.outcomes(1).await;
    stream.confirm(&outcomes).await;
    let stopping = tokio::spawn(async move { worker.handle.stop().await });
    stream.finish().await;
    assert_eq!(within(stopping).await.unwrap().unwrap().acked, 2);
}

#[tokio::test]
async fn an_idle_worker_closes_a_drained_stream_at_once_and_comes_back() {
    let mut broker = FakeBroker::start().await;
    let worker = Held::start(&broker.client().await);
    let mut stream = broker.welcomed().await;
    stream.drain(DrainReason::Shutdown, Some(Duration::from_millis(50))).await;
    stream.closed().await;
    drop(stream);
    let stream = broker.welcomed().await;
    assert_eq!(held(&stream.subscribe), Vec::<i64>::new());
    worker.handle.abort();
}

#[tokio::test]
async fn a_silent_stream_is_dead_after_three_ping_intervals() {
    let mut broker = FakeBroker::start().await;
    let worker = Held::start(&broker.client().await);
    let stream = broker.stream().await;
    let mut welcome = stream.welcome_keeping_all();
    welcome.ping_interval = Some(prost_duration(Duration::from_millis(20)));
    stream.welcome(welcome).await;
    let _next = broker.stream().await;
    worker.handle.abort();
    drop(stream);
}

#[tokio::test]
async fn a_worker_that_is_refused_ends_with_the_reason() {
    let broker = FakeBroker::start().await;
    broker.refuse_next_stream(Status::invalid_argument("windows[0].task_type is empty"));
    let worker = Held::start(&broker.client().await);
    let error = within(worker.handle.joined()).await.unwrap_err();
    assert_eq!(error.code(), tonic::Code::InvalidArgument);
    assert_eq!(worker.handle.state(), WorkerState::Stopped);
}

#[tokio::test]
async fn a_worker_waits_for_a_broker_that_is_not_ready() {
    let mut broker = FakeBroker::start().await;
    broker.refuse_next_stream(Status::unavailable("starting"));
    broker.refuse_next_stream(Status::unavailable("starting"));
    let worker = Held::start(&broker.client().await);
    let _stream = broker.welcomed().await;
    let state = within(worker.handle.connected()).await;
    let expected = WorkerState::Connected { broker: "fake".into(), session_id: "s1".into() };
    assert_eq!(state, expected);
    worker.handle.abort();
}

/// Runs a handler that blocks the only thread of its runtime, like a long computation.
#[tokio::test(flavor = "multi_thread")]
async fn a_ping_is_answered_while_a_handler_blocks_the_runtime() {
    let mut broker = FakeBroker::start().await;
    let address = format!("http://{}", broker.address);
    let (begun, has_begun) = tokio::sync::oneshot::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let blocked = std::sync::Mutex::new(Some((begun, ended)));
    let worker = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = Client::connect(address).await.unwrap();
            let block = move |_: Job| {
                let (begun, ended) = blocked.lock().unwrap().take().unwrap();
                async move {
                    begun.send(()).unwrap();
                    ended.recv().unwrap();
                    Outcome::ack("")
                }
            };
            client.worker().handle("t", block).max_jobs(1_u64).build().run().await.unwrap()
        })
    });
    let mut stream = broker.welcomed().await;
    stream.push(vec![job(1)]).await;
    within(has_begun).await.unwrap();
    // Because of `max_jobs`, the worker may send a drain request before the Pong. The loop skips the drain request.
    let mut pongs = 0;
    for _ in 0..3 {
        stream.send(proto::work_response::Message::Ping(proto::Ping {})).await;
    }
    while pongs == 0 {
        pongs += usize::from(stream.next().await == proto::work_request::Message::Pong(proto::Pong {}));
    }
    end.send(()).unwrap();
    let mut outcomes = Vec::new();
    while outcomes.is_empty() {
        match stream.next().await {
            proto::work_request::Message::Settle(settle) => outcomes = settle.outcomes,
            proto::work_request::Message::Drain(_) => stream.drain(DrainReason::Requested, None).await,
            _ => {}
        }
    }
    stream.confirm(&outcomes).await;
    let report = tokio::task::spawn_blocking(move || worker.join().unwrap());
    assert_eq!(within(report).await.unwrap().acked, 1);
}
