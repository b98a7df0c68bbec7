//! What a worker says to its broker, and what it does with the answers.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod support;

use std::time::Duration;

use howdah_client::{
    Client, Error, Job, JobError, Outcome, WorkerHandle, WorkerState,
    proto::{
        self, CancelReason, DrainReason, SettleStatus, outcome::Outcome as Wire,
        work_request::Message as FromWorker, work_response::Message as ToWorker,
    },
};
use support::{FakeBroker, job, prost_duration, within};
use tokio::sync::mpsc;
use tonic::Status;

/// A worker of type `t` whose handlers say when they begin and end when they are told to.
struct Held {
    handle: WorkerHandle,
    begun: mpsc::UnboundedReceiver<(Job, tokio::sync::oneshot::Sender<Outcome>)>,
}

impl Held {
    fn start(client: &Client) -> Self {
        let (sender, begun) = mpsc::unbounded_channel();
        let worker = client
            .worker()
            .handle("t", move |job: Job| {
                let sender = sender.clone();
                async move {
                    let (end, ended) = tokio::sync::oneshot::channel();
                    sender.send((job, end)).unwrap();
                    ended.await.unwrap_or(Outcome::fail("not told how to end"))
                }
            })
            .concurrency(10)
            .stop_timeout(Duration::from_millis(200))
            .build();
        Self {
            handle: worker.start(),
            begun,
        }
    }

    async fn begun(&mut self) -> (Job, tokio::sync::oneshot::Sender<Outcome>) {
        within(self.begun.recv()).await.unwrap()
    }
}

fn ids(outcomes: &[proto::Outcome]) -> Vec<i64> {
    let mut ids: Vec<i64> = outcomes.iter().map(|outcome| outcome.id).collect();
    ids.sort_unstable();
    ids
}

fn held(subscribe: &proto::Subscribe) -> Vec<i64> {
    let mut ids: Vec<i64> = subscribe.held.iter().map(|lease| lease.id).collect();
    ids.sort_unstable();
    ids
}

fn nack(outcome: &proto::Outcome) -> &proto::Nack {
    match &outcome.outcome {
        Some(Wire::Nack(nack)) => nack,
        other => panic!("not a nack but {other:?}"),
    }
}

#[tokio::test]
async fn the_window_of_each_type_is_its_concurrency() {
    let mut broker = FakeBroker::start().await;
    let worker = broker
        .client()
        .await
        .worker()
        .handle(["a", "b"], |_: Job| async {})
        .handle_with("c", 3, |_: Job| async {})
        .concurrency(7)
        .label("host", "here")
        .build();
    let handle = worker.start();
    let stream = broker.welcomed().await;
    let windows = |window: &proto::Window| (window.task_type.clone(), window.jobs);
    let windows: Vec<_> = stream.subscribe.windows.iter().map(windows).collect();
    assert_eq!(windows, [("a".into(), 7), ("b".into(), 7), ("c".into(), 3)]);
    assert_eq!(stream.subscribe.labels["host"], "here");
    assert_eq!(stream.subscribe.session_id, "");
    assert_eq!(stream.subscribe.max_message_bytes, 16 << 20);
    handle.abort();
}

