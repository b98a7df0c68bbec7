//! What a worker and its session say to each other, checked; `api` translates from and to the wire.

use std::{collections::BTreeMap, time::Duration};

use crate::job::{Lease, LeasedJob, ProgressReport, SettleStatus, Settlement, TaskTypeName};

/// From the worker.
#[derive(Clone, Debug)]
pub enum ClientMessage {
    /// First, and once.
    Subscribe(SubscribeArgs),
    /// Opens, resizes or closes a window.
    Window(WindowArgs),
    /// Outcomes.
    Settle {
        /// To be settled; an id at most once.
        accepted: Vec<Settlement>,
        /// Answered already.
        refused: Vec<Answer>,
    },
    /// More time.
    Extend {
        /// To be extended; an id at most once.
        accepted: Vec<(Lease, Duration)>,
        /// Answered already.
        refused: Vec<Answer>,
    },
    /// How far jobs have come.
    Progress {
        /// To be noted, in this order.
        accepted: Vec<ProgressReport>,
        /// Answered already.
        refused: Vec<Answer>,
    },
    /// No more jobs, please.
    Drain,
    /// Answer at once.
    Ping,
}

/// Who is there and what it works on.
#[derive(Clone, Debug, Default)]
pub struct SubscribeArgs {
    /// A type at most once.
    pub windows: Vec<WindowArgs>,
    /// The session to go on with.
    pub session_id: Option<String>,
    /// Leases held from it; an id at most once.
    pub held: Vec<Lease>,
    /// For people.
    pub labels: BTreeMap<String, String>,
    /// Largest message that the worker accepts.
    pub max_message_bytes: usize,
}

/// How much of a type a worker will hold.
#[derive(Clone, Debug)]
pub struct WindowArgs {
    /// The type.
    pub task_type: TaskTypeName,
    /// Jobs.
    pub jobs: usize,
    /// Bytes.
    pub bytes: u64,
}

/// To the worker.
#[derive(Clone, Debug)]
pub enum ServerMessage {
    /// First.
    Welcome {
        /// To resume with.
        session_id: String,
        /// Of the leases held, those it still has.
        kept: Vec<Lease>,
        /// Of the leases held, those it has not.
        lost: Vec<Lease>,
    },
    /// Jobs to run.
    Jobs(Vec<LeasedJob>),
    /// What became of outcomes.
    Settled(Vec<Answer>),
    /// What became of extensions.
    Extended(Vec<Answer>),
    /// What became of progress reports.
    Progressed(Vec<Answer>),
    /// Stop working on these.
    Cancel(Vec<Lease>, CancelReason),
    /// No more jobs on this stream.
    Drain {
        /// The broker stops, else the worker asked.
        shutdown: bool,
        /// Come back after this long.
        reconnect_after: Option<Duration>,
    },
    /// A sign of life.
    Ping,
}

/// What became of one outcome, extension or progress report.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// As it was sent.
    pub lease: Lease,
    /// What became of it; or what is wrong with it.
    pub status: Result<SettleStatus, String>,
}

/// Why a lease ended without the worker's doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CancelReason {
    /// Somebody cancelled the job.
    Cancelled,
    /// The deadline passed.
    Timeout,
    /// Another broker took it back.
    LeaseLost,
}
