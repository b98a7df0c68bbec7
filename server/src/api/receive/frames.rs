//! The bounds of messages: each begins with a prefix of five bytes, a flag and its length.

/// The length of the prefix.
const PREFIX: usize = 5;
/// Smaller messages are not counted: the receive buffers of a call are about as large.
pub(crate) const SMALL: usize = 64 << 10;
/// The most bytes that one byte of gzip may become.
const GZIP_GROWTH: usize = 1032;

/// Follows the messages of a request.
#[derive(Debug)]
pub(super) struct Frames {
    /// Bytes of the current message that are still to come, and pass.
    passing: usize,
    /// The longest message that is decoded.
    most: usize,
}

/// The result of checking some bytes.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Look {
    /// The number of bytes that pass.
    pub(super) passes: usize,
    /// The large message that begins after them. `None`: there is none, or more bytes are needed to know.
    pub(super) large: Option<Large>,
}

/// A message that needs memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Large {
    /// Its bytes on the wire, with the prefix.
    pub(super) wire: usize,
    /// The most bytes that it takes in memory.
    pub(super) weight: usize,
}

impl Frames {
    pub(super) fn new(most: usize) -> Self {
        Self { passing: 0, most }
    }

    /// Checks the next bytes. Bytes that do not pass must be checked again, with more after them.
    pub(super) fn look(&mut self, bytes: &[u8]) -> Look {
        let mut at = 0;
        loop {
            let passing = self.passing.min(bytes.len() - at);
            at += passing;
            self.passing -= passing;
            let Some(&[flag, a, b, c, d]) = bytes[at..].first_chunk::<PREFIX>() else {
                return Look { passes: at, large: None };
            };
            let length = u32::from_be_bytes([a, b, c, d]) as usize;
            let weight = self.weight(flag, length);
            if weight >= SMALL && length <= self.most {
                return Look { passes: at, large: Some(Large { wire: PREFIX + length, weight }) };
            }
            // It is small, or longer than the limit: then the decoder refuses it at its prefix.
            self.passing = PREFIX + length;
        }
    }

    /// The memory that a message of this length may take. The unpacked size of a gzipped one is unknown.
    fn weight(&self, flag: u8, length: usize) -> usize {
        if flag == 0 { length } else { length + length.saturating_mul(GZIP_GROWTH).min(self.most) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(flag: u8, length: usize) -> Vec<u8> {
        let mut bytes = vec![flag];
        bytes.extend((length as u32).to_be_bytes());
        bytes.resize(PREFIX + length, 7);
        bytes
    }

    /// Shows the bytes in pieces of this size; what passed before the first large message, and that.
    fn looked(bytes: &[u8], piece: usize) -> (usize, Option<Large>) {
        let mut frames = Frames::new(16 << 20);
        let (mut at, mut shown) = (0, 0);
        while shown < bytes.len() {
            shown = (shown + piece).min(bytes.len());
            let look = frames.look(&bytes[at..shown]);
            at += look.passes;
            if look.large.is_some() {
                return (at, look.large);
            }
        }
        (at, None)
    }

    #[test]
    fn a_large_message_is_found_behind_small_ones_however_the_bytes_are_cut() {
        let small = [message(0, 0), message(0, 3), message(0, SMALL - 1)].concat();
        let bytes = [small.clone(), message(0, SMALL)].concat();
        for piece in [1, 2, 4, 5, 6, 7, 1000, SMALL, bytes.len()] {
            let large = Large { wire: PREFIX + SMALL, weight: SMALL };
            assert_eq!(looked(&bytes, piece), (small.len(), Some(large)), "{piece}");
        }
    }

    #[test]
    fn the_beginning_of_a_prefix_waits_for_the_rest() {
        let mut frames = Frames::new(1 << 20);
        assert_eq!(frames.look(&[0, 0, 0, 0]), Look::default());
        assert_eq!(frames.look(&[0, 0, 0, 0, 1]), Look { passes: 5, large: None });
        assert_eq!(frames.look(&[9, 0, 0]), Look { passes: 1, large: None });
    }

    #[test]
    fn a_message_over_the_limit_is_left_to_the_decoder() {
        let mut frames = Frames::new(1 << 20);
        assert_eq!(frames.look(&message(0, (1 << 20) + 1)[..100]), Look { passes: 100, large: None });
    }

    #[test]
    fn a_gzipped_message_weighs_what_it_may_become() {
        assert_eq!(looked(&message(1, 60), 10), (65, None));
        assert_eq!(looked(&message(1, 1000), 10).1.unwrap().weight, 1000 + 1_032_000);
        assert_eq!(looked(&message(1, 1 << 20), 100).1.unwrap().weight, 17 << 20);
    }
}
