//! Validated messages between a worker and its session. `api` translates them from and to the wire format.

use std::{collections::BTreeMap, time::Duration};

use howdah_core::job::{Lease, LeasedJob, ProgressReport, SettleStatus, Settlement, TaskTypeName};

use super::SessionId;
use crate::wake::Loss;

/// A message from the worker.
#[derive(Clone, Debug)]
pub enum ClientMessage {
    /// The first message of a stream, sent once: the subscription of the worker.
    Subscribe(SubscribeArgs),
    /// Opens, resizes or closes a window.
    Window(WindowArgs),
    /// Outcomes of attempts.
    Settle {
        /// Outcomes to settle; each job id at most once.
        accepted: Vec<Settlement>,
        /// Answers to outcomes that failed validation.
        refused: Vec<Answer>,
    },
    /// Extensions of deadlines.
    Extend {
        /// Leases to extend, with their new durations; each job id at most once.
        accepted: Vec<(Lease, Duration)>,
        /// Answers to extensions that failed validation.
        refused: Vec<Answer>,
    },
    /// Progress reports.
    Progress {
        /// Progress reports to write, in this order.
        accepted: Vec<ProgressReport>,
        /// Answers to progress reports that failed validation.
        refused: Vec<Answer>,
    },
    /// Asks the broker to send no more jobs.
    Drain,
    /// Asks for a `Pong` immediately.
    Ping,
    /// Answers a `Ping` of the broker.
    Pong,
    /// Not sent by the worker: the broker's heartbeat check reports that the worker was silent for its liveness.
    Lost,
}

/// Subscription of a worker.
#[derive(Clone, Debug, Default)]
pub struct SubscribeArgs {
    /// Windows; each task type at most once.
    pub windows: Vec<WindowArgs>,
    /// Id of the session to resume; `None` for a new session.
    pub session_id: Option<SessionId>,
    /// Leases that the worker still holds. A job id may occur more than once, with different tokens.
    pub held: Vec<Lease>,
    /// Labels for operators.
    pub labels: BTreeMap<String, String>,
    /// Maximum size in bytes of a message that the worker accepts.
    pub max_message_bytes: usize,
    /// Maximum silence of the worker; `None` for the configured value.
    pub liveness: Option<Duration>,
}

/// Maximum jobs and bytes of a task type that a worker will hold.
#[derive(Clone, Debug)]
pub struct WindowArgs {
    pub task_type: TaskTypeName,
    /// Maximum number of jobs; 0 closes the window.
    pub jobs: usize,
    /// Maximum bytes of payloads and headers.
    pub bytes: u64,
}

/// A message to the worker.
#[derive(Clone, Debug)]
pub enum ServerMessage {
    /// First message of a stream.
    Welcome {
        /// Session id with which the worker can resume.
        session_id: String,
        /// Leases in [`SubscribeArgs::held`] that the session keeps.
        kept: Vec<Lease>,
        /// Leases in [`SubscribeArgs::held`] that the session has lost.
        lost: Vec<Lease>,
        /// Maximum silence of the worker.
        liveness: Duration,
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
    /// Announces that no more jobs follow on this stream.
    Drain {
        /// Whether the worker must move to another broker, because this one is stopping or because the worker's
        /// credential has ended. False if the worker asked to drain.
        shutdown: bool,
        /// Random delay before the worker reconnects; `None` if the worker asked to drain.
        reconnect_after: Option<Duration>,
    },
    /// Asks for a `Pong` as a sign of life.
    Ping,
    /// Answers a `Ping` of the worker.
    Pong,
}

/// Answer to one outcome, extension or progress report.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Lease as the worker sent it.
    pub lease: Lease,
    /// Status, or a text that says which value is invalid.
    pub status: Result<SettleStatus, String>,
}

/// Reason why a lease ended without an action of the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CancelReason {
    /// The job was cancelled.
    Cancelled,
    /// The deadline of the lease passed.
    Timeout,
    /// Another broker took over the lease.
    LeaseLost,
}

impl From<Loss> for CancelReason {
    fn from(loss: Loss) -> Self {
        match loss {
            Loss::Cancelled => Self::Cancelled,
            Loss::TimedOut => Self::Timeout,
            Loss::Moved => Self::LeaseLost,
        }
    }
}
