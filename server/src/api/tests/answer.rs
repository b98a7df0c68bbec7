//! Tests that responses are ended if the client does not read them.

use std::{pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{StreamExt as _, poll, stream};
use howdah_engine::memory::Memory;
use howdah_proto::v1::Lease;
use hyper::body::{Body as _, Frame};
use tokio::time::timeout;
use tonic::{Code, Extensions, Status, body::Body};

use super::fixture::TIMEOUT;
use crate::api::answer::{AnswerRoom, Answered, Answers, hold};

const LONG: Duration = Duration::from_secs(3_600);
const SHORT: Duration = Duration::from_millis(60);

/// Returns a response body whose chunks come from a stream.
fn body(chunks: impl futures::Stream<Item = Bytes> + Send + 'static) -> Body {
    Body::new(Chunks(Box::pin(chunks)))
}

/// A response body whose chunks come from a stream.
struct Chunks(Pin<Box<dyn futures::Stream<Item = Bytes> + Send>>);

impl hyper::body::Body for Chunks {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.0.poll_next_unpin(context).map(|chunk| chunk.map(|chunk| Ok(Frame::data(chunk))))
    }
}

/// A memory reservation in the form that responses carry.
fn room(memory: &Arc<Memory>) -> Option<AnswerRoom> {
    let held = memory.try_take(&Arc::default(), 100).expect("room");
    let mut extensions = Extensions::default();
    hold(&mut extensions, held, &Lease::new(1, 2), 100);
    extensions.remove()
}

async fn next(body: &mut Answered) -> Option<Result<Frame<Bytes>, Status>> {
    let next = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context));
    timeout(TIMEOUT, next).await.expect("a frame or the end")
}

async fn freed(memory: &Memory) {
    let freed = async {
        while memory.used() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(TIMEOUT, freed).await.expect("free memory");
}

#[tokio::test]
async fn an_answer_that_is_read_comes_whole_in_small_copies_and_its_memory_is_free_after_it() {
    let memory = Memory::new(1 << 20);
    let chunk = Bytes::from((0..100_000).map(|n| n as u8).collect::<Vec<_>>());
    let answer = body(stream::iter([chunk.clone(), Bytes::from_static(b"end")]));
    let mut body = Answered::new(answer, (None, room(&memory)), Answers::One, LONG);
    let mut whole = Vec::new();
    while let Some(frame) = next(&mut body).await {
        assert!(memory.used() > 0);
        let data = frame.unwrap().into_data().unwrap();
        assert!(data.len() <= 16 << 10);
        whole.extend(data);
    }
    assert_eq!(whole, [&chunk[..], b"end"].concat());
    assert_eq!(memory.used(), 0);
}

#[tokio::test]
async fn an_answer_that_nobody_reads_is_freed_and_its_stream_ends_with_the_reason() {
    let memory = Memory::new(1 << 20);
    for kind in [Answers::One, Answers::Many] {
        // The client reads nothing (`begun` is false), or stops after the first frame.
        for begun in [false, true] {
            let answer = body(stream::iter([Bytes::from(vec![7; 100_000])]));
            let mut body = Answered::new(answer, (None, room(&memory)), kind, SHORT);
            if begun {
                next(&mut body).await.unwrap().unwrap();
            }
            freed(&memory).await;
            let status = next(&mut body).await.unwrap().unwrap_err();
            assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
            assert!(next(&mut body).await.is_none());
        }
    }
}

#[tokio::test]
async fn a_stream_without_news_is_not_ended_and_what_comes_later_wakes_its_reader() {
    let memory = Memory::new(1 << 20);
    let (send, news) = tokio::sync::mpsc::channel(1);
    let news = tokio_stream::wrappers::ReceiverStream::new(news);
    let mut body = Answered::new(body(news), (None, room(&memory)), Answers::Many, SHORT);
    {
        let mut waiting = Box::pin(next(&mut body));
        assert!(poll!(&mut waiting).is_pending());
        tokio::time::sleep(3 * SHORT).await;
        send.send(Bytes::from_static(b"news")).await.unwrap();
        assert_eq!(waiting.await.unwrap().unwrap().into_data().unwrap(), "news");
    }
    // The client does not read the later chunk, so the response is ended.
    send.send(Bytes::from_static(b"more")).await.unwrap();
    freed(&memory).await;
    assert!(send.send(Bytes::new()).await.is_err(), "its sender gets an error");
}