#[tokio::test]
async fn each_way_to_end_a_handler_becomes_its_outcome() {
    let mut broker = FakeBroker::start().await;
    let worker = broker
        .client()
        .await
        .worker()
        .handle("t", |job: Job| async move {
            match job.id {
                1 => Ok(Outcome::ack("result")),
                2 => Err(JobError::retry("again")),
                3 => Err(JobError::fatal("never")),
                4 => Err(JobError::retry_after("later", Duration::from_secs(5))),
                5 => Ok(Outcome::snooze(Duration::from_secs(6))),
                6 => Ok(Outcome::release()),
                7 => {
                    "x".parse::<u8>()?;
                    Ok(Outcome::ack(""))
                }
                _ => panic!("number {}", job.id),
            }
        })
        .build();
    let handle = worker.start();
    let mut stream = broker.welcomed().await;
    stream.push((1..=8).map(job).collect()).await;
    let mut outcomes = stream.outcomes(8).await;
    outcomes.sort_by_key(|outcome| outcome.id);
    assert!(
        outcomes
            .iter()
            .all(|outcome| outcome.token == outcome.id * 10)
    );

    let nacked = |error: &str, no_retry, after: Option<u64>| {
        Some(Wire::Nack(proto::Nack {
            error: error.into(),
            no_retry,
            retry_after: after.map(|s| prost_duration(Duration::from_secs(s))),
        }))
    };
    let expected = [
        Some(Wire::Ack(proto::Ack {
            result: "result".into(),
        })),
        nacked("again", false, None),
        nacked("never", true, None),
        nacked("later", false, Some(5)),
        Some(Wire::Snooze(proto::Snooze {
            delay: Some(prost_duration(Duration::from_secs(6))),
        })),
        Some(Wire::Release(proto::Release {})),
        nacked("invalid digit found in string", false, None),
        nacked("the handler panicked: number 8", false, None),
    ];
    let outcomes_only: Vec<_> = outcomes
        .iter()
        .map(|outcome| outcome.outcome.clone())
        .collect();
    assert_eq!(outcomes_only, expected);

    stream.confirm(&outcomes).await;
    let stopping = tokio::spawn(async move { handle.stop().await });
    stream.finish().await;
    let report = within(stopping).await.unwrap().unwrap();
    assert_eq!((report.received, report.acked, report.failed), (8, 1, 5));
    assert_eq!((report.snoozed, report.released, report.lost), (1, 1, 0));
}

#[tokio::test]
async fn a_payload_that_does_not_parse_is_not_tried_again() {
    let mut broker = FakeBroker::start().await;
    let worker = broker
        .client()
        .await
        .worker()
        .handle_json::<Vec<u32>, _, _>("t", |numbers: Vec<u32>, _job: Job| async move {
            numbers.iter().sum::<u32>().to_string()
        })
        .build();
    let handle = worker.start();
    let mut stream = broker.welcomed().await;
    let with = |id, payload: &'static str| proto::LeasedJob {
        payload: payload.into(),
        ..job(id)
    };
    stream.push(vec![with(1, "[1,2,3]"), with(2, "[1,")]).await;
    let mut outcomes = stream.outcomes(2).await;
    outcomes.sort_by_key(|outcome| outcome.id);
    let sum = Some(Wire::Ack(proto::Ack { result: "6".into() }));
    assert_eq!(outcomes[0].outcome, sum);
    assert!(nack(&outcomes[1]).no_retry);
    assert!(
        nack(&outcomes[1])
            .error
            .starts_with("the payload is not a ")
    );
    handle.abort();
}

#[tokio::test]
async fn a_handler_that_blocks_does_not_stop_the_others() {
    let mut broker = FakeBroker::start().await;
    let (release, gate) = std::sync::mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    let worker = broker
        .client()
        .await
        .worker()
        .handle_blocking("t", move |job: Job| {
            if job.id == 1 {
                gate.lock().unwrap().recv().unwrap();
            }
            assert!(job.id < 3, "too large");
            format!("{}", job.id)
        })
        .build();
    let handle = worker.start();
    let mut stream = broker.welcomed().await;
    stream.push((1..=3).map(job).collect()).await;
    let first = stream.outcomes(2).await;
    assert_eq!(ids(&first), [2, 3]);
    let panicked = first.iter().find(|outcome| outcome.id == 3).unwrap();
    assert_eq!(nack(panicked).error, "the handler panicked: too large");
    release.send(()).unwrap();
    assert_eq!(ids(&stream.outcomes(1).await), [1]);
    handle.abort();
}

