//! Reads the lines that a job's process writes, in bounded memory.

use std::ops::Range;

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Number of bytes per read.
const READ_BYTES: usize = 8 << 10;

/// Error for a line that exceeds the maximum length and was skipped.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong;

/// Reader of lines, without their line breaks.
#[derive(Debug)]
pub(super) struct BoundedLines<R> {
    reader: R,
    buffer: Vec<u8>,
    /// Index at which the next line begins.
    start: usize,
    /// Index up to which the buffer contains no line break.
    scanned: usize,
    max: usize,
    /// Whether the beginning of the current line was dropped.
    skipping: bool,
    ended: bool,
}

impl<R: AsyncRead + Unpin> BoundedLines<R> {
    /// Creates a reader of lines of at most `max` bytes.
    pub(super) fn new(reader: R, max: usize) -> Self {
        Self { reader, buffer: Vec::new(), start: 0, scanned: 0, max, skipping: false, ended: false }
    }

    /// Reads the next line. Returns `None` at the end, or after a read error. Cancel-safe: no input is lost if the future is
    /// dropped.
    pub(super) async fn next(&mut self) -> Option<Result<&[u8], TooLong>> {
        let line = loop {
            if let Some(line) = self.complete() {
                break line;
            }
            if self.ended {
                return None;
            }
            self.buffer.drain(..self.start);
            (self.start, self.scanned) = (0, self.buffer.len());
            if self.scanned > self.max {
                self.skipping = true;
                self.buffer.clear();
                self.scanned = 0;
            }
            self.buffer.reserve(READ_BYTES);
            // A read error counts as the end of the stream.
            self.ended = !matches!(self.reader.read_buf(&mut self.buffer).await, Ok(1..));
        };
        if std::mem::take(&mut self.skipping) || line.len() > self.max {
            return Some(Err(TooLong));
        }
        Some(Ok(&self.buffer[line]))
    }

    /// Returns the range of the next complete line in the buffer.
    fn complete(&mut self) -> Option<Range<usize>> {
        let rest = &self.buffer[self.scanned..];
        let end = match rest.iter().position(|&byte| byte == b'\n') {
            Some(length) => self.scanned + length,
            // The last line may lack a line break.
            None if self.ended && (self.start < self.buffer.len() || self.skipping) => self.buffer.len(),
            None => return None,
        };
        let line = self.start..end;
        self.start = (end + 1).min(self.buffer.len());
        self.scanned = self.start;
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lines(text: &str, max: usize) -> Vec<Result<String, TooLong>> {
        // Delivers the input byte by byte.
        let (mut writer, reader) = tokio::io::duplex(1);
        let bytes = text.as_bytes().to_vec();
        tokio::spawn(async move { tokio::io::AsyncWriteExt::write_all(&mut writer, &bytes).await });
        let mut lines = BoundedLines::new(reader, max);
        let mut seen = Vec::new();
        while let Some(line) = lines.next().await {
            seen.push(line.map(|line| String::from_utf8_lossy(line).into_owned()));
        }
        seen
    }

    #[tokio::test]
    async fn lines_are_parted_and_the_last_one_needs_no_end() {
        let ok = |text: &str| Ok(text.to_owned());
        assert_eq!(lines("one\n\ntwo\nthree", 9).await, [ok("one"), ok(""), ok("two"), ok("three")]);
        assert_eq!(lines("one\n", 9).await, [ok("one")]);
        assert_eq!(lines("", 9).await, []);
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_is_skipped_and_the_next_one_is_read() {
        let expected = [Ok("a".to_owned()), Err(TooLong), Ok("b".to_owned()), Err(TooLong)];
        assert_eq!(lines("a\n1234567890123\nb\n123456789", 4).await, expected);
    }

    #[tokio::test]
    async fn lines_that_arrive_in_one_piece_are_split() {
        let text = b"1234567890\nok\n123456\n" as &[u8];
        let mut lines = BoundedLines::new(text, 6);
        let mut seen = Vec::new();
        while let Some(line) = lines.next().await {
            seen.push(line.map(<[u8]>::to_vec));
        }
        assert_eq!(seen, [Err(TooLong), Ok(b"ok".to_vec()), Ok(b"123456".to_vec())]);
    }
}
