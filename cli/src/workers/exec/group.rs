//! Process group of one attempt: the shell, and all processes that it starts.

use std::sync::Arc;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Child;

use super::Watchman;

/// Process group, killed on drop, so that no process outlives its attempt. A process can leave the group with `setsid`.
#[derive(Debug)]
pub(in crate::workers) struct Group {
    leader: Option<Pid>,
    /// Kills the group if the worker is killed.
    watchman: Option<Arc<Watchman>>,
}

impl Group {
    /// Creates the group that this child leads. The caller must not have waited for the child yet.
    pub(in crate::workers) fn new(child: &Child, watchman: Option<Arc<Watchman>>) -> Self {
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
        let leader = pid.and_then(Pid::from_raw);
        if let (Some(leader), Some(watchman)) = (leader, &watchman) {
            watchman.begun(leader);
        }
        Self { leader, watchman }
    }

    /// Sends a signal to the group. An empty group is not an error.
    pub(in crate::workers) fn signal(&self, signal: Signal) {
        if let Some(pid) = self.leader {
            let _ = kill_process_group(pid, signal);
        }
    }

    /// Kills the remaining processes of the group. Must be called immediately after the wait for its leader, because the number
    /// of an empty group may be reused.
    pub(in crate::workers) fn finish(&mut self) {
        self.signal(Signal::KILL);
        if let (Some(leader), Some(watchman)) = (self.leader.take(), &self.watchman) {
            watchman.finished(leader);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.finish();
    }
}