#[tokio::test]
async fn outcomes_gather_while_four_messages_are_unanswered() {
    let mut broker = FakeBroker::start().await;
    let mut worker = Held::start(&broker.client().await);
    let mut stream = broker.welcomed().await;
    stream.push((1..=10).map(job).collect()).await;
    let mut ends = Vec::new();
    for _ in 0..10 {
        ends.push(worker.begun().await.1);
    }
    let mut unanswered = Vec::new();
    for end in ends.drain(..4) {
        end.send(Outcome::ack("")).unwrap();
        unanswered.push(stream.settle().await);
    }
    for end in ends {
        end.send(Outcome::ack("")).unwrap();
    }
    // The handlers end before the answer comes, because this test has one thread.
    tokio::task::yield_now().await;
    stream.confirm(&unanswered[0]).await;
    assert_eq!(stream.settle().await.len(), 6);
    worker.handle.abort();
}

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
    assert_eq!(
        held(&stream.subscribe),
        [2, 3],
        "the running one and the unconfirmed one"
    );
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
async fn what_ends_while_there_is_no_stream_is_sent_on_the_next() {
    let mut broker = FakeBroker::start().await;
    let mut worker = Held::start(&broker.client().await);
    let stream = broker.welcomed().await;
    stream.push(vec![job(1)]).await;
    let (_, end) = worker.begun().await;
    stream.break_off().await;
    let stream = broker.stream().await;
    end.send(Outcome::ack("")).unwrap();
    assert_eq!(held(&stream.subscribe), [1]);
    let welcome = stream.welcome_keeping_all();
    stream.welcome(welcome).await;
    let mut stream = stream;
    assert_eq!(ids(&stream.outcomes(1).await), [1]);
    worker.handle.abort();
}

