//! Entry point for fuzzers: receives a request body from its first byte to its last.

use std::{
    collections::VecDeque,
    future::poll_fn,
    io::Read as _,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use flate2::bufread::GzDecoder;
use howdah_core::job::Limits;
use hyper::body::{Body as HttpBody, Frame};
use tonic::{Status, body::Body};

use super::{Budget, Call, ReceiveTimeouts, ReceivedBody, frames::Growth, frames::PREFIX};
use crate::api::peer::PeerInfo;

/// Maximum size of a message, and total memory for messages, in bytes.
const LIMITS: (usize, usize) = (96 << 10, 4 << 20);
const LONG: Duration = Duration::from_secs(60);
/// The time to wait for memory is zero, because there is only one client and so no other client that could free memory.
const RECEIVE_TIMEOUTS: ReceiveTimeouts =
    ReceiveTimeouts { room: Duration::ZERO, message: LONG, mib: LONG, held: LONG, end: LONG, answer: LONG };

/// A body that has arrived completely, in chunks.
struct Chunks(VecDeque<Bytes>);

impl HttpBody for Chunks {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Poll::Ready(self.0.pop_front().map(|chunk| Ok(Frame::data(chunk))))
    }
}

/// Receives chunks. Checks that the decoder gets the sent bytes after decompression, and that all memory is free at the end.
pub(crate) async fn receive(chunks: Vec<Bytes>, is_stream: bool) {
    let sent = chunks.concat();
    let (message_bytes, received_bytes) = LIMITS;
    let budget =
        Arc::new(Budget::new(&Limits { message_bytes, received_bytes, ..Limits::default() }, RECEIVE_TIMEOUTS));
    let call = Arc::new(Call::default());
    call.0.lock().answered = is_stream;
    let path = if is_stream { "/howdah.v1.WorkerService/Work" } else { "/howdah.v1.JobService/EnqueueJobs" };
    let source = (Growth::from_path(path), true);
    let mut body =
        ReceivedBody::new(Body::new(Chunks(chunks.into())), source, call.clone(), PeerInfo::default(), budget.clone());
    let mut passed = Vec::new();
    let ended = loop {
        match poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            None => break true,
            Some(Err(_)) => break false,
            Some(Ok(frame)) => passed.extend(frame.into_data().unwrap_or_default()),
        }
    };
    let (expected, is_whole) = unpacked(&sent, message_bytes);
    assert!(expected.starts_with(&passed), "{} passed bytes differ from the sent ones", passed.len());
    assert!(!ended || (is_whole && passed.len() == expected.len()), "the end of the body is missing");
    drop((body, call));
    while budget.large.used() + budget.small.used() > 0 {
        tokio::task::yield_now().await;
    }
}

/// Decompresses the messages of a body as far as possible. Also returns whether the body is complete.
fn unpacked(mut sent: &[u8], most: usize) -> (Vec<u8>, bool) {
    let mut all = Vec::new();
    while let Some((&[flag, a, b, c, d], rest)) = sent.split_first_chunk::<PREFIX>() {
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        let (message, later) = rest.split_at(length.min(rest.len()));
        if flag == 0 || length > most {
            all.extend_from_slice(&sent[..PREFIX + message.len()]);
        } else {
            let mut plain = Vec::new();
            if GzDecoder::new(message).take(most as u64 + 1).read_to_end(&mut plain).is_err() || plain.len() > most {
                return (all, false);
            }
            all.push(0);
            all.extend_from_slice(&(plain.len() as u32).to_be_bytes());
            all.extend_from_slice(&plain);
        }
        if message.len() < length {
            return (all, length > most);
        }
        sent = later;
    }
    all.extend_from_slice(sent);
    (all, sent.is_empty())
}
