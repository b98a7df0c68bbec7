//! The plan of a trial.

use std::{sync::Arc, time::Duration};

use howdah_client::proto::{Subscribe, Window};

/// Implementation of the workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum WorkerKind {
    /// A hand-written stream, the cheapest possible worker.
    #[default]
    Raw,
    /// The worker of the Rust client crate, with a handler.
    Rust,
}

/// Way in which jobs are enqueued.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Demand {
    /// Closed loop: jobs are enqueued in batches, as fast as jobs are settled.
    Closed {
        /// Number of streams.
        producers: usize,
    },
    /// One job per call; each caller waits for the answer.
    Single {
        /// Number of callers.
        producers: usize,
    },
    /// One job at a time per caller; all callers share one producer of the Rust client, and so one stream.
    Shared {
        /// Number of callers.
        producers: usize,
    },
}

/// The plan of a trial.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Task types, used in turn.
    pub(crate) types: Arc<[String]>,
    /// Number of tenants, whose names are the fair keys of the jobs; 0: no fair keys.
    pub(crate) tenants: u32,
    /// Whether all jobs of a request have the same type. Requests then use the types in turn.
    pub(crate) one_type_a_request: bool,
    /// Payload size in bytes.
    pub(crate) payload: usize,
    /// Jobs per enqueue request.
    pub(crate) batch: usize,
    /// Number of worker streams.
    pub(crate) workers: usize,
    /// Window of a worker for each type, in jobs.
    pub(crate) window: usize,
    /// Maximum number of task types per worker; types are distributed in turn.
    pub(crate) types_per_worker: usize,
    /// Maximum number of unsettled jobs in a closed loop.
    pub(crate) in_flight: usize,
    /// Implementation of the workers.
    pub(crate) kind: WorkerKind,
    /// Run time of each job's handler. Used only with [`WorkerKind::Rust`].
    pub(crate) handler: Duration,
    /// Number of worker streams per connection.
    pub(crate) streams_per_connection: usize,
}

impl Plan {
    /// Windows of the n-th worker: one for each type, but at most `types_per_worker`. Types are distributed so that each has a
    /// worker.
    pub(crate) fn windows(&self, worker: usize) -> Vec<Window> {
        let few = self.types.len().min(self.types_per_worker);
        let first = worker * few;
        let dealt = (first..first + few).map(|index| self.types[index % self.types.len()].clone());
        dealt.map(|task_type| Window { task_type, jobs: self.window as i32, bytes: 0 }).collect()
    }

    /// First message of the n-th worker.
    pub(crate) fn subscribe(&self, worker: usize) -> Subscribe {
        let windows = self.windows(worker);
        Subscribe { windows, max_message_bytes: super::worker::MESSAGE_BYTES as i32, ..Subscribe::default() }
    }
}
