//! Workers.

use std::time::Duration;

use howdah_proto::v1;

use super::time::duration;
use crate::job::{ListedWorker, WorkerWindow};

/// Converts a worker. It counts as stuck after `stuck_after` without activity.
pub(crate) fn worker(worker: ListedWorker, stuck_after: Duration) -> v1::Worker {
    let (connected_for, quiet_for) = (worker.connected(), worker.quiet());
    let view = worker.view;
    let held: u32 = view.windows.iter().map(|window| window.held).sum();
    let state = match held {
        _ if !view.is_connected => v1::WorkerState::Disconnected,
        1.. if quiet_for.is_some_and(|quiet| quiet >= stuck_after) => v1::WorkerState::Stuck,
        _ if view.is_draining => v1::WorkerState::Draining,
        0 => v1::WorkerState::Idle,
        1.. => v1::WorkerState::Working,
    };
    v1::Worker {
        worker_id: view.worker_id,
        broker: worker.broker,
        principal: view.principal,
        labels: view.labels.into_iter().collect(),
        user_agent: view.user_agent,
        peer: view.peer,
        state: state as i32,
        held_count: count(held),
        settled_count: count(view.windows.iter().map(|window| window.settled).sum()),
        windows: view.windows.into_iter().map(window).collect(),
        connected_for: Some(duration(connected_for)),
        quiet_for: quiet_for.filter(|_| held > 0).map(duration),
        max_message_bytes: view.max_message_bytes as i64,
        age: Some(duration(worker.age)),
        store: String::new(),
    }
}

fn window(window: WorkerWindow) -> v1::WorkerWindow {
    v1::WorkerWindow {
        task_type: window.task_type,
        window_jobs: count(window.jobs),
        window_bytes: window.bytes as i64,
        held_count: count(window.held),
        settled_count: count(window.settled),
        oldest_job_ids: window.oldest,
    }
}

fn count(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
