//! The leases that the worker holds, and the outcomes that the broker has not confirmed.
//!
//! There is no I/O here: [`serve`](super::serve) uses it for the stream.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    hash::{Hash, Hasher},
    mem,
    sync::Arc,
};

use howdah_proto::v1::{self as proto, CancelReason, Release, SettleResult, SettleStatus, outcome::Outcome as End};
use tokio::task::JoinHandle;

use crate::telemetry::{Address, Settling};

use super::{
    job::Lease,
    outcome::{Outcome, fit, in_a_word, nack, size},
};

/// A lease. A job may be delivered again while an older handler of it still runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) id: i64,
    pub(crate) token: i64,
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Tokens are random: hashing the id too would only take longer, four times per job.
        self.token.hash(state);
    }
}

/// The most leases that a resume names.
const MAX_HELD: usize = 100_000;

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    entries: HashMap<Key, Entry>,
    /// Outcomes to send, in the order in which the handlers ended.
    unsent: VecDeque<Key>,
    /// Outcomes to send again a little later.
    later: Vec<Key>,
}

#[derive(Debug)]
struct Entry {
    /// The task type whose slot its handler takes.
    task_type: usize,
    state: State,
}

#[derive(Debug)]
enum State {
    /// It waits for a slot.
    Queued(Arc<Lease>),
    Running(Arc<Lease>, JoinHandle<()>),
    /// The lease is lost and the handler still runs: what it returns is dropped.
    Over(JoinHandle<()>),
    /// Its handler has ended. Kept until the broker confirms the outcome.
    Ended {
        outcome: End,
        settling: Settling,
        /// The batch that it was sent with; `None`: not sent on this stream.
        batch: Option<u64>,
        /// The broker has refused an earlier outcome of it.
        refused: bool,
    },
}

/// The meaning of the broker's answer to an outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// An answer to an unknown outcome.
    Unknown,
    Acked,
    Nacked,
    Snoozed,
    Released,
    /// The worker did not hold the lease any more.
    Lost,
    /// The outcome is sent again a little later.
    Later,
    /// The outcome was refused; a nack is sent instead.
    Refused,
}

impl Ledger {
    /// Adds a job. False: it was there already.
    pub(crate) fn add(&mut self, lease: Arc<Lease>, task_type: usize) -> bool {
        let key = lease.key();
        let known = self.entries.contains_key(&key);
        if !known {
            let state = State::Queued(lease);
            self.entries.insert(key, Entry { task_type, state });
        }
        !known
    }

    /// Adds a job that will not run: it is released, and the attempt does not count.
    pub(crate) fn release(&mut self, key: Key) {
        self.end(key, 0, End::Release(Release {}), Settling::none());
    }

    /// Whether the job still waits for a slot: it may have been cancelled meanwhile.
    pub(crate) fn is_queued(&self, key: Key) -> bool {
        let entry = self.entries.get(&key);
        entry.is_some_and(|entry| matches!(entry.state, State::Queued(_)))
    }

    /// Records that the handler of a queued job runs as `task`.
    pub(crate) fn begin(&mut self, key: Key, task: JoinHandle<()>) {
        if let Some(entry) = self.entries.get_mut(&key)
            && let State::Queued(lease) = &entry.state
        {
            entry.state = State::Running(lease.clone(), task);
        }
    }

    /// A handler has ended. Returns the task type whose slot it frees, if it held one.
    pub(crate) fn finish(&mut self, key: Key, outcome: Outcome, settling: Settling) -> Option<usize> {
        let entry = self.entries.get_mut(&key)?;
        let task_type = entry.task_type;
        match &entry.state {
            State::Running(..) => self.end(key, task_type, outcome.into_proto(), settling),
            State::Over(_) => drop(self.entries.remove(&key)),
            State::Queued(_) | State::Ended { .. } => return None,
        }
        Some(task_type)
    }

    fn end(&mut self, key: Key, task_type: usize, outcome: End, settling: Settling) {
        let state = State::Ended { outcome, settling, batch: None, refused: false };
        self.entries.insert(key, Entry { task_type, state });
        self.unsent.push_back(key);
    }

    /// How many outcomes are to be sent.
    pub(crate) fn unsent(&self) -> usize {
        self.unsent.len()
    }

    /// Whether nothing runs and nothing is unconfirmed.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many handlers have not ended.
    pub(crate) fn running(&self) -> usize {
        let running = |entry: &&Entry| matches!(entry.state, State::Running(..) | State::Over(_));
        self.entries.values().filter(running).count()
    }

