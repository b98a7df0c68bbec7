//! Tests of cancelled jobs, and of the stop of a worker.

use std::time::Duration;

use howdah_client::{
    Error, Job, Outcome, WorkerState,
    proto::{
        self, CancelReason, DrainReason, outcome::Outcome as Wire, work_request::Message as FromWorker,
        work_response::Message as ToWorker,
    },
};
use tokio::sync::mpsc;

use crate::{
    Held, ids, nack,
    support::{FakeBroker, job, prost_duration, within},
};

#[tokio::test]
async fn a_cancel_reaches_the_handler_with_its_reason() {
    let mut broker = FakeBroker::start().await;
    let mut worker = Held::start(&broker.client().await);
    let mut stream = broker.welcomed().await;
    stream.push(vec![job(1), job(2)]).await;
    let (cancelled, end_1) = worker.begun().await;
    let (_, end_2) = worker.begun().await;
    let gone = proto::CancelledJob { id: 1, token: 10, reason: CancelReason::Timeout.into() };
    let other_token = proto::CancelledJob { id: 2, token: 99, ..gone };
    let jobs = vec![gone, other_token];
    stream.send(ToWorker::Cancel(proto::Cancel { jobs })).await;
    within(cancelled.cancel_token().cancelled()).await;
    assert_eq!(cancelled.cancel_reason(), Some(CancelReason::Timeout));

    // The cancelled job's outcome is dropped. The other job keeps its lease, because the Cancel names a wrong token.
    end_1.send(Outcome::ack("")).unwrap();
    end_2.send(Outcome::ack("")).unwrap();
    let outcomes = stream.outcomes(1).await;
    assert_eq!(ids(&outcomes), [2]);
    stream.confirm(&outcomes).await;
    let stopping = tokio::spawn(async move { worker.handle.stop().await });
    stream.finish().await;
    let report = within(stopping).await.unwrap().unwrap();
    assert_eq!((report.acked, report.cancelled), (1, 1));
}

#[tokio::test]
async fn a_cancelled_handler_is_dropped_with_abort_cancelled() {
    struct Dropped(mpsc::UnboundedSender<()>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }
    let mut broker = FakeBroker::start().await;
    let (sender, mut dropped) = mpsc::unbounded_channel();
    let (begun_sender, mut begun) = mpsc::unbounded_channel();
    let worker = broker
        .client()
        .await
        .worker()
        .handle("t", move |_: Job| {
            let guard = Dropped(sender.clone());
            let begun = begun_sender.clone();
            async move {
                let _guard = guard;
                begun.send(()).unwrap();
                std::future::pending::<()>().await;
            }
        })
        .abort_cancelled(true)
        .build();
    let handle = worker.start();
    let stream = broker.welcomed().await;
    stream.push(vec![job(1)]).await;
    within(begun.recv()).await.unwrap();
    let jobs = vec![proto::CancelledJob { id: 1, token: 10, reason: CancelReason::Cancelled.into() }];
    stream.send(ToWorker::Cancel(proto::Cancel { jobs })).await;
    within(dropped.recv()).await.unwrap();
    handle.abort();
}

#[tokio::test]
async fn a_stop_waits_for_running_handlers_and_releases_jobs_that_arrive_later() {
    let mut broker = FakeBroker::start().await;
    let mut worker = Held::start(&broker.client().await);
    let mut stream = broker.welcomed().await;
    stream.push(vec![job(1)]).await;
    let (_, end) = worker.begun().await;
    let handle = worker.handle.clone();
    let stopping = tokio::spawn(async move { handle.stop().await });
    assert_eq!(stream.next().await, FromWorker::Drain(proto::DrainRequest {}));
    stream.push(vec![job(2)]).await;
    let released = stream.outcomes(1).await;
    assert_eq!(released[0].id, 2);
    assert_eq!(released[0].outcome, Some(Wire::Release(proto::Release {})));
    stream.confirm(&released).await;
    stream.drain(DrainReason::Requested, None).await;
    end.send(Outcome::ack("")).unwrap();
    let outcomes = stream.outcomes(1).await;
    assert!(!stopping.is_finished(), "the stop waits for the broker's confirmation");
    stream.confirm(&outcomes).await;
    stream.closed().await;
    drop(stream);
    let report = within(stopping).await.unwrap().unwrap();
    assert_eq!((report.acked, report.released), (1, 1));
    assert_eq!(worker.handle.state(), WorkerState::Stopped);
}

