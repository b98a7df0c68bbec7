//! Tests of the return values of handlers and their effects.

use std::time::Duration;

use howdah_client::{
    Error, Job, JobError, Outcome,
    proto::{
        self, SettleStatus, outcome::Outcome as Wire, work_request::Message as FromWorker,
        work_response::Message as ToWorker,
    },
};

use crate::{
    Held, ids, nack,
    support::{FakeBroker, job, prost_duration, within},
};

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
    assert!(outcomes.iter().all(|outcome| outcome.token == outcome.id * 10));

    let nacked = |error: &str, no_retry, after: Option<u64>| {
        Some(Wire::Nack(proto::Nack {
            error: error.into(),
            no_retry,
            retry_after: after.map(|s| prost_duration(Duration::from_secs(s))),
            ..proto::Nack::default()
        }))
    };
    let expected = [
        Some(Wire::Ack(proto::Ack { result: "result".into(), ..proto::Ack::default() })),
        nacked("again", false, None),
        nacked("never", true, None),
        nacked("later", false, Some(5)),
        Some(Wire::Snooze(proto::Snooze { delay: Some(prost_duration(Duration::from_secs(6))) })),
        Some(Wire::Release(proto::Release {})),
        nacked("invalid digit found in string", false, None),
        nacked("the handler panicked: number 8", false, None),
    ];
    let outcomes_only: Vec<_> = outcomes.iter().map(|outcome| outcome.outcome.clone()).collect();
    assert_eq!(outcomes_only, expected);

    stream.confirm(&outcomes).await;
    let stopping = tokio::spawn(async move { handle.stop().await });
    stream.finish().await;
    let report = within(stopping).await.unwrap().unwrap();
    assert_eq!((report.received, report.acked, report.failed), (8, 1, 5));
    assert_eq!((report.snoozed, report.released, report.lost), (1, 1, 0));
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
async fn a_result_larger_than_any_message_does_not_break_the_stream() {
    let mut broker = FakeBroker::start().await;
    let mut worker = Held::start(&broker.client().await);
    let mut stream = broker.stream().await;
    let mut welcome = stream.welcome_keeping_all();
    welcome.limits =
        Some(proto::Limits { max_message_bytes: 64 << 10, max_settle_outcomes: 2, ..proto::Limits::default() });
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
    assert!(nack(&outcomes[0]).error.contains("the broker accepts at most"));
    assert!(matches!(outcomes[2].outcome, Some(Wire::Ack(_))));
    worker.handle.abort();
}

#[tokio::test]
async fn an_outcome_that_is_refused_becomes_a_nack_that_says_why() {
    let mut broker = FakeBroker::start().await;
    let mut worker = Held::start(&broker.client().await);
    let mut stream = broker.welcomed().await;
    stream.push(vec![job(1)]).await;
    worker.begun().await.1.send(Outcome::ack("too long")).unwrap();
    let first = stream.outcomes(1).await;
    stream.answer(&first, SettleStatus::Invalid, "result: 8 bytes, at most 4").await;
    let second = stream.outcomes(1).await;
    let text = "the outcome was refused: result: 8 bytes, at most 4";
    assert_eq!(nack(&second[0]).error, text);
    // If the broker refuses the nack that replaces the refused outcome too, the job counts as lost.
    stream.answer(&second, SettleStatus::Invalid, "no").await;
    let stopping = tokio::spawn(async move { worker.handle.stop().await });
    stream.finish().await;
    assert_eq!(within(stopping).await.unwrap().unwrap().lost, 1);
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
        let result = proto::SettleResult { id: 1, token: 10, status: status.into(), message: String::new() };
        ToWorker::Extended(proto::Extended { results: vec![result] })
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
