//! The messages between a worker and its session, checked; `api` translates them from and to the wire.

use std::{collections::BTreeMap, time::Duration};

use super::SessionId;
use crate::job::{Lease, LeasedJob, ProgressReport, SettleStatus, Settlement, TaskTypeName};

/// A message from the worker.
#[derive(Clone, Debug)]
pub enum ClientMessage {
    /// The first message, sent once.
    Subscribe(SubscribeArgs),
    /// Opens, resizes or closes a window.
    Window(WindowArgs),
    /// Outcomes.
    Settle {
        /// Outcomes to settle; an id at most once.
        accepted: Vec<Settlement>,
        /// Outcomes that the check has answered already.
        refused: Vec<Answer>,
    },
    /// Extensions of deadlines.
    Extend {
        /// Leases to extend; an id at most once.
        accepted: Vec<(Lease, Duration)>,
        /// Extensions that the check has answered already.
        refused: Vec<Answer>,
    },
    /// Progress reports.
    Progress {
        /// Reports to write, in this order.
        accepted: Vec<ProgressReport>,
        /// Reports that the check has answered already.
        refused: Vec<Answer>,
    },
    /// Asks for no more jobs.
    Drain,
    /// To be answered at once.
    Ping,
}

/// The worker's subscription.
#[derive(Clone, Debug, Default)]
pub struct SubscribeArgs {
    /// Its windows; a type at most once.
    pub windows: Vec<WindowArgs>,
    /// The session to resume.
    pub session_id: Option<SessionId>,
    /// Leases held from that session; an id at most once.
    pub held: Vec<Lease>,
    /// Labels for people.
    pub labels: BTreeMap<String, String>,
    /// The largest message that the worker accepts.
    pub max_message_bytes: usize,
}

/// How many jobs of a type a worker will hold.
#[derive(Clone, Debug)]
pub struct WindowArgs {
    /// The type.
    pub task_type: TaskTypeName,
    /// The most jobs.
    pub jobs: usize,
    /// The most bytes.
    pub bytes: u64,
}

/// A message to the worker.
#[derive(Clone, Debug)]
pub enum ServerMessage {
    /// The first message.
    Welcome {
        /// The id to resume with.
        session_id: String,
        /// Leases of `held` that the session still has.
        kept: Vec<Lease>,
        /// Leases of `held` that it has lost.
        lost: Vec<Lease>,
    },
    /// Jobs to run.
    Jobs(Vec<LeasedJob>),
    /// Answers to outcomes.
    Settled(Vec<Answer>),
    /// Answers to extensions.
    Extended(Vec<Answer>),
    /// Answers to progress reports.
    Progressed(Vec<Answer>),
    /// Tells the worker to stop these jobs.
    Cancel(Vec<Lease>, CancelReason),
    /// There are no more jobs on this stream.
    Drain {
        /// Whether the broker stops; otherwise the worker asked for it.
        shutdown: bool,
        /// When to connect again.
        reconnect_after: Option<Duration>,
    },
    /// Keeps the connection alive.
    Ping,
}

/// The answer to one outcome, extension or progress report.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The lease as sent.
    pub lease: Lease,
    /// The status, or what is invalid.
    pub status: Result<SettleStatus, String>,
}

/// Why a lease ended without the worker's doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CancelReason {
    /// The job was cancelled.
    Cancelled,
    /// The deadline passed.
    Timeout,
    /// Another broker took it over.
    LeaseLost,
}
