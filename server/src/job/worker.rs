//! A worker as operators see it, and as brokers tell one another.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

/// A worker's session. Brokers of two releases read each other's: a field that is added later has a default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerView {
    /// Names it for people. It is made from the session's id, which is secret, and does not tell it.
    pub worker_id: String,
    /// Whose credential it has; empty: nobody in particular.
    pub principal: String,
    /// Labels for people.
    pub labels: BTreeMap<String, String>,
    /// Its library.
    pub user_agent: String,
    /// Where it comes from.
    pub peer: String,
    /// Its stream is open.
    pub is_connected: bool,
    /// It gets no more jobs.
    pub is_draining: bool,
    /// Its task types, by name.
    pub windows: Vec<WorkerWindow>,
    /// How long it has been connected, ms.
    pub connected_ms: u64,
    /// How long it has held jobs and done nothing that can be seen, ms; `None`: it holds none.
    pub quiet_ms: Option<u64>,
    /// The largest message that it accepts.
    pub max_message_bytes: u64,
}

/// What a worker wants and holds of a task type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerWindow {
    /// The task type.
    pub task_type: String,
    /// The most jobs that it holds; 0: it wants no more.
    pub jobs: u32,
    /// The most bytes that it holds.
    pub bytes: u64,
    /// Jobs that it holds.
    pub held: u32,
    /// Jobs that it has settled in the last minute.
    pub settled: u32,
    /// Jobs that it has held longest.
    pub oldest: Vec<i64>,
}

/// A worker, the broker that it is connected to, and the age of what is known.
#[derive(Clone, Debug)]
pub struct ListedWorker {
    /// Where it is in the list.
    pub position: WorkerPosition,
    /// The broker's name.
    pub broker: String,
    /// The worker as its broker saw it.
    pub view: WorkerView,
    /// How long ago that was.
    pub age: Duration,
}

/// Where a worker is in the list of all: after this broker's session of this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkerPosition {
    /// The broker's number.
    pub broker_id: i32,
    /// The session's number within it.
    pub number: i64,
}

impl WorkerPosition {
    /// Before all of them.
    pub const FIRST: Self = Self { broker_id: i32::MIN, number: i64::MIN };
}

impl ListedWorker {
    /// How long it has been connected.
    pub fn connected(&self) -> Duration {
        Duration::from_millis(self.view.connected_ms) + self.age
    }

    /// How long it has held jobs and done nothing that can be seen; `None`: it holds none.
    pub fn quiet(&self) -> Option<Duration> {
        self.view.quiet_ms.map(|ms| Duration::from_millis(ms) + self.age)
    }

    /// Whether it has a window for this type, or holds jobs of it.
    pub fn has_type(&self, task_type: &str) -> bool {
        self.view.windows.iter().any(|window| window.task_type == task_type)
    }
}
