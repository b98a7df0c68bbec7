//! Storage for the bytes of a message, in pieces of a fixed size.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};

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
