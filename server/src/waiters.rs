//! Callers that wait for jobs to end (`WaitJobs`), by job.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::{error::Error, memory::Memory};

/// The most jobs that all callers of a broker wait for. A job counts once for each caller.
pub(crate) const MOST_WAITED: usize = 1_000_000;
/// When a refused caller should try again.
const RETRY_AFTER: Duration = Duration::from_secs(2);
/// Bytes of answers that callers have not read yet, over all callers.
pub(crate) const UNTAKEN_BYTES: usize = 128 << 20;

/// The waiting callers, by job.
pub(crate) struct Waiters {
    callers: Mutex<Callers>,
    /// Memory for answers that callers have not read yet.
    pub(crate) room: Arc<Memory>,
}

#[derive(Default)]
struct Callers {
    by_job: HashMap<i64, Vec<UnboundedSender<i64>>>,
    /// Over all calls.
    jobs: usize,
}

impl Default for Waiters {
    fn default() -> Self {
        Self { callers: Mutex::default(), room: Memory::new(UNTAKEN_BYTES) }
    }
}

impl Waiters {
    /// These jobs have ended: tells their callers.
    pub(crate) fn ended(&self, ids: &[i64]) {
        let waiting = &mut self.callers.lock().by_job;
        for id in ids {
            for sender in waiting.remove(id).unwrap_or_default() {
                // The caller may have gone.
                let _ = sender.send(*id);
            }
        }
    }

    /// Adds a caller, who gets the ids of these jobs as they end.
    pub(crate) fn add(&self, ids: &[i64]) -> Result<UnboundedReceiver<i64>, Error> {
        let (sender, ended) = unbounded_channel();
        let mut callers = self.callers.lock();
        if callers.jobs + ids.len() > MOST_WAITED {
            let message =
                format!("callers of this broker wait for {} jobs; at most {MOST_WAITED} are allowed", callers.jobs);
            return Err(Error::Exhausted { reason: "TOO_MANY_WAIT", message, retry_after: RETRY_AFTER });
        }
        callers.jobs += ids.len();
        for id in ids {
            callers.by_job.entry(*id).or_default().push(sender.clone());
        }
        Ok(ended)
    }

    /// Removes what [`Self::add`] has added, after its receiver was dropped.
    pub(crate) fn remove(&self, ids: &[i64]) {
        let mut callers = self.callers.lock();
        callers.jobs -= ids.len();
        for id in ids {
            if let Some(senders) = callers.by_job.get_mut(id) {
                senders.retain(|sender| !sender.is_closed());
                if senders.is_empty() {
                    callers.by_job.remove(id);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_wait_for_so_many_jobs_together_and_no_more() {
        let waiters = Waiters::default();
        let (many, few) = ((0..MOST_WAITED as i64).collect::<Vec<_>>(), [1, 2]);
        let first = waiters.add(&many[1..]).expect("room");
        assert!(matches!(waiters.add(&few), Err(Error::Exhausted { reason: "TOO_MANY_WAIT", .. })));
        drop(first);
        waiters.remove(&many[1..]);
        let mut second = waiters.add(&few).expect("room again");
        waiters.ended(&[2]);
        assert_eq!(second.try_recv(), Ok(2));
        assert_eq!(waiters.callers.lock().by_job.len(), 1);
    }
}
