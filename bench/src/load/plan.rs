//! The plan of a trial.

use std::{sync::Arc, time::Duration};

use howdah_client::proto::{Subscribe, Window};

/// The kind of the workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum WorkerKind {
    /// A stream written by hand: the least that a worker can cost.
    #[default]
    Raw,
    /// The worker of the Rust client crate.
    Rust,
}

/// How jobs are enqueued.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Demand {
    /// In batches, as fast as they are settled.
    Closed {
        /// Streams.
        producers: usize,
    },
    /// One job per call; each caller waits for its answer.
    Single {
        /// Callers.
        producers: usize,
    },
    /// One job at a time as well, but all callers share a producer of the Rust client, and so one stream.
    Shared {
        /// Callers.
        producers: usize,
    },
}

/// The plan of a trial.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Task types; jobs take turns among them.
    pub(crate) types: Arc<[String]>,
    /// Tenants whose fair keys the jobs have; 0: jobs have none.
    pub(crate) tenants: u32,
    /// The jobs of a request are of one type, and requests take turns among the types.
    pub(crate) one_type_a_request: bool,
    /// Bytes of a payload.
    pub(crate) payload: usize,
    /// Jobs of an enqueue request.
    pub(crate) batch: usize,
    /// Worker streams.
    pub(crate) workers: usize,
    /// Jobs that a worker holds of each type.
    pub(crate) window: usize,
    /// The most task types of one worker; types are distributed in turn.
    pub(crate) types_per_worker: usize,
    /// The most jobs that are enqueued and not settled, in a closed loop.
    pub(crate) in_flight: usize,
    /// The kind of the workers.
    pub(crate) kind: WorkerKind,
    /// How long a handler of the Rust client takes.
    pub(crate) handler: Duration,
    /// Worker streams that share a connection.
    pub(crate) streams_per_connection: usize,
}

impl Plan {
    /// The windows of the n-th worker: all types, or as many as it may have, distributed in turn so that each type has
    /// a worker.
    pub(crate) fn windows(&self, worker: usize) -> Vec<Window> {
        let few = self.types.len().min(self.types_per_worker);
        let first = worker * few;
        let dealt = (first..first + few).map(|index| self.types[index % self.types.len()].clone());
        dealt.map(|task_type| Window { task_type, jobs: self.window as i32, bytes: 0 }).collect()
    }

    /// The first message of the n-th worker.
    pub(crate) fn subscribe(&self, worker: usize) -> Subscribe {
        let windows = self.windows(worker);
        Subscribe { windows, max_message_bytes: super::worker::MESSAGE_BYTES as i32, ..Subscribe::default() }
    }
}
