//! Memory usage of a message: its bytes and its decoded fields. An empty job is five bytes in the message, and some 600 bytes when
//! decoded and checked.

use bytes::Buf;
use howdah_proto::{codec, v1};

use crate::job::{NewJob, Settlement};

/// Allocator overhead of a string of a few bytes.
const ALLOCATION: usize = 32;

/// Memory that the decoded fields of a method's messages take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growth {
    /// Bytes per message field or string field.
    entry: usize,
    /// Bytes per field nested inside such a field.
    nested: usize,
}

/// A job as decoded and as checked: both exist during the conversion.
pub(crate) const JOB: usize = size_of::<v1::NewJob>() + size_of::<NewJob>() + 2 * ALLOCATION;
/// Name and value of a map entry; maps grow by doubling.
pub(crate) const FIELD: usize = 2 * size_of::<(String, String)>() + 2 * ALLOCATION;
/// An outcome as decoded and as checked.
pub(crate) const OUTCOME: usize = size_of::<v1::Outcome>() + size_of::<Settlement>() + 2 * ALLOCATION;

impl Growth {
    /// Growth of the messages of a method.
    pub(super) fn from_path(path: &str) -> Self {
        if path.starts_with("/howdah.v1.WorkerService/") {
            // The messages of the stream nest outcomes one level deeper.
            Self { entry: OUTCOME, nested: OUTCOME }
        } else {
            Self { entry: JOB, nested: FIELD }
        }
    }

    /// Memory of a message besides its bytes.
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
        let weight = Growth::from_path("/howdah.v1.JobService/EnqueueJobs").decoded(&message[..]);
        assert_eq!(weight, 1_000 * (JOB + FIELD));
    }
}
