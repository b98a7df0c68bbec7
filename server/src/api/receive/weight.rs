//! What a message takes in memory: its bytes, and what becomes of its fields. An empty job is five bytes on the wire, and
//! some 600 decoded and checked.

use bytes::Buf;
use howdah_proto::{codec, v1};

use crate::job::{NewJob, Settlement};

/// What the allocator adds to a string of a few bytes.
const ALLOCATION: usize = 32;

/// How a message of a method grows: by its kinds of fields.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growth {
    /// Bytes of each of its fields that is a message or a string.
    entry: usize,
    /// The same for the fields in these.
    nested: usize,
}

/// A job as decoded and as checked: while one becomes the other, both are there.
pub(crate) const JOB: usize = size_of::<v1::NewJob>() + size_of::<NewJob>() + 2 * ALLOCATION;
/// A name and a value of a map that grows by doubling.
pub(crate) const FIELD: usize = 2 * size_of::<(String, String)>() + 2 * ALLOCATION;
/// An outcome as decoded and as checked.
pub(crate) const OUTCOME: usize = size_of::<v1::Outcome>() + size_of::<Settlement>() + 2 * ALLOCATION;

impl Growth {
    /// The growth of the messages of a method.
    pub(super) fn of(path: &str) -> Self {
        if path.starts_with("/howdah.v1.WorkerService/") {
            // In a message of a stream the outcomes are one level further down.
            Self { entry: OUTCOME, nested: OUTCOME }
        } else {
            Self { entry: JOB, nested: FIELD }
        }
    }

    /// What a message takes besides its bytes.
    pub(super) fn decoded(self, message: impl Buf) -> usize {
        let count = codec::count(message);
        count.entries * self.entry + count.nested * self.nested
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    #[test]
    fn an_empty_job_weighs_what_it_takes_in_memory() {
        assert!((500..1_000).contains(&JOB), "{JOB}");
        let jobs = vec![v1::NewJob { task_type: "t".into(), ..Default::default() }; 1_000];
        let message = v1::EnqueueJobsRequest { jobs, ..Default::default() }.encode_to_vec();
        let weight = Growth::of("/howdah.v1.JobService/EnqueueJobs").decoded(&message[..]);
        assert_eq!(weight, 1_000 * (JOB + FIELD));
    }
}