#[tokio::test]
async fn after_the_stop_timeout_handlers_are_cancelled_and_unfinished_jobs_released() {
    let mut broker = FakeBroker::start().await;
    let mut worker = Held::start_with(&broker.client().await, Duration::from_millis(200));
    let mut stream = broker.welcomed().await;
    stream.push(vec![job(1), job(2)]).await;
    let (willing, end) = worker.begun().await;
    let (_deaf, _end_of_deaf) = worker.begun().await;
    let stopping = tokio::spawn(async move { worker.handle.stop().await });
    assert_eq!(stream.next().await, FromWorker::Drain(proto::DrainRequest {}));
    stream.drain(DrainReason::Requested, None).await;
    within(willing.cancelled()).await;
    assert_eq!(willing.cancel_reason(), None, "the broker did not cancel it");
    end.send(Outcome::retry("stopped half way")).unwrap();
    let first = stream.outcomes(1).await;
    assert_eq!(nack(&first[0]).error, "stopped half way");
    let second = stream.outcomes(1).await;
    assert_eq!(second[0].id, 2);
    assert_eq!(second[0].outcome, Some(Wire::Release(proto::Release {})));
    stream.confirm(&first).await;
    stream.confirm(&second).await;
    stream.closed().await;
    drop(stream);
    let report = within(stopping).await.unwrap().unwrap();
    assert_eq!((report.failed, report.released), (1, 1));
}

#[tokio::test]
async fn a_worker_without_a_stream_stops_at_once() {
    let broker = FakeBroker::start().await;
    let worker = Held::start(&broker.client().await);
    let report = within(worker.handle.stop()).await.unwrap();
    assert_eq!(report.received, 0);
}

#[tokio::test]
async fn dropping_run_until_aborts_its_handlers() {
    let mut broker = FakeBroker::start().await;
    let (sender, mut begun) = mpsc::unbounded_channel();
    let worker = broker
        .client()
        .await
        .worker()
        .handle("t", move |job: Job| {
            let sender = sender.clone();
            async move {
                sender.send(job).unwrap();
                std::future::pending::<()>().await;
            }
        })
        .build();
    let running = tokio::spawn(worker.run_until(std::future::pending()));
    let stream = broker.welcomed().await;
    stream.push(vec![job(1)]).await;
    let job = within(begun.recv()).await.unwrap();
    running.abort();
    // Aborting the worker drops the handler and the sender that it holds, so the channel is closed.
    assert!(within(begun.recv()).await.is_none());
    let error = job.extend(Duration::from_secs(1)).await.unwrap_err();
    assert!(matches!(error, Error::Stopped(_)), "{error}");
}

/// Starts a worker with a stop timeout of a year, like `howdah work`.
async fn start_with_long_stop_timeout(broker: &FakeBroker) -> howdah_client::WorkerHandle {
    let handler = |_: Job| async { Outcome::ack("") };
    let worker = broker.client().await.worker().handle("t", handler).concurrency(10);
    worker.stop_timeout(Duration::from_hours(365 * 24)).build().start()
}

#[tokio::test]
async fn a_stop_while_the_broker_is_away_ends_when_the_leases_are_lost() {
    let mut broker = FakeBroker::start().await;
    let worker = start_with_long_stop_timeout(&broker).await;
    let mut stream = broker.stream().await;
    let mut welcome = stream.welcome_keeping_all();
    welcome.session_grace = Some(prost_duration(Duration::from_millis(300)));
    stream.welcome(welcome).await;
    stream.push(vec![job(1)]).await;
    assert_eq!(ids(&stream.outcomes(1).await), [1]);
    // The broker has received the outcome, but disconnects before it sends the result.
    drop(broker);
    stream.break_off().await;
    let report = within(worker.stop()).await.unwrap();
    assert_eq!((report.acked, report.unconfirmed), (0, 1));
}

#[tokio::test]
async fn a_stop_long_after_the_leases_were_lost_ends_at_once() {
    let mut broker = FakeBroker::start().await;
    let mut worker = Held::start(&broker.client().await);
    let stream = broker.stream().await;
    let mut welcome = stream.welcome_keeping_all();
    welcome.session_grace = Some(prost_duration(Duration::from_millis(10)));
    stream.welcome(welcome).await;
    stream.push(vec![job(1)]).await;
    let (held, end) = worker.begun().await;
    drop(broker);
    stream.break_off().await;
    within(held.cancelled()).await;
    assert_eq!(held.cancel_reason(), Some(CancelReason::LeaseLost));
    end.send(Outcome::ack("")).unwrap();
    // The stop does not wait for the stop timeout of a year.
    let report = within(worker.handle.stop()).await.unwrap();
    assert_eq!(report.unconfirmed, 1);
}

#[tokio::test]
async fn a_stop_settles_unconfirmed_outcomes_if_the_broker_is_back_in_time() {
    let mut broker = FakeBroker::start().await;
    let worker = start_with_long_stop_timeout(&broker).await;
    let mut stream = broker.welcomed().await;
    stream.push(vec![job(1)]).await;
    assert_eq!(ids(&stream.outcomes(1).await), [1]);
    stream.break_off().await;
    worker.begin_stop();
    let mut stream = broker.welcomed().await;
    let mut outcomes = Vec::new();
    while outcomes.is_empty() {
        match stream.next().await {
            FromWorker::Settle(settle) => outcomes = settle.outcomes,
            other => assert_eq!(other, FromWorker::Drain(proto::DrainRequest {})),
        }
    }
    stream.confirm(&outcomes).await;
    stream.drain(DrainReason::Requested, None).await;
    stream.closed().await;
    drop(stream);
    let report = within(worker.joined()).await.unwrap();
    assert_eq!((report.acked, report.unconfirmed), (1, 0));
}
