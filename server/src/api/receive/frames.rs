//! The bounds of messages: each begins with a prefix of five bytes, a flag and its length.

use super::weight::Growth;

/// The length of the prefix.
pub(super) const PREFIX: usize = 5;
/// Smaller messages are received where their stream is read: its receive buffer is larger. A connection of 1,000 streams
/// holds as much of such messages as its HTTP/2 window has.
pub(crate) const SMALL: usize = 16 << 10;
/// A small message that takes no more memory than this is not counted. Its stream takes as much.
pub(crate) const FREE: usize = 8 << 10;

/// Follows the messages of a request.
#[derive(Debug)]
pub(super) struct Frames {
    /// Bytes of the current message that are still to come, and pass.
    passing: usize,
    /// The longest message that is decoded.
    most: usize,
    growth: Growth,
    /// Messages with a flag are gzipped.
    gzip: bool,
}

/// The result of checking some bytes.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Look {
    /// The number of bytes that pass.
    pub(super) passes: usize,
    /// What comes after them.
    pub(super) next: Next,
}

/// What begins after the bytes that pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Next {
    /// To know, so many bytes are needed.
    Unknown { bytes: usize },
    /// A message that is received by a task of its own.
    Large { length: usize, gzipped: bool },
    /// A small message, which is all there, and takes this much memory.
    Small { wire: usize, weight: usize },
}

impl Default for Next {
    fn default() -> Self {
        Self::Unknown { bytes: PREFIX }
    }
}

impl Frames {
    pub(super) fn new(most: usize, growth: Growth, gzip: bool) -> Self {
        Self { passing: 0, most, growth, gzip }
    }

    /// Checks the next bytes. Bytes that do not pass must be checked again, with more after them.
    pub(super) fn look(&mut self, bytes: &[u8]) -> Look {
        let mut at = 0;
        loop {
            let passing = self.passing.min(bytes.len() - at);
            at += passing;
            self.passing -= passing;
            let Some((&[flag, a, b, c, d], rest)) = bytes[at..].split_first_chunk::<PREFIX>() else {
                return Look { passes: at, next: Next::default() };
            };
            let length = u32::from_be_bytes([a, b, c, d]) as usize;
            let wire = PREFIX + length;
            if length > self.most {
                // The decoder refuses it at its prefix.
                self.passing = wire;
                continue;
            }
            let gzipped = flag != 0 && self.gzip;
            if length >= SMALL || gzipped {
                return Look { passes: at, next: Next::Large { length, gzipped } };
            }
            let Some(message) = rest.get(..length) else {
                return Look { passes: at, next: Next::Unknown { bytes: wire } };
            };
            let weight = length + self.growth.decoded(message);
            if weight > FREE {
                return Look { passes: at, next: Next::Small { wire, weight } };
            }
            at += wire;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(flag: u8, length: usize) -> Vec<u8> {
        let mut bytes = vec![flag];
        bytes.extend((length as u32).to_be_bytes());
        // No field: a varint without an end.
        bytes.resize(PREFIX + length, 0xff);
        bytes
    }

    fn frames(most: usize) -> Frames {
        Frames::new(most, Growth::of("/howdah.v1.JobService/EnqueueJobs"), true)
    }

    /// Shows the bytes in pieces of this size; what passed before the first message that does not, and that.
    fn looked(bytes: &[u8], piece: usize) -> (usize, Next) {
        let mut frames = frames(16 << 20);
        let (mut at, mut shown) = (0, 0);
        while shown < bytes.len() {
            shown = (shown + piece).min(bytes.len());
            let look = frames.look(&bytes[at..shown]);
            at += look.passes;
            if !matches!(look.next, Next::Unknown { .. }) {
                return (at, look.next);
            }
        }
        (at, Next::default())
    }

    #[test]
    fn a_large_message_is_found_behind_small_ones_however_the_bytes_are_cut() {
        let small = [message(0, 0), message(0, 3), message(0, 1_000)].concat();
        let bytes = [small.clone(), message(0, SMALL)].concat();
        for piece in [1, 2, 4, 5, 6, 7, 1000, SMALL, bytes.len()] {
            assert_eq!(looked(&bytes, piece), (small.len(), Next::Large { length: SMALL, gzipped: false }), "{piece}");
        }
    }

    #[test]
    fn a_small_message_waits_until_it_is_all_there() {
        let mut frames = frames(1 << 20);
        assert_eq!(frames.look(&[0, 0, 0, 0]), Look::default());
        assert_eq!(frames.look(&[0, 0, 0, 0, 1]), Look { passes: 0, next: Next::Unknown { bytes: 6 } });
        assert_eq!(frames.look(&[0, 0, 0, 0, 1, 9]), Look { passes: 6, next: Next::default() });
    }

    #[test]
    fn a_message_over_the_limit_is_left_to_the_decoder() {
        let over = message(0, (1 << 20) + 1);
        assert_eq!(frames(1 << 20).look(&over[..100]), Look { passes: 100, next: Next::default() });
    }

    #[test]
    fn a_small_message_of_many_jobs_is_counted_and_a_gzipped_one_is_received_apart() {
        let jobs = [10, 0].repeat(100);
        let bytes = [&[0, 0, 0, 0, 200][..], &jobs].concat();
        let (passed, next) = looked(&bytes, bytes.len());
        assert!(matches!(next, Next::Small { wire: 205, weight: 50_000.. }) && passed == 0, "{next:?}");
        assert_eq!(looked(&message(1, 60), 10), (0, Next::Large { length: 60, gzipped: true }));
    }
}
