//! Decompresses a gzipped message before its memory is counted. So the uncompressed size is counted, and the decoder gets a
//! message without compression.

use std::io::Read as _;

use bytes::Buf as _;
use flate2::bufread::GzDecoder;
use howdah_engine::memory::Held;
use tonic::Status;

use super::{
    budget::{Budget, human},
    frames::PREFIX,
    pieces::Pieces,
};
use crate::api::peer::PeerInfo;

/// Number of bytes that are decompressed in one step, between yields to other tasks.
const STEP: usize = 64 << 10;

/// Decompresses the message, with a prefix that marks it as uncompressed.
pub(super) async fn inflate(
    packed: Pieces,
    budget: &Budget,
    (held, peer): (&mut Held, &PeerInfo),
) -> Result<Pieces, Status> {
    let length = measure(&packed, budget.message_bytes)?;
    budget.grow(held, length, (0, peer)).await?;
    let mut message = Pieces::default();
    message.push(&[0], PREFIX + length);
    message.push(&(length as u32).to_be_bytes(), PREFIX + length - 1);
    let mut unpacked = decoder(&packed);
    let mut buffer = vec![0; STEP];
    while message.len() < PREFIX + length {
        let most = buffer.len().min(PREFIX + length - message.len());
        match unpacked.read(&mut buffer[..most]).map_err(broken)? {
            0 => return Err(Status::internal("bug: a gzipped message got shorter when it was decompressed again")),
            bytes => message.push(&buffer[..bytes], PREFIX + length - message.len()),
        }
        // A large message must not block other tasks of the thread.
        tokio::task::yield_now().await;
    }
    Ok(message)
}

/// Returns the uncompressed length of a message. Does not keep the uncompressed data.
fn measure(packed: &Pieces, most: usize) -> Result<usize, Status> {
    let mut unpacked = decoder(packed).take(most as u64 + 1);
    let length = std::io::copy(&mut unpacked, &mut std::io::sink()).map_err(broken)? as usize;
    if length > most {
        let problem = format!("a gzipped message is larger than {} when decompressed", human(most));
        return Err(Status::resource_exhausted(problem));
    }
    Ok(length)
}

fn decoder(packed: &Pieces) -> GzDecoder<bytes::buf::Reader<super::pieces::Reader<'_>>> {
    let mut reader = packed.reader();
    reader.skip(PREFIX);
    GzDecoder::new(reader.reader())
}

#[expect(clippy::needless_pass_by_value, reason = "`map_err` passes the error by value")]
fn broken(error: std::io::Error) -> Status {
    Status::internal(format!("a gzipped message cannot be decompressed: {error}"))
}
