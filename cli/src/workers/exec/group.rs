//! The processes of one attempt, as one process group: the shell, and all that it starts.

use std::sync::Arc;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Child;

use super::Watchman;

/// Killed when dropped, so that no process outlives its attempt. A process that has to can leave the group (`setsid`).
#[derive(Debug)]
pub(in crate::workers) struct Group {
    leader: Option<Pid>,
    /// Kills the group if we are killed.
    watchman: Option<Arc<Watchman>>,
}

impl Group {
    /// The group that this child leads; the child was not waited for yet.
    pub(in crate::workers) fn of(child: &Child, watchman: Option<Arc<Watchman>>) -> Self {
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
        let leader = pid.and_then(Pid::from_raw);
        if let (Some(leader), Some(watchman)) = (leader, &watchman) {
            watchman.begun(leader);
        }
        Self { leader, watchman }
    }

    /// It is not an error if the group is empty.
    pub(in crate::workers) fn signal(&self, signal: Signal) {
        if let Some(pid) = self.leader {
            let _ = kill_process_group(pid, signal);
        }
    }

    /// Kills the rest of the group. Call it as soon as its leader was waited for: when the group is empty, its number
    /// may be used again.
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
