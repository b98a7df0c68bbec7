//! The plan of a trial.

use std::{sync::Arc, time::Duration};

use howdah_client::proto::{Subscribe, Window};

/// Maximum size of a message that a worker accepts.
pub(super) const MESSAGE_BYTES: usize = 16 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum WorkerKind {
    /// A hand-written stream, the cheapest possible worker
    Raw,
    /// The worker of the Rust client crate, with a handler
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

/// Task types, sizes and numbers of connections of a trial.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Task types, used in turn.
    pub(crate) types: Arc<[String]>,
    /// Number of tenants, whose names are the fair keys of the jobs; 0: no fair keys.
    pub(crate) tenants: u32,
    /// Payload size in bytes.
    pub(crate) payload: usize,
    /// Jobs per enqueue request.
    pub(crate) batch: usize,
    /// Number of worker streams.
    pub(crate) workers: usize,
    /// Window of a worker, in jobs.
    pub(crate) window: usize,
    /// Maximum number of unsettled jobs in a closed loop.
    pub(crate) in_flight: usize,
    pub(crate) kind: WorkerKind,
    /// Run time of each job's handler. Used only with [`WorkerKind::Rust`].
    pub(crate) handler: Duration,
    /// Number of worker streams per connection.
    pub(crate) streams_per_connection: usize,
}

impl Plan {
    /// Task type that worker number `worker` subscribes to.
    pub(crate) fn task_type(&self, worker: usize) -> String {
        self.types[worker % self.types.len()].clone()
    }

    /// First message that worker number `worker` sends on its stream.
    pub(crate) fn subscribe(&self, worker: usize) -> Subscribe {
        let window = Window { task_type: self.task_type(worker), jobs: self.window as i32, bytes: 0 };
        Subscribe { windows: vec![window], max_message_bytes: MESSAGE_BYTES as i32, ..Subscribe::default() }
    }
}
