//! What a trial is made of.

use std::sync::Arc;

use howdah_client::proto::{Subscribe, Window};

/// What workers are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum WorkerKind {
    /// A stream spoken by hand: the least that a worker can cost
    #[default]
    Raw,
    /// The worker of the Rust client crate
    Rust,
}

/// How jobs come in.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Demand {
    /// As fast as there is room for them, in batches, on so many streams.
    Closed {
        /// Streams.
        producers: usize,
    },
    /// One job a call, so many callers, each waiting for its answer.
    Single {
        /// Callers.
        producers: usize,
    },
}

/// What a trial is made of.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Task types; jobs take turns among them.
    pub(crate) types: Arc<[String]>,
    /// Bytes of a payload.
    pub(crate) payload: usize,
    /// Jobs of an enqueue request.
    pub(crate) batch: usize,
    /// Worker streams.
    pub(crate) workers: usize,
    /// Jobs that a worker holds of each type.
    pub(crate) window: usize,
    /// Task types of one worker at most; types are dealt to the workers in turn.
    pub(crate) types_per_worker: usize,
    /// Jobs that are enqueued and not settled, at most, in a closed loop.
    pub(crate) in_flight: usize,
    /// What workers are.
    pub(crate) kind: WorkerKind,
    /// Worker streams that share a connection.
    pub(crate) streams_per_connection: usize,
}

impl Plan {
    /// What the n-th worker subscribes to: all types, or as many as it may, dealt in turn so that each
    /// type has a worker.
    pub(crate) fn windows(&self, worker: usize) -> Vec<Window> {
        let few = self.types.len().min(self.types_per_worker);
        let first = worker * few;
        let dealt = (first..first + few).map(|place| self.types[place % self.types.len()].clone());
        dealt.map(|task_type| Window { task_type, jobs: self.window as i32, bytes: 0 }).collect()
    }

    /// The first message of the n-th worker.
    pub(crate) fn subscribe(&self, worker: usize) -> Subscribe {
        let windows = self.windows(worker);
        Subscribe { windows, max_message_bytes: super::worker::MESSAGE_BYTES as i32, ..Subscribe::default() }
    }
}