    /// Whether every handler has ended and something is unconfirmed.
    pub(crate) fn only_unconfirmed(&self) -> bool {
        !self.is_empty() && self.entries.values().all(|entry| matches!(entry.state, State::Ended { .. }))
    }

    /// Jobs whose outcomes are not confirmed, with these outcomes.
    pub(crate) fn unconfirmed(&self) -> impl Iterator<Item = (i64, &'static str)> {
        self.entries.iter().filter_map(|(key, entry)| match &entry.state {
            State::Ended { outcome, .. } => Some((key.id, in_a_word(outcome))),
            _ => None,
        })
    }

    /// The outcomes for the next message, which is batch `batch`.
    pub(crate) fn next_batch(&mut self, batch: u64, max_outcomes: usize, max_bytes: usize) -> Vec<proto::Outcome> {
        let room = self.unsent.len().min(max_outcomes);
        let mut outcomes = Vec::with_capacity(room);
        let mut ids = HashSet::with_capacity(room);
        let mut bytes = 0;
        while outcomes.len() < max_outcomes {
            let Some(&key) = self.unsent.front() else {
                break;
            };
            let Some(State::Ended { outcome, batch: sent, .. }) = self.state_mut(key) else {
                // It was answered meanwhile, on the stream before this one.
                self.unsent.pop_front();
                continue;
            };
            fit(outcome, max_bytes);
            let size = size(outcome);
            // A message names a job only once. After a lost lease there may be two outcomes of a job.
            let fits = bytes + size <= max_bytes || outcomes.is_empty();
            if !fits || !ids.insert(key.id) {
                break;
            }
            bytes += size;
            *sent = Some(batch);
            outcomes.push(proto::Outcome { id: key.id, token: key.token, outcome: Some(outcome.clone()) });
            self.unsent.pop_front();
        }
        outcomes
    }

    /// Handles the broker's answer to an outcome. Returns its meaning, and the batch.
    pub(crate) fn settled(&mut self, result: &SettleResult, broker: &Address) -> (Answer, Option<u64>) {
        let key = Key { id: result.id, token: result.token };
        let Some(State::Ended { outcome, settling, batch, refused }) = self.state_mut(key) else {
            return (Answer::Unknown, None);
        };
        let sent = batch.take();
        let answer = match result.status() {
            SettleStatus::Ok => match outcome {
                End::Ack(_) => Answer::Acked,
                End::Nack(_) => Answer::Nacked,
                End::Snooze(_) => Answer::Snoozed,
                End::Release(_) => Answer::Released,
            },
            SettleStatus::Unavailable => {
                self.later.push(key);
                return (Answer::Later, sent);
            }
            SettleStatus::Invalid if !*refused => {
                *refused = true;
                *outcome = nack(format!("the outcome was refused: {}", result.message));
                self.unsent.push_back(key);
                return (Answer::Refused, sent);
            }
            SettleStatus::LeaseLost | SettleStatus::Invalid | SettleStatus::Unspecified => Answer::Lost,
        };
        settling.ended(outcome, Some(result), broker);
        self.entries.remove(&key);
        (answer, sent)
    }

    /// Outcomes that could not be stored may be sent again.
    pub(crate) fn send_again(&mut self) {
        self.unsent.extend(self.later.drain(..));
    }

    /// The broker has ended a lease. An outcome in flight gets its own answer. Returns whether the job was running.
    pub(crate) fn cancel(&mut self, key: Key, reason: CancelReason) -> bool {
        let Some(Entry { task_type, state }) = self.entries.remove(&key) else {
            return false;
        };
        let (worked_on, left) = match state {
            State::Queued(lease) => {
                lease.cancel(reason);
                (true, None)
            }
            State::Running(lease, task) => {
                lease.cancel(reason);
                (true, Some(State::Over(task)))
            }
            State::Over(_) | State::Ended { .. } => (false, Some(state)),
        };
        if let Some(state) = left {
            self.entries.insert(key, Entry { task_type, state });
        }
        worked_on
    }

    /// Tells every handler to stop; their results still count.
    pub(crate) fn cancel_all(&self, reason: CancelReason) {
        for entry in self.entries.values() {
            if let State::Queued(lease) | State::Running(lease, _) = &entry.state {
                lease.cancel(reason);
            }
        }
    }

