//! Why a job does not run, as the broker says it to all clients.

use std::time::{Duration, SystemTime};

use howdah_proto::v1::ReasonKind;

use super::JobState;

/// Why a job does not run, or what became of it.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The job.
    pub id: i64,
    /// Its task type.
    pub task_type: String,
    /// Its state.
    pub state: JobState,
    /// What holds it back; what must change first comes first.
    pub reasons: Vec<Reason>,
    /// How many jobs go first, counted up to a bound.
    pub before: Option<Before>,
    /// When it starts, as far as that can be said.
    pub expected_in: Option<Duration>,
    /// How many attempts of its type were settled a minute, in the last minutes.
    pub settled_per_minute: f64,
}

/// How many jobs go before another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Before {
    /// Their number,
    pub jobs: i64,
    /// of which there are more than were counted.
    pub has_more: bool,
}

/// One reason.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reason {
    /// For programs.
    pub kind: ReasonKind,
    /// For people.
    pub text: String,
    /// What must change.
    pub remedy: String,
    /// Since when.
    pub since: Option<SystemTime>,
    /// Until when.
    pub until: Option<SystemTime>,
    /// The jobs that hold it back.
    pub jobs: Vec<RelatedJob>,
    /// The limit key or fairness key.
    pub key: String,
    /// The limit.
    pub limit: f64,
    /// How much of it is used.
    pub used: i64,
    /// The broker of the worker that holds it.
    pub broker: String,
    /// That worker.
    pub worker: String,
    /// The error of its last attempt.
    pub error: String,
}

/// A job that another one waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelatedJob {
    /// Its id.
    pub id: i64,
    /// Its task type and state; `None`: it does not exist any more, or not for the caller.
    pub known: Option<(String, JobState)>,
}
