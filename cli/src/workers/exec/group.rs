//! The processes of one attempt: the shell and what it starts, as one process group.

use std::sync::Arc;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Child;

use super::Watchman;

/// Killed when dropped, so that nothing outlives its attempt. A process that must, leaves the
/// group (`setsid`).
#[derive(Debug)]
pub(in crate::workers) struct Group {
    leader: Option<Pid>,
    /// Sees to it if we are killed.
    watchman: Option<Arc<Watchman>>,
}

impl Group {
    /// The group that a child, not waited for yet, leads.
    pub(in crate::workers) fn of(child: &Child, watchman: Option<Arc<Watchman>>) -> Self {
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
        let leader = pid.and_then(Pid::from_raw);
        if let (Some(leader), Some(watchman)) = (leader, &watchman) {
            watchman.begun(leader);
        }
        Self { leader, watchman }
    }

    /// An empty group is none to complain about.
    pub(in crate::workers) fn signal(&self, signal: Signal) {
        if let Some(pid) = self.leader {
            let _ = kill_process_group(pid, signal);
        }
    }

    /// Kills what is left of it; to be called as soon as its leader was waited for, since its
    /// number may then be used again once it is empty.
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
