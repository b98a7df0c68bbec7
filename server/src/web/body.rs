//! Receives request bodies on the HTTP port. Memory for a body is reserved as it arrives.

use std::{future::poll_fn, pin::Pin, sync::Arc, time::Duration};

use axum::body::{Body, HttpBody as _};
use bytes::{Bytes, BytesMut};
use howdah_core::error::Error;
use howdah_engine::memory::{Account, Held, Memory};
use tokio::time::timeout;

use super::enqueue::BODY_WITHIN;
use crate::api::receive::pace::{LEAST, Pace, Slow};

/// Time limit of a request to wait for memory.
pub(crate) const ROOM_WITHIN: Duration = Duration::from_secs(10);
/// Memory is reserved each time that this many more bytes of a body have arrived.
const STEP: usize = 4 << 10;

/// `most`: maximum size of a body, in bytes. `growth`: bytes of memory to reserve for each byte of the body.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) most: usize,
    pub(super) growth: usize,
}

pub(super) async fn receive(
    mut body: Body,
    bounds: Bounds,
    memory: &Arc<Memory>,
    account: &Arc<Account>,
) -> Result<(Bytes, Held), Error> {
    let mut held = room(memory.begin(account, 0)).await?;
    let mut pace = Pace::new(BODY_WITHIN);
    let (mut whole, mut counted) = (BytesMut::new(), 0);
    loop {
        let next = poll_fn(|context| Pin::new(&mut body).poll_frame(context));
        let Some(frame) = pace.next(next, || memory.is_short()).await.map_err(slow)? else { break };
        let Ok(chunk) = frame.map_err(|_| too_large(bounds.most))?.into_data() else { continue };
        if whole.len() + chunk.len() > bounds.most {
            return Err(too_large(bounds.most));
        }
        pace.came(chunk.len());
        whole.extend_from_slice(&chunk);
        if whole.len() - counted >= STEP {
            room(held.grow((whole.len() - counted) * bounds.growth)).await?;
            counted = whole.len();
        }
    }
    room(held.grow((whole.len() - counted) * bounds.growth)).await?;
    held.arrived();
    Ok((whole.freeze(), held))
}

async fn room<T>(memory: impl Future<Output = Result<T, howdah_engine::memory::Full>>) -> Result<T, Error> {
    timeout(ROOM_WITHIN, memory).await.ok().and_then(Result::ok).ok_or_else(|| {
        let problem =
            "the memory for request bodies (limits.received_bytes) is in use by earlier requests; try again later";
        Error::Unavailable(problem.into())
    })
}

fn slow(slow: Slow) -> Error {
    Error::Deadline(match slow {
        Slow::Late => format!("the body did not arrive within {BODY_WITHIN:?}"),
        Slow::Others => {
            format!("the body arrived at less than {} KiB/s while other requests waited for memory", LEAST >> 10)
        }
    })
}

pub(super) fn too_large(most: usize) -> Error {
    Error::invalid("body", format!("has more than {most} bytes, or was cut off"))
}
