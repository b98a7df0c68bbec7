//! States of jobs. Each unfinished state has its own table; finished jobs are in history.

use howdah_proto::v1;

/// The state of a job, named as in the `state` column of the view `howdah.job`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JobState {
    /// Can run now.
    Ready,
    /// Leased by a worker.
    Leased,
    /// Waits for its start time.
    Scheduled,
    /// Waits for another job or for a limit.
    Waiting,
    /// Out of attempts, or not to be retried; kept until an operator retries or discards it.
    Dead,
    /// Finished: acked by a worker.
    Succeeded,
    /// Finished: cancelled.
    Cancelled,
    /// Finished: not started before its expiry.
    Expired,
    /// Finished: discarded by an operator.
    Discarded,
}

impl JobState {
    /// All states, in the order of a job's life.
    pub const ALL: [Self; 9] = [
        Self::Ready,
        Self::Leased,
        Self::Scheduled,
        Self::Waiting,
        Self::Dead,
        Self::Succeeded,
        Self::Cancelled,
        Self::Expired,
        Self::Discarded,
    ];

    /// States whose jobs are counted by type, in the order of the counts.
    pub const COUNTED: [Self; 5] = [Self::Ready, Self::Leased, Self::Scheduled, Self::Waiting, Self::Dead];

    /// Name in SQL, on the command line and in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Leased => "leased",
            Self::Scheduled => "scheduled",
            Self::Waiting => "waiting",
            Self::Dead => "dead",
            Self::Succeeded => "succeeded",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
            Self::Discarded => "discarded",
        }
    }

    /// The state with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Number in the protocol, which is also the `outcome` column of history.
    pub const fn to_proto(self) -> v1::JobState {
        match self {
            Self::Ready => v1::JobState::Ready,
            Self::Leased => v1::JobState::Leased,
            Self::Scheduled => v1::JobState::Scheduled,
            Self::Waiting => v1::JobState::Waiting,
            Self::Dead => v1::JobState::Dead,
            Self::Succeeded => v1::JobState::Succeeded,
            Self::Cancelled => v1::JobState::Cancelled,
            Self::Expired => v1::JobState::Expired,
            Self::Discarded => v1::JobState::Discarded,
        }
    }

    /// The state with this number; `None` if it is unspecified or unknown.
    pub fn from_proto(number: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.to_proto() as i32 == number)
    }

    /// Whether the job is in history, where it no longer changes.
    pub const fn is_finished(self) -> bool {
        matches!(self, Self::Succeeded | Self::Cancelled | Self::Expired | Self::Discarded)
    }
}
