//! What few jobs ask for: more than a place in the order of their type. Such jobs take a statement of their
//! own on their way in, and are marked `coordinated` in their options if something must be done when they end.

use std::time::Duration;

use serde::Deserialize;

use super::TaskTypeName;

/// What a job asks for; every field was checked at the edge.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Coordination {
    /// When another job has the key.
    pub key_policy: KeyPolicy,
    /// For `KeyPolicy::ReplaceIfNewer`.
    pub key_version: Option<i64>,
    /// How long the key is held; `None`: until the job ends.
    pub key_hold: Option<Duration>,
    /// For `KeyPolicy::Debounce`: the longest that it may be put off.
    pub debounce_limit: Option<Duration>,
    /// When it expires if it has not begun.
    pub expiry: Option<Expiry>,
    /// What limits count it by.
    pub limit_key: Option<String>,
    /// Whose turn it is.
    pub fair_key: Option<String>,
    /// Where it goes on to.
    pub next_stages: Vec<TaskTypeName>,
    /// The next stage gets what was enqueued, not the result.
    pub same_payload: bool,
    /// Jobs that it runs after.
    pub after: Vec<i64>,
    /// The same, by their places in the request, from 0.
    pub after_places: Vec<usize>,
    /// Another job of the request runs after it.
    pub has_dependents: bool,
    /// When one of those does not succeed.
    pub on_failure: DependencyFailure,
    /// The job that made it.
    pub parent_id: Option<i64>,
}

impl Coordination {
    /// Whether something must be done when its lease ends.
    pub fn is_marked(&self) -> bool {
        self.limit_key.is_some() || !self.next_stages.is_empty() || self.has_dependents
    }
}

/// What an enqueue does when another job has the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyPolicy {
    /// The other one stays as it is.
    #[default]
    Keep,
    /// The other one is changed, or this one runs after it.
    Replace,
    /// As replace, if the version is higher.
    ReplaceIfNewer,
    /// The request fails.
    Reject,
    /// As replace, and put off.
    Debounce,
}

impl KeyPolicy {
    /// As `take_key` knows it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Replace => "replace",
            Self::ReplaceIfNewer => "replace_if_newer",
            Self::Reject => "reject",
            Self::Debounce => "debounce",
        }
    }
}

/// When a job expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// µs after 1970.
    At(i64),
    /// After the enqueue.
    After(Duration),
}

/// What becomes of a job when one that it runs after does not succeed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DependencyFailure {
    /// It is cancelled.
    #[default]
    Cancel,
    /// It runs.
    Run,
    /// It waits while the other is dead.
    Wait,
}

impl DependencyFailure {
    /// As stored.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Run => "run",
            Self::Wait => "wait",
        }
    }
}

/// What a person is told of a coordinated job, as `howdah.coordination_of` says it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CoordinationView {
    /// What limits count it by.
    pub limit_key: Option<String>,
    /// Whose turn it takes.
    pub fair_key: Option<String>,
    /// When it expires if it has not begun, µs after 1970.
    pub expire_us: Option<i64>,
    /// The job that made it.
    pub parent_id: Option<i64>,
    /// Types that it goes on to.
    pub next_stages: Vec<String>,
    /// Stages that it has been through.
    pub stages_done: Vec<StageDone>,
    /// Jobs that it waits for.
    pub after: Vec<i64>,
}

/// A stage that a job has been through.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct StageDone {
    /// Its type.
    pub task_type: String,
    /// Attempts that it took.
    pub attempt: i16,
    /// When the last of them began.
    pub started: Option<jiff::Timestamp>,
    /// When it was acked.
    pub finished: Option<jiff::Timestamp>,
}