#[tokio::test]
async fn a_lease_lost_at_the_resume_cancels_its_handler_and_drops_its_outcome() {
    let mut broker = FakeBroker::start().await;
    let mut worker = Held::start(&broker.client().await);
    let stream = broker.welcomed().await;
    stream.push(vec![job(1), job(2)]).await;
    let (lost, end_lost) = worker.begun().await;
    let (kept, end_kept) = worker.begun().await;
    assert_eq!((lost.id, kept.id), (1, 2));
    stream.break_off().await;

    let mut stream = broker.stream().await;
    let mut welcome = stream.welcome_keeping_all();
    welcome.session_id = "s2".into();
    welcome.lost = welcome.kept.extract_if(.., |lease| lease.id == 1).collect();
    stream.welcome(welcome).await;
    within(lost.cancelled()).await;
    assert_eq!(lost.cancel_reason(), Some(CancelReason::LeaseLost));
    assert!(!kept.is_cancelled());

    end_lost.send(Outcome::ack("")).unwrap();
    end_kept.send(Outcome::ack("")).unwrap();
    let outcomes = stream.outcomes(1).await;
    assert_eq!(ids(&outcomes), [2]);
    stream.confirm(&outcomes).await;
    let stopping = tokio::spawn(async move { worker.handle.stop().await });
    stream.finish().await;
    let report = within(stopping).await.unwrap().unwrap();
    assert_eq!((report.acked, report.lost), (1, 1));
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
async fn a_cancel_reaches_the_handler_with_its_reason() {
    let mut broker = FakeBroker::start().await;
    let mut worker = Held::start(&broker.client().await);
    let mut stream = broker.welcomed().await;
    stream.push(vec![job(1), job(2)]).await;
    let (cancelled, end_1) = worker.begun().await;
    let (_, end_2) = worker.begun().await;
    let gone = proto::CancelledJob {
        id: 1,
        token: 10,
        reason: CancelReason::Timeout.into(),
    };
    let other_token = proto::CancelledJob {
        id: 2,
        token: 99,
        ..gone
    };
    let jobs = vec![gone, other_token];
    stream.send(ToWorker::Cancel(proto::Cancel { jobs })).await;
    within(cancelled.cancel_token().cancelled()).await;
    assert_eq!(cancelled.cancel_reason(), Some(CancelReason::Timeout));

    // What it returns is nobody's concern; a lease of another token is untouched.
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
async fn a_cancelled_handler_is_dropped_if_the_worker_says_so() {
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
    let jobs = vec![proto::CancelledJob {
        id: 1,
        token: 10,
        reason: CancelReason::Cancelled.into(),
    }];
    stream.send(ToWorker::Cancel(proto::Cancel { jobs })).await;
    within(dropped.recv()).await.unwrap();
    handle.abort();
}

#[tokio::test]
async fn handlers_are_cancelled_when_the_grace_time_runs_out_but_the_broker_has_the_last_word() {
    let mut broker = FakeBroker::start().await;
    let mut worker = Held::start(&broker.client().await);
    let stream = broker.stream().await;
    let mut welcome = stream.welcome_keeping_all();
    welcome.session_grace = Some(prost_duration(Duration::from_millis(50)));
    stream.welcome(welcome).await;
    stream.push(vec![job(1)]).await;
    let (running, end) = worker.begun().await;
    stream.break_off().await;
    // The next stream is opened but not welcomed.
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
async fn an_outcome_that_could_not_be_stored_is_sent_again() {
    let mut broker = FakeBroker::start().await;
    let mut worker = Held::start(&broker.client().await);
    let mut stream = broker.welcomed().await;
    stream.push(vec![job(1)]).await;
    worker.begun().await.1.send(Outcome::ack("x")).unwrap();
    let first = stream.outcomes(1).await;
    for _ in 0..3 {
        stream
            .answer(&first, SettleStatus::Unavailable, "no Postgres")
            .await;
        assert_eq!(stream.outcomes(1).await, first);
    }
    stream.confirm(&first).await;
    let stopping = tokio::spawn(async move { worker.handle.stop().await });
    stream.finish().await;
    assert_eq!(within(stopping).await.unwrap().unwrap().acked, 1);
}

#[tokio::test]
async fn an_outcome_that_is_refused_becomes_a_nack_that_says_why() {
    let mut broker = FakeBroker::start().await;
    let mut worker = Held::start(&broker.client().await);
    let mut stream = broker.welcomed().await;
    stream.push(vec![job(1)]).await;
    worker
        .begun()
        .await
        .1
        .send(Outcome::ack("too long"))
        .unwrap();
    let first = stream.outcomes(1).await;
    stream
        .answer(&first, SettleStatus::Invalid, "result: 8 bytes, at most 4")
        .await;
    let second = stream.outcomes(1).await;
    let text = "the outcome was refused: result: 8 bytes, at most 4";
    assert_eq!(nack(&second[0]).error, text);
    // A broker that refuses that too has the last word.
    stream.answer(&second, SettleStatus::Invalid, "no").await;
    let stopping = tokio::spawn(async move { worker.handle.stop().await });
    stream.finish().await;
    assert_eq!(within(stopping).await.unwrap().unwrap().lost, 1);
}

#[tokio::test]
async fn a_result_larger_than_any_message_does_not_break_the_stream() {
    let mut broker = FakeBroker::start().await;
    let mut worker = Held::start(&broker.client().await);
    let mut stream = broker.stream().await;
    let mut welcome = stream.welcome_keeping_all();
    welcome.limits = Some(proto::Limits {
        max_message_bytes: 64 << 10,
        max_settle_outcomes: 2,
        ..proto::Limits::default()
    });
    stream.welcome(welcome).await;
    stream.push((1..=3).map(job).collect()).await;
    for bytes in [100_000, 40_000, 40_000] {
        let (_, end) = worker.begun().await;
        end.send(Outcome::ack(vec![0; bytes])).unwrap();
    }
    let mut sizes = Vec::new();
    let mut outcomes = Vec::new();
    while outcomes.len() < 3 {
        let message = stream.settle().await;
        sizes.push(message.len());
        outcomes.extend(message);
    }
    assert!(sizes.iter().all(|size| *size <= 2), "{sizes:?}");
    outcomes.sort_by_key(|outcome| outcome.id);
    assert!(
        nack(&outcomes[0])
            .error
            .contains("the broker accepts messages of")
    );
    assert!(matches!(outcomes[2].outcome, Some(Wire::Ack(_))));
    worker.handle.abort();
}

#[tokio::test]
async fn a_stop_waits_for_handlers_and_gives_back_what_still_comes() {
    let mut broker = FakeBroker::start().await;
    let mut worker = Held::start(&broker.client().await);
    let mut stream = broker.welcomed().await;
    stream.push(vec![job(1)]).await;
    let (_, end) = worker.begun().await;
    let handle = worker.handle.clone();
    let stopping = tokio::spawn(async move { handle.stop().await });
    assert_eq!(
        stream.next().await,
        FromWorker::Drain(proto::DrainRequest {})
    );
    stream.push(vec![job(2)]).await;
    let released = stream.outcomes(1).await;
    assert_eq!(released[0].id, 2);
    assert_eq!(released[0].outcome, Some(Wire::Release(proto::Release {})));
    stream.confirm(&released).await;
    stream.drain(DrainReason::Requested, None).await;
    end.send(Outcome::ack("")).unwrap();
    let outcomes = stream.outcomes(1).await;
    assert!(!stopping.is_finished(), "it waits for the answer");
    stream.confirm(&outcomes).await;
    stream.closed().await;
    drop(stream);
    let report = within(stopping).await.unwrap().unwrap();
    assert_eq!((report.acked, report.released), (1, 1));
    assert_eq!(worker.handle.state(), WorkerState::Stopped);
}

#[tokio::test]
async fn a_stop_that_takes_too_long_cancels_then_gives_back() {
    let mut broker = FakeBroker::start().await;
    let mut worker = Held::start(&broker.client().await);
    let mut stream = broker.welcomed().await;
    stream.push(vec![job(1), job(2)]).await;
    let (willing, end) = worker.begun().await;
    let (_deaf, _end_of_deaf) = worker.begun().await;
    let stopping = tokio::spawn(async move { worker.handle.stop().await });
    assert_eq!(
        stream.next().await,
        FromWorker::Drain(proto::DrainRequest {})
    );
    stream.drain(DrainReason::Requested, None).await;
    within(willing.cancelled()).await;
    assert_eq!(
        willing.cancel_reason(),
        None,
        "the broker did not cancel it"
    );
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
async fn a_drain_sends_the_worker_to_the_next_broker_with_what_it_holds() {
    let mut first = FakeBroker::start().await;
    let mut second = FakeBroker::start().await;
    let client = Client::builder()
        .endpoint(first.url())
        .endpoint(second.url())
        .connect()
        .await
        .unwrap();
    let mut worker = Held::start(&client);
    let mut stream = first.welcomed().await;
    stream.push(vec![job(1), job(2)]).await;
    let (_, end_1) = worker.begun().await;
    let (running, end_2) = worker.begun().await;
    stream
        .drain(DrainReason::Shutdown, Some(Duration::from_millis(300)))
        .await;
    // Until then the old stream still takes outcomes.
    end_1.send(Outcome::ack("")).unwrap();
    let outcomes = stream.outcomes(1).await;
    stream.confirm(&outcomes).await;

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
    stream
        .drain(DrainReason::Shutdown, Some(Duration::from_millis(50)))
        .await;
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
async fn a_worker_ends_after_so_many_jobs() {
    let mut broker = FakeBroker::start().await;
    let worker = broker
        .client()
        .await
        .worker()
        .handle("t", |_: Job| async {})
        .concurrency(5)
        .max_jobs(3)
        .build();
    let ending = tokio::spawn(worker.run());
    let mut stream = broker.welcomed().await;
    assert_eq!(
        stream.subscribe.windows[0].jobs, 3,
        "no more than it will do"
    );
    stream.push((1..=4).map(job).collect()).await;
    let mut outcomes = Vec::new();
    while outcomes.len() < 4 {
        match stream.next().await {
            FromWorker::Settle(settle) => outcomes.extend(settle.outcomes),
            FromWorker::Drain(_) => stream.drain(DrainReason::Requested, None).await,
            other => panic!("{other:?}"),
        }
    }
    outcomes.sort_by_key(|outcome| outcome.id);
    assert_eq!(outcomes[3].outcome, Some(Wire::Release(proto::Release {})));
    stream.confirm(&outcomes).await;
    stream.closed().await;
    drop(stream);
    let report = within(ending).await.unwrap().unwrap();
    assert_eq!((report.acked, report.released), (3, 1));
}

#[tokio::test]
async fn an_extension_is_answered_and_survives_a_broken_stream() {
    let mut broker = FakeBroker::start().await;
    let mut worker = Held::start(&broker.client().await);
    let mut stream = broker.welcomed().await;
    stream.push(vec![job(1)]).await;
    let (running, _end) = worker.begun().await;
    let minute = Duration::from_mins(1);
    let extended = tokio::spawn({
        let running = running.clone();
        async move { running.extend(minute).await }
    });
    let FromWorker::Extend(extend) = stream.next().await else {
        panic!("not an Extend");
    };
    assert_eq!(extend.extensions[0].duration, Some(prost_duration(minute)));
    stream.break_off().await;

    let mut stream = broker.welcomed().await;
    assert_eq!(stream.next().await, FromWorker::Extend(extend));
    let answer = |status: SettleStatus| {
        let result = proto::SettleResult {
            id: 1,
            token: 10,
            status: status.into(),
            message: String::new(),
        };
        ToWorker::Extended(proto::Extended {
            results: vec![result],
        })
    };
    stream.send(answer(SettleStatus::Unavailable)).await;
    assert!(matches!(stream.next().await, FromWorker::Extend(_)));
    stream.send(answer(SettleStatus::Ok)).await;
    within(extended).await.unwrap().unwrap();

    let lost = tokio::spawn(async move { running.extend(minute).await });
    assert!(matches!(stream.next().await, FromWorker::Extend(_)));
    stream.send(answer(SettleStatus::LeaseLost)).await;
    let error = within(lost).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::LeaseLost { id: 1 }), "{error}");
    worker.handle.abort();
}

#[tokio::test]
async fn a_worker_resizes_its_window_while_it_runs() {
    let mut broker = FakeBroker::start().await;
    let worker = Held::start(&broker.client().await);
    let mut stream = broker.welcomed().await;
    for jobs in [3, 0] {
        worker.handle.set_concurrency("t", jobs);
        let FromWorker::Window(window) = stream.next().await else {
            panic!("not a Window");
        };
        assert_eq!((window.task_type.as_str(), window.jobs), ("t", jobs as i32));
    }
    stream.break_off().await;
    let stream = broker.welcomed().await;
    assert_eq!(stream.subscribe.windows[0].jobs, 0, "it is remembered");
    worker.handle.abort();
}

#[tokio::test]
async fn never_more_handlers_run_than_the_concurrency() {
    let mut broker = FakeBroker::start().await;
    let mut worker = Held::start(&broker.client().await);
    let mut stream = broker.welcomed().await;
    // More than the window: a handler of a cancelled job may still run.
    stream.push((1..=12).map(job).collect()).await;
    let mut ends = Vec::new();
    for _ in 0..10 {
        ends.push(worker.begun().await.1);
    }
    assert!(worker.begun.try_recv().is_err());
    ends.pop().unwrap().send(Outcome::ack("")).unwrap();
    let (next, _end) = worker.begun().await;
    assert_eq!(next.id, 11);
    stream.outcomes(1).await;
    // The twelfth has not begun: a stop gives it back.
    worker.handle.begin_stop();
    let mut released = Vec::new();
    while released.is_empty() {
        if let FromWorker::Settle(settle) = stream.next().await {
            released = settle.outcomes;
        }
    }
    assert_eq!(ids(&released), [12]);
    worker.handle.abort();
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
    let expected = WorkerState::Connected {
        broker: "fake".into(),
        session_id: "s1".into(),
    };
    assert_eq!(state, expected);
    worker.handle.abort();
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
    // The handler's sender is gone when the handler is.
    assert!(within(begun.recv()).await.is_none());
    let error = job.extend(Duration::from_secs(1)).await.unwrap_err();
    assert!(matches!(error, Error::Stopped(_)), "{error}");
}

#[tokio::test]
async fn the_trace_context_and_all_fields_reach_the_handler() {
    let mut broker = FakeBroker::start().await;
    let mut worker = Held::start(&broker.client().await);
    let stream = broker.welcomed().await;
    let trace = proto::TraceContext {
        traceparent: "00-1-2-01".into(),
        tracestate: "a=b".into(),
    };
    let time = |seconds| prost_types::Timestamp { seconds, nanos: 0 };
    let full = proto::LeasedJob {
        deadline: Some(time(200)),
        create_time: Some(time(100)),
        payload: "payload".into(),
        headers: [("h".to_owned(), "v".to_owned())].into(),
        trace_context: Some(trace.clone()),
        ..job(1)
    };
    stream.push(vec![full]).await;
    let (job, _end) = worker.begun().await;
    assert_eq!(
        (job.id, job.token, job.attempt, job.max_attempts),
        (1, 10, 1, 10)
    );
    assert_eq!(job.payload, "payload");
    assert_eq!(job.headers["h"], "v");
    assert_eq!(job.trace_context, Some(trace));
    let seconds = |time: std::time::SystemTime| {
        time.duration_since(std::time::SystemTime::UNIX_EPOCH)
            .unwrap()
            .as_secs()
    };
    assert_eq!(seconds(job.created), 100);
    assert_eq!(job.deadline.map(seconds), Some(200));
    worker.handle.abort();
}
