//! Memory usage of a message: its bytes and its decoded fields. An encoded empty job takes five bytes; decoded and checked, it
//! takes some 600 bytes.

use bytes::Buf;
use howdah_core::job::{NewJob, Settlement};
use howdah_proto::{codec, v1};

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

    #[test]
    fn an_empty_job_weighs_what_it_takes_in_memory() {
        assert!((500..1_000).contains(&JOB), "{JOB}");
        let jobs = vec![v1::NewJob { task_type: "t".into(), ..Default::default() }; 1_000];
        let message = v1::EnqueueJobsRequest { jobs, ..Default::default() }.encode_to_vec();
        let weight = Growth::from_path("/howdah.v1.JobService/EnqueueJobs").decoded(&message[..]);
        assert_eq!(weight, 1_000 * (JOB + FIELD));
    }
}
