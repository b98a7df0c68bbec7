//! Message boundaries, and the memory usage of a message. Each message starts with a prefix of five bytes, a flag and the
//! length. Its memory is its bytes and its decoded fields: an encoded empty job takes five bytes; decoded and checked, it takes
//! some 600 bytes.

use bytes::Buf;
use howdah_core::job::{NewJob, Settlement};
use howdah_proto::{codec, v1};

/// Length of the prefix of a gRPC message, in bytes.
pub(super) const PREFIX: usize = 5;
/// Messages below this size are collected without a separate task. The 1,000 streams of a connection then hold at most about 16
/// MiB, as much as its flow-control window.
pub(crate) const SMALL: usize = 16 << 10;
/// Small messages that need at most this many bytes of memory are not counted, because their streams use as much in any case.
pub(crate) const FREE: usize = 8 << 10;

/// Finds the message boundaries in a request body.
#[derive(Debug)]
pub(super) struct Frames {
    /// Bytes of the current message that have not arrived yet and go directly to the decoder.
    passing: usize,
    /// Maximum size of a decoded message.
    most: usize,
    growth: Growth,
    /// Whether a set flag in the prefix means that the message is gzipped.
    gzip: bool,
}

/// Result of checking the next bytes of a request body.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Look {
    /// Number of leading bytes that go directly to the decoder.
    pub(super) passes: usize,
    /// The part of the request body after these bytes.
    pub(super) next: Next,
}

/// A part of a request body that cannot go directly to the decoder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Next {
    /// The kind of the part is unknown until this many of its bytes have arrived.
    Unknown { bytes: usize },
    /// A message that a separate task receives.
    Large { length: usize, gzipped: bool },
    /// A small message that has arrived completely and needs this much memory.
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

    /// Checks the next bytes. Bytes that do not go to the decoder must be checked again when more have arrived.
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
                // A message that is too large goes to the decoder, which rejects it when it reads the prefix.
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

/// Allocator overhead of a short string, in bytes.
const ALLOCATION: usize = 32;

/// Memory that the decoded fields of a method's messages take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growth {
    /// Bytes for each field that is a message or a string.
    entry: usize,
    /// Bytes for each field nested in such a field.
    nested: usize,
}

/// Memory of a job: the decoded message and the checked job, which both exist during the check.
pub(crate) const JOB: usize = size_of::<v1::NewJob>() + size_of::<NewJob>() + 2 * ALLOCATION;
/// Memory of a map entry with its name and value. Doubled, because maps grow by doubling.
pub(crate) const FIELD: usize = 2 * size_of::<(String, String)>() + 2 * ALLOCATION;
/// Memory of an outcome: the decoded message and the checked outcome.
pub(crate) const OUTCOME: usize = size_of::<v1::Outcome>() + size_of::<Settlement>() + 2 * ALLOCATION;

impl Growth {
    /// Returns the memory per field for the messages of the method with this path.
    pub(super) fn from_path(path: &str) -> Self {
        if path.starts_with("/howdah.v1.WorkerService/") {
            // In messages of the `Work` stream, outcomes are nested one level deeper than in unary requests.
            Self { entry: OUTCOME, nested: OUTCOME }
        } else {
            Self { entry: JOB, nested: FIELD }
        }
    }

    /// Returns the memory that a message needs in addition to its encoded bytes.
    pub(super) fn decoded(self, message: impl Buf) -> usize {
        let count = codec::count(message);
        count.entries * self.entry + count.nested * self.nested
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    fn message(flag: u8, length: usize) -> Vec<u8> {
        let mut bytes = vec![flag];
        bytes.extend((length as u32).to_be_bytes());
        // These bytes are an endless varint, so the message has no fields to count.
        bytes.resize(PREFIX + length, 0xff);
        bytes
    }

    fn frames(most: usize) -> Frames {
        Frames::new(most, Growth::from_path("/howdah.v1.JobService/EnqueueJobs"), true)
    }

    /// Calls `look` with the bytes in pieces of this size. Returns the number of bytes that passed, and the first part that did
    /// not.
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
    fn a_small_message_is_weighed_by_its_jobs_and_a_gzipped_one_is_received_as_large() {
        let jobs = [10, 0].repeat(100);
        let bytes = [&[0, 0, 0, 0, 200][..], &jobs].concat();
        let (passed, next) = looked(&bytes, bytes.len());
        assert!(matches!(next, Next::Small { wire: 205, weight: 50_000.. }) && passed == 0, "{next:?}");
        assert_eq!(looked(&message(1, 60), 10), (0, Next::Large { length: 60, gzipped: true }));
    }

    #[test]
    fn an_empty_job_weighs_what_it_takes_in_memory() {
        assert!((500..1_000).contains(&JOB), "{JOB}");
        let jobs = vec![v1::NewJob { task_type: "t".into(), ..Default::default() }; 1_000];
        let message = v1::EnqueueJobsRequest { jobs, ..Default::default() }.encode_to_vec();
        let weight = Growth::from_path("/howdah.v1.JobService/EnqueueJobs").decoded(&message[..]);
        assert_eq!(weight, 1_000 * (JOB + FIELD));
    }
}
