//! Callers that wait for jobs to end (`WaitJobs`), indexed by job.

use std::{collections::HashMap, sync::Arc, time::Duration};

use howdah_core::error::Error;
use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::memory::{Account, Held, Memory};

/// Maximum number of jobs that all `WaitJobs` callers of a broker wait for. Callers of one connection or principal get
/// a quarter of it. A job counts once for each caller.
pub const MOST_WAITED: usize = 1_000_000;
/// Retry delay for a caller whose `WaitJobs` call was refused.
const RETRY_AFTER: Duration = Duration::from_secs(2);
/// Maximum bytes of `WaitJobs` answers that callers have not read yet, over all callers.
pub const UNTAKEN_BYTES: usize = 128 << 20;

/// The callers of `WaitJobs`, indexed by the jobs for which they wait.
pub(crate) struct Waiters {
    by_job: Mutex<HashMap<i64, Vec<UnboundedSender<i64>>>>,
    /// Quota of awaited jobs, shared like a memory budget: one unit per job and caller.
    job_quota: Arc<Memory>,
    /// Memory for answers that callers have not read yet.
    pub(crate) answer_memory: Arc<Memory>,
}

impl Default for Waiters {
    fn default() -> Self {
        Self {
            by_job: Mutex::default(),
            job_quota: Memory::new(MOST_WAITED),
            answer_memory: Memory::new(UNTAKEN_BYTES),
        }
    }
}

impl Waiters {
    /// Notifies the callers that wait for these jobs, which have ended.
    pub(crate) fn ended(&self, ids: &[i64]) {
        let mut waiting = self.by_job.lock();
        for id in ids {
            for sender in waiting.remove(id).unwrap_or_default() {
                // The caller may have stopped waiting.
                let _ = sender.send(*id);
            }
        }
    }

    /// Adds a `WaitJobs` caller. Returns a receiver of job ids, sent as the jobs end, and the quota taken from the
    /// account.
    pub(crate) fn add(&self, ids: &[i64], account: &Arc<Account>) -> Result<(UnboundedReceiver<i64>, Held), Error> {
        let job_quota = self.job_quota.try_take(account, ids.len()).ok_or_else(|| {
            let message = format!(
                "callers wait for too many jobs: all callers of a broker may wait for {MOST_WAITED} jobs, the callers of one \
                 connection or principal for a quarter of that; wait for fewer jobs, or try again later"
            );
            Error::Exhausted { reason: "TOO_MANY_WAIT", message, retry_after: RETRY_AFTER }
        })?;
        let (sender, ended) = unbounded_channel();
        let mut waiting = self.by_job.lock();
        for id in ids {
            waiting.entry(*id).or_default().push(sender.clone());
        }
        Ok((ended, job_quota))
    }

    /// Removes the caller added by [`Self::add`], after its receiver was dropped.
    pub(crate) fn remove(&self, ids: &[i64]) {
        let mut waiting = self.by_job.lock();
        for id in ids {
            if let Some(senders) = waiting.get_mut(id) {
                senders.retain(|sender| !sender.is_closed());
                if senders.is_empty() {
                    waiting.remove(id);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_account_waits_for_a_quarter_of_all_jobs_and_the_others_have_the_rest() {
        let waiters = Waiters::default();
        let quarter: Vec<i64> = (0..MOST_WAITED as i64 / 4).collect();
        let accounts: [Arc<Account>; 5] = Default::default();
        let add = |account: usize, ids: &[i64]| waiters.add(ids, &accounts[account]);
        let refused = |added| matches!(added, Err(Error::Exhausted { reason: "TOO_MANY_WAIT", .. }));
        let first = add(0, &quarter).expect("a quarter");
        assert!(refused(add(0, &[1])));
        let _others: Vec<_> = (1..4).map(|other| add(other, &quarter).expect("a quarter of its own")).collect();
        assert!(refused(add(4, &[1])), "all are taken");
        drop(first);
        waiters.remove(&quarter);
        let mut again = add(0, &[-1, -2]).expect("room again");
        waiters.ended(&[-2]);
        assert_eq!(again.0.try_recv(), Ok(-2));
        assert_eq!(waiters.by_job.lock().len(), quarter.len() + 1);
    }
}
