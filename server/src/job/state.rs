//! The states; each is a table.

use howdah_proto::v1;

/// Where a job is. The names are those of the `state` column of the view `howdah.job`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JobState {
    /// Runnable now.
    Ready,
    /// Held by a worker.
    Leased,
    /// Not before a later time.
    Scheduled,
    /// Held back by another job or a limit.
    Waiting,
    /// Kept until an operator decides.
    Dead,
    /// Finished: acked.
    Succeeded,
    /// Finished: cancelled.
    Cancelled,
    /// Finished: not begun in time.
    Expired,
    /// Finished: given up by an operator.
    Discarded,
}

impl JobState {
    /// Every state, in the order of a job's life.
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

    /// Its name in SQL, on the command line and in metrics.
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

    /// The state of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Its number in the protocol, which is also the `outcome` column of history.
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

    /// The state of that number; `None` for unspecified and unknown ones.
    pub fn from_proto(number: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.to_proto() as i32 == number)
    }

    /// Whether the job is in history, where nothing changes any more.
    pub const fn is_finished(self) -> bool {
        matches!(self, Self::Succeeded | Self::Cancelled | Self::Expired | Self::Discarded)
    }
}
