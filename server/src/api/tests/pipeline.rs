//! Tests of `StreamEnqueue` without a broker: content and order of the answers, and the end of the stream.

use std::{
    future::ready,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{Stream, StreamExt as _};
use howdah_core::error::Error;
use howdah_engine::{access::Caller, memory::Memory};
use howdah_proto::v1;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use crate::api::{
    end::End,
    pipeline::{Bounds, InFlight, Storing, pipeline},
};

type Sender = mpsc::Sender<Result<v1::StreamEnqueueRequest, Status>>;
type Answer = Result<v1::StreamEnqueueResponse, Status>;

const BOUNDS: Bounds = Bounds { requests: 4, bytes: 1000, first: Duration::from_secs(3600) };

/// A pipeline with a stub of the store, which accepts one request for each permit of `gate`, and rejects requests with a key.
struct Fixture {
    requests: Sender,
    gate: Arc<Semaphore>,
    begun: Arc<AtomicUsize>,
    stopping: CancellationToken,
}

fn open(bounds: Bounds) -> (Fixture, impl Stream<Item = Answer> + Unpin) {
    open_within(bounds, &Memory::new(1 << 20))
}

fn open_within(bounds: Bounds, memory: &Arc<Memory>) -> (Fixture, impl Stream<Item = Answer> + Unpin + use<>) {
    let (requests, received) = mpsc::channel(100);
    let gate = Arc::new(Semaphore::new(0));
    let (begun, stopping) = (Arc::new(AtomicUsize::new(0)), CancellationToken::new());
    let fixture = Fixture { requests, gate: gate.clone(), begun: begun.clone(), stopping: stopping.clone() };
    let store = move |request: v1::StreamEnqueueRequest| {
        let gate = gate.clone();
        begun.fetch_add(1, Ordering::Relaxed);
        ready(Box::pin(async move {
            let id = request.sequence as i64;
            gate.acquire_many(1 + (100 - id.min(100)) as u32 % 2).await.unwrap().forget();
            if request.request_key.is_empty() {
                Ok(vec![v1::EnqueuedJob { id, is_new: true, ..Default::default() }])
            } else {
                Err(Error::RequestKeyReused(request.request_key))
            }
        }) as Storing)
    };
    let memory = InFlight::new(memory, &Arc::default());
    let end = End::new(&Caller::unauthenticated(), &stopping);
    (fixture, Box::pin(pipeline(ReceiverStream::new(received), (bounds, memory), end, store)))
}

impl Fixture {
    async fn send(&self, sequence: u64, request_key: &str) {
        let request = v1::StreamEnqueueRequest { sequence, jobs: vec![], request_key: request_key.into() };
        self.requests.send(Ok(request)).await.unwrap();
    }

    fn begun(&self) -> usize {
        self.begun.load(Ordering::Relaxed)
    }
}

async fn sequence(answers: &mut (impl Stream<Item = Answer> + Unpin)) -> u64 {
    answers.next().await.unwrap().unwrap().sequence
}

/// Polls the pipeline for a while, and checks that it has no answer.
async fn poll_once(answers: &mut (impl Stream<Item = Answer> + Unpin)) {
    assert!(tokio::time::timeout(Duration::from_millis(20), answers.next()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn answers_come_in_the_order_of_the_requests() {
    let (fixture, mut answers) = open(BOUNDS);
    for sequence in [7, 3, 99, 4] {
        fixture.send(sequence, "").await;
    }
    fixture.gate.add_permits(100);
    for expected in [7, 3, 99, 4] {
        assert_eq!(sequence(&mut answers).await, expected);
    }
    drop(fixture.requests);
    assert!(answers.next().await.is_none());
}

#[tokio::test(start_paused = true)]
#[allow(clippy::async_yields_async, reason = "one future queues a request and returns another future that stores it")]
async fn a_request_is_queued_though_nobody_reads_the_answers() {
    let (requests, received) = mpsc::channel(1);
    let (gate, queued) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let store = {
        let (gate, queued) = (gate.clone(), queued.clone());
        move |_| {
            let (gate, queued) = (gate.clone(), queued.clone());
            async move {
                // While this future waits for the gate, it stands for a request that holds a lock, such as the lock of new task
                // types.
                gate.acquire().await.unwrap().forget();
                queued.add_permits(1);
                Box::pin(ready(Ok(Vec::new()))) as Storing
            }
        }
    };
    let (memory, end) = (
        InFlight::new(&Memory::new(1 << 20), &Arc::default()),
        End::new(&Caller::unauthenticated(), &CancellationToken::new()),
    );
    let mut answers = Box::pin(pipeline(ReceiverStream::new(received), (BOUNDS, memory), end, store));
    requests.send(Ok(v1::StreamEnqueueRequest::default())).await.unwrap();
    poll_once(&mut answers).await;
    gate.add_permits(1);
    let done = tokio::time::timeout(Duration::from_secs(60), queued.acquire()).await;
    done.expect("queued without another poll of the answers").unwrap().forget();
    assert_eq!(sequence(&mut answers).await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_fails_is_answered_and_the_stream_goes_on() {
    let (fixture, mut answers) = open(BOUNDS);
    fixture.gate.add_permits(100);
    fixture.send(1, "").await;
    fixture.send(2, "used").await;
    fixture.send(3, "").await;
    assert_eq!(sequence(&mut answers).await, 1);
    let refused = answers.next().await.unwrap().unwrap();
    assert_eq!((refused.sequence, refused.jobs.len()), (2, 0));
    assert_eq!(refused.error.unwrap().code, Code::AlreadyExists as i32);
    assert_eq!(sequence(&mut answers).await, 3);
}

#[tokio::test(start_paused = true)]
async fn requests_are_read_only_up_to_the_limit_in_flight() {
    let (fixture, mut answers) = open(BOUNDS);
    for sequence in 1..=20 {
        fixture.send(sequence, "").await;
    }
    poll_once(&mut answers).await;
    assert_eq!(fixture.begun(), 4);
    fixture.gate.add_permits(2);
    assert_eq!(sequence(&mut answers).await, 1);
    poll_once(&mut answers).await;
    assert_eq!(fixture.begun(), 5);
}

#[tokio::test(start_paused = true)]
async fn bytes_in_flight_exceed_their_limit_by_at_most_one_message() {
    let (fixture, mut answers) = open(BOUNDS);
    for sequence in 1..=20 {
        fixture.send(sequence, &"k".repeat(600)).await;
    }
    poll_once(&mut answers).await;
    assert_eq!(fixture.begun(), 2);
}

#[tokio::test(start_paused = true)]
async fn silence_after_opening_ends_the_stream_but_a_pause_later_does_not() {
    let brief = Bounds { first: Duration::from_secs(10), ..BOUNDS };
    let (_silent, mut answers) = open(brief);
    assert_eq!(answers.next().await.unwrap().unwrap_err().code(), Code::DeadlineExceeded);
    assert!(answers.next().await.is_none());

    let (fixture, mut answers) = open(brief);
    fixture.gate.add_permits(100);
    fixture.send(1, "").await;
    assert_eq!(sequence(&mut answers).await, 1);
    let pause = tokio::time::timeout(Duration::from_secs(30), answers.next()).await;
    assert!(pause.is_err(), "{pause:?}");
    fixture.send(2, "").await;
    assert_eq!(sequence(&mut answers).await, 2);
}

#[tokio::test(start_paused = true)]
async fn a_stopping_broker_answers_what_is_in_flight_and_says_unavailable() {
    let (fixture, mut answers) = open(BOUNDS);
    fixture.send(1, "").await;
    poll_once(&mut answers).await;
    fixture.stopping.cancel();
    fixture.gate.add_permits(100);
    assert_eq!(sequence(&mut answers).await, 1);
    assert_eq!(answers.next().await.unwrap().unwrap_err().code(), Code::Unavailable);
    assert!(answers.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_broken_message_ends_the_stream_after_the_answers() {
    let (fixture, mut answers) = open(BOUNDS);
    fixture.gate.add_permits(100);
    fixture.send(1, "").await;
    fixture.requests.send(Err(Status::out_of_range("too large"))).await.unwrap();
    assert_eq!(sequence(&mut answers).await, 1);
    assert_eq!(answers.next().await.unwrap().unwrap_err().code(), Code::OutOfRange);
    assert!(answers.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn requests_in_flight_are_bounded_by_the_shared_memory_and_go_on_when_some_is_freed() {
    let memory = Memory::new(1 << 20);
    let other = memory.try_take(&Arc::default(), 1 << 20).expect("all of it");
    let bounds = Bounds { requests: 100_000, bytes: 1 << 30, ..BOUNDS };
    let (fixture, mut answers) = open_within(bounds, &memory);
    for sequence in 1..=100 {
        fixture.send(sequence, "").await;
    }
    let first = answers.next();
    tokio::pin!(first);
    assert!(futures::poll!(&mut first).is_pending());
    let begun = fixture.begun.load(Ordering::Relaxed);
    assert!((10..40).contains(&begun), "{begun} without memory");
    drop(other);
    // Now there is enough memory for all 100 requests.
    assert!(futures::poll!(&mut first).is_pending());
    while fixture.begun.load(Ordering::Relaxed) < 100 {
        assert!(futures::poll!(&mut first).is_pending());
        tokio::task::yield_now().await;
    }
    assert!(memory.used() > 0);
    fixture.gate.add_permits(1_000);
    first.await.expect("an answer").expect("stored");
    for _ in 2..=100 {
        answers.next().await.expect("an answer").expect("stored");
    }
    assert_eq!(memory.used(), 0);
}