    /// Ends every handler now. Jobs that are still held are released, and their attempts do not count.
    pub(crate) fn abort_all(&mut self) {
        for (key, entry) in mem::take(&mut self.entries) {
            match entry.state {
                State::Ended { .. } => drop(self.entries.insert(key, entry)),
                State::Over(task) => task.abort(),
                State::Queued(_) => self.release(key),
                State::Running(_, task) => {
                    task.abort();
                    self.release(key);
                }
            }
        }
    }

    /// The worker ends: there will be no answers any more.
    pub(crate) fn give_up(&mut self, broker: &Address) {
        for entry in self.entries.values_mut() {
            if let State::Ended { outcome, settling, .. } = &mut entry.state {
                settling.ended(outcome, None, broker);
            }
        }
    }

    /// The leases to name when resuming, each job once: of two, the one whose handler runs.
    pub(crate) fn held(&self) -> Vec<proto::Lease> {
        let mut tokens: HashMap<i64, i64> = HashMap::with_capacity(self.entries.len());
        for (key, entry) in &self.entries {
            match &entry.state {
                State::Over(_) => {}
                State::Ended { .. } => {
                    tokens.entry(key.id).or_insert(key.token);
                }
                State::Queued(_) | State::Running(..) => {
                    tokens.insert(key.id, key.token);
                }
            }
        }
        tokens.into_iter().map(|(id, token)| proto::Lease::new(id, token)).take(MAX_HELD).collect()
    }

    /// A new stream has started, and the session has kept these leases. Returns how many handlers run on a lost lease.
    /// Outcomes are sent again in any case: they may have been committed before the stream broke, and then the answer
    /// is OK again.
    pub(crate) fn resume(&mut self, kept: &[proto::Lease]) -> usize {
        let kept: HashSet<Key> = kept.iter().map(|lease| Key { id: lease.id, token: lease.token }).collect();
        self.later.clear();
        let unsent: HashSet<Key> = self.unsent.iter().copied().collect();
        let mut lost = Vec::new();
        for (key, entry) in &mut self.entries {
            match &mut entry.state {
                State::Ended { batch, .. } => {
                    *batch = None;
                    if !unsent.contains(key) {
                        self.unsent.push_back(*key);
                    }
                }
                State::Queued(_) | State::Running(..) if !kept.contains(key) => lost.push(*key),
                State::Queued(_) | State::Running(..) | State::Over(_) => {}
            }
        }
        let cancelled = |key: &Key| self.cancel(*key, CancelReason::LeaseLost);
        lost.iter().copied().filter(cancelled).count()
    }

    fn state_mut(&mut self, key: Key) -> Option<&mut State> {
        self.entries.get_mut(&key).map(|entry| &mut entry.state)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{mailbox::Mailbox, outcome::OUTCOME_OVERHEAD},
        *,
    };

    fn lease(id: i64, token: i64) -> Arc<Lease> {
        Lease::new(Key { id, token }, Arc::new(Mailbox::new()), std::time::Duration::from_secs(1))
    }

    fn ended(ledger: &mut Ledger, id: i64, token: i64) {
        ledger.release(Key { id, token });
    }

    #[test]
    fn two_outcomes_of_one_job_go_in_two_messages() {
        let mut ledger = Ledger::default();
        ended(&mut ledger, 1, 10);
        ended(&mut ledger, 2, 20);
        ended(&mut ledger, 1, 11);
        assert_eq!(ledger.next_batch(0, 10, 1000).len(), 2);
        assert_eq!(ledger.next_batch(1, 10, 1000).len(), 1);
        assert_eq!(ledger.unsent(), 0);
    }

    #[test]
    fn a_resume_names_each_job_once_by_the_lease_that_is_worked_on() {
        let mut ledger = Ledger::default();
        ended(&mut ledger, 1, 10);
        assert!(ledger.add(lease(1, 11), 0));
        assert_eq!(ledger.held(), [proto::Lease::new(1, 11)]);
        assert_eq!(ledger.resume(&[proto::Lease::new(1, 11)]), 0);
        let again = ledger.next_batch(0, 10, 1000);
        assert_eq!(again[0].token, 10, "the outcome of the other one is sent again all the same");
    }

    #[test]
    fn messages_are_bounded_in_outcomes_and_bytes() {
        let mut ledger = Ledger::default();
        for id in 0..10 {
            ended(&mut ledger, id, id);
        }
        assert_eq!(ledger.next_batch(0, 3, 1000).len(), 3);
        assert_eq!(ledger.next_batch(1, 10, 2 * OUTCOME_OVERHEAD).len(), 2);
        assert_eq!(ledger.next_batch(2, 10, 1).len(), 1, "one always goes");
    }
}
