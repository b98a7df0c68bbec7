//! A worker as operators see it, and as brokers report it to each other.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

/// A worker's session. Brokers of different releases send it to each other, so every new field needs a default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerView {
    /// Public id. It is derived from the session's secret id and does not reveal it.
    pub worker_id: String,
    /// Principal; empty if authentication is off.
    pub principal: String,
    /// Labels for people.
    pub labels: BTreeMap<String, String>,
    /// Client library and version.
    pub user_agent: String,
    /// Remote address.
    pub peer: String,
    /// Whether the worker's stream is open.
    pub is_connected: bool,
    /// Whether the worker is draining, so that it gets no more jobs.
    pub is_draining: bool,
    /// Windows by task type, ordered by name.
    pub windows: Vec<WorkerWindow>,
    /// Time since the worker connected, in ms.
    pub connected_ms: u64,
    /// Time for which the worker has held jobs without activity, in ms; `None` if it holds no job.
    pub quiet_ms: Option<u64>,
    /// Maximum size in bytes of a message that the worker accepts.
    pub max_message_bytes: u64,
}

/// Window of a worker for a task type, and its jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerWindow {
    /// The task type.
    pub task_type: String,
    /// Maximum number of jobs; 0 if the worker wants no more jobs.
    pub jobs: u32,
    /// Maximum number of bytes.
    pub bytes: u64,
    /// Number of leased jobs.
    pub held: u32,
    /// Number of jobs settled in the last minute.
    pub settled: u32,
    /// Ids of the jobs whose leases are oldest.
    pub oldest: Vec<i64>,
}

/// A worker with its broker and the age of the report.
#[derive(Clone, Debug)]
pub struct ListedWorker {
    /// Position in the list.
    pub position: WorkerPosition,
    /// The broker's name.
    pub broker: String,
    /// The worker as reported by its broker.
    pub view: WorkerView,
    /// Age of the report.
    pub age: Duration,
}

/// Position of a worker in the list: the broker's number, then the session's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkerPosition {
    /// The broker's number.
    pub broker_id: i32,
    /// Number of the session within the broker.
    pub number: i64,
}

impl WorkerPosition {
    /// Position before the first worker.
    pub const FIRST: Self = Self { broker_id: i32::MIN, number: i64::MIN };
}

impl ListedWorker {
    /// Time since the worker connected.
    pub fn connected(&self) -> Duration {
        Duration::from_millis(self.view.connected_ms) + self.age
    }

    /// Time for which the worker has held jobs without activity; `None` if it holds no job.
    pub fn quiet(&self) -> Option<Duration> {
        self.view.quiet_ms.map(|ms| Duration::from_millis(ms) + self.age)
    }

    /// Whether the worker has a window for this type, or holds jobs of the type.
    pub fn has_type(&self, task_type: &str) -> bool {
        self.view.windows.iter().any(|window| window.task_type == task_type)
    }
}
