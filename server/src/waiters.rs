//! Callers that wait for jobs to end (`WaitJobs`), by job.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::{
    error::Error,
    memory::{Account, Held, Memory},
};

/// The most jobs that all callers of a broker wait for; those of one connection or principal, for a quarter of them. A job
/// counts once for each caller.
pub(crate) const MOST_WAITED: usize = 1_000_000;
/// When a refused caller should try again.
const RETRY_AFTER: Duration = Duration::from_secs(2);
/// Bytes of answers that callers have not read yet, over all callers.
pub(crate) const UNTAKEN_BYTES: usize = 128 << 20;

/// The waiting callers, by job.
pub(crate) struct Waiters {
    by_job: Mutex<HashMap<i64, Vec<UnboundedSender<i64>>>>,
    /// A place for each job that somebody waits for, shared as memory is.
    places: Arc<Memory>,
    /// Memory for answers that callers have not read yet.
    pub(crate) room: Arc<Memory>,
}

impl Default for Waiters {
    fn default() -> Self {
        Self { by_job: Mutex::default(), places: Memory::new(MOST_WAITED), room: Memory::new(UNTAKEN_BYTES) }
    }
}

impl Waiters {
    /// These jobs have ended: tells their callers.
    pub(crate) fn ended(&self, ids: &[i64]) {
        let mut waiting = self.by_job.lock();
        for id in ids {
            for sender in waiting.remove(id).unwrap_or_default() {
                // The caller may have gone.
                let _ = sender.send(*id);
            }
        }
    }

    /// Adds a caller, who gets the ids of these jobs as they end, and its places: they count for the account.
    pub(crate) fn add(&self, ids: &[i64], account: &Arc<Account>) -> Result<(UnboundedReceiver<i64>, Held), Error> {
        let places = self.places.try_take(account, ids.len()).ok_or_else(|| {
            let message = format!(
                "callers of this broker wait for {MOST_WAITED} jobs, or those of this connection or its principal for a \
                 quarter of that: more are not allowed"
            );
            Error::Exhausted { reason: "TOO_MANY_WAIT", message, retry_after: RETRY_AFTER }
        })?;
        let (sender, ended) = unbounded_channel();
        let mut waiting = self.by_job.lock();
        for id in ids {
            waiting.entry(*id).or_default().push(sender.clone());
        }
        Ok((ended, places))
    }

    /// Removes what [`Self::add`] has added, after its receiver was dropped.
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
