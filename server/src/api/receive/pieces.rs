//! Storage for the bytes of a message, in pieces of a fixed size. A gzipped message is decompressed before its memory is
//! counted. So the uncompressed size is counted, and the decoder gets a message without compression.

use std::{collections::VecDeque, io::Read as _};

use bytes::{Buf, Bytes, BytesMut};
use flate2::bufread::GzDecoder;
use howdah_engine::memory::Held;
use tonic::Status;

use crate::api::{
    peer::PeerInfo,
    receive::{
        budget::{Budget, human},
        frames::PREFIX,
    },
};

/// Size of the pieces of a stored message. The received frames are not kept, because they may have one byte each. The decoder
/// copies the pieces, and they are freed one by one. The allocator returns pieces of this size to the operating system
/// immediately.
pub(super) const PIECE: usize = 1 << 20;

/// A received message.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    whole: VecDeque<Bytes>,
    last: BytesMut,
    length: usize,
}

impl Pieces {
    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// Appends bytes to the message. `missing` is the maximum number of bytes to come, including these.
    pub(super) fn push(&mut self, mut bytes: &[u8], missing: usize) {
        let mut missing = missing;
        while !bytes.is_empty() {
            let room = PIECE - self.last.len();
            self.last.reserve(missing.min(room).max(1));
            let (now, later) = bytes.split_at(bytes.len().min(room));
            self.last.extend_from_slice(now);
            self.length += now.len();
            missing = missing.saturating_sub(now.len());
            bytes = later;
            if self.last.len() == PIECE {
                self.whole.push_back(std::mem::take(&mut self.last).freeze());
            }
        }
    }

    /// Returns a reader that starts at the first byte of the message.
    pub(super) fn reader(&self) -> Reader<'_> {
        let mut parts: VecDeque<&[u8]> = self.whole.iter().map(|piece| &piece[..]).collect();
        parts.push_back(&self.last);
        Reader { parts, left: self.length }
    }
}

impl From<Pieces> for VecDeque<Bytes> {
    fn from(mut pieces: Pieces) -> Self {
        if !pieces.last.is_empty() {
            pieces.whole.push_back(pieces.last.freeze());
        }
        pieces.whole
    }
}

/// Reads a message without copying it.
#[derive(Clone, Debug)]
pub(super) struct Reader<'a> {
    parts: VecDeque<&'a [u8]>,
    left: usize,
}

impl Reader<'_> {
    /// Skips bytes, up to the end.
    pub(super) fn skip(&mut self, bytes: usize) {
        self.advance(bytes.min(self.left));
    }
}

impl Buf for Reader<'_> {
    fn remaining(&self) -> usize {
        self.left
    }

    fn chunk(&self) -> &[u8] {
        self.parts.front().copied().unwrap_or_default()
    }

    fn advance(&mut self, mut bytes: usize) {
        self.left -= bytes;
        while let Some(part) = self.parts.front_mut() {
            let now = bytes.min(part.len());
            *part = &part[now..];
            bytes -= now;
            if !part.is_empty() {
                break;
            }
            self.parts.pop_front();
        }
    }
}

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

fn decoder(packed: &Pieces) -> GzDecoder<bytes::buf::Reader<Reader<'_>>> {
    let mut reader = packed.reader();
    reader.skip(PREFIX);
    GzDecoder::new(reader.reader())
}

#[expect(clippy::needless_pass_by_value, reason = "`map_err` passes the error by value")]
fn broken(error: std::io::Error) -> Status {
    Status::internal(format!("a gzipped message cannot be decompressed: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_pushed_in_parts_are_read_as_one_message() {
        let bytes: Vec<u8> = (0..PIECE * 2 + 10).map(|n| n as u8).collect();
        let mut pieces = Pieces::default();
        for part in bytes.chunks(300_000) {
            pieces.push(part, bytes.len() - pieces.len());
        }
        let mut reader = pieces.reader();
        reader.skip(3);
        assert_eq!(reader.copy_to_bytes(reader.remaining()), bytes[3..]);
        let whole: VecDeque<Bytes> = pieces.into();
        assert_eq!(whole.iter().map(Bytes::len).collect::<Vec<_>>(), [PIECE, PIECE, 10]);
    }
}
