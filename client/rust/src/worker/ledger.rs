//! The ledger of a worker: the leases that it holds, and the unconfirmed outcomes.
//!
//! This module does no I/O: [`serve`](super::serve) sends and receives its messages.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    hash::{Hash, Hasher},
    mem,
    sync::Arc,
};

use howdah_proto::v1::{
    self as proto, CancelReason, Nack, Release, SettleResult, SettleStatus, outcome::Outcome as End,
};
use tokio::task::AbortHandle;

use crate::{
    Error,
    telemetry::{Address, Attempt},
};

use super::{
    handle::WorkerReport,
    job::Lease,
    outcome::{Outcome, fit, nack, outcome_name, size},
};

/// Id and fencing token of a lease. The id is not enough: a job may be delivered again while an earlier handler of it still
/// runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) id: i64,
    pub(crate) token: i64,
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Only the token is hashed. Tokens are random, so hashing the id too would cost time without spreading the keys
        // better.
        self.token.hash(state);
    }
}

/// Limit in bytes for resending the unanswered outcomes of a broken stream on the next stream. Above it, they are resent by
/// `SettleJobs`, because a proxy may limit the bytes of a stream.
const RESEND_LIMIT: usize = 4 << 10;

/// Maximum number of leases in a Subscribe that resumes a session.
const MAX_HELD: usize = 100_000;

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    entries: HashMap<Key, State>,
    /// Number of queued and running jobs with a valid lease, by task type.
    live: HashMap<usize, usize>,
    /// Outcomes to send, in the order in which handlers ended.
    unsent: VecDeque<Key>,
    /// Outcomes that the broker could not store. They are resent when the backoff ends.
    later: Vec<Key>,
    /// Outcomes that are sent by `SettleJobs`, because a stream broke with too many unanswered bytes.
    unary: VecDeque<Key>,
}

#[derive(Debug)]
enum State {
    /// The job waits for a slot of its task type.
    Queued(Arc<Lease>),
    Running(Arc<Lease>, AbortHandle),
    /// The lease is lost and the handler still runs; its outcome is dropped.
    Lost(Arc<Lease>, AbortHandle),
    /// The handler has ended. The entry is kept until the broker confirms the outcome.
    Ended {
        outcome: End,
        attempt: Attempt,
        way: Way,
        /// Whether the broker has refused the handler's outcome. `outcome` is then the nack that replaces it.
        refused: bool,
    },
}

/// Where an outcome is on its way to the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// In `unsent`.
    Queued,
    /// Sent on this stream, with this batch.
    Sent(u64),
    /// In `later`.
    Later,
    /// In `unary`, or sent by `SettleJobs`.
    Unary,
}

impl Ledger {
    /// Adds a received job. Returns false if the ledger already has a job with this id and token.
    pub(crate) fn add(&mut self, lease: Arc<Lease>) -> bool {
        let (key, task_type) = (lease.key, lease.task_type);
        let is_new = !self.entries.contains_key(&key);
        if is_new {
            self.entries.insert(key, State::Queued(lease));
            *self.live.entry(task_type).or_default() += 1;
        }
        is_new
    }

    /// Number of queued and running jobs of a task type whose lease is valid.
    pub(crate) fn live(&self, task_type: usize) -> usize {
        self.live.get(&task_type).copied().unwrap_or_default()
    }

    /// Counts a job as no longer queued or running with a valid lease.
    fn left(&mut self, task_type: usize) {
        if let Some(live) = self.live.get_mut(&task_type) {
            *live = live.saturating_sub(1);
        }
    }

    /// Queues a release for a job that will not run. The attempt then does not count.
    pub(crate) fn release(&mut self, key: Key) {
        self.end(key, End::Release(Release {}), Attempt::none());
    }

    /// Whether the job still waits for a slot. False if its lease has ended in the meantime.
    pub(crate) fn is_queued(&self, key: Key) -> bool {
        matches!(self.entries.get(&key), Some(State::Queued(_)))
    }

    /// Records that `task` runs the handler of a queued job.
    pub(crate) fn begin(&mut self, key: Key, task: AbortHandle) {
        if let Some(state) = self.entries.get_mut(&key)
            && let State::Queued(lease) = &*state
        {
            *state = State::Running(lease.clone(), task);
        }
    }

    /// Records the outcome of a handler. Returns the index of the task type whose slot becomes free, if the handler used one.
    pub(crate) fn finish(&mut self, key: Key, outcome: Outcome, attempt: Attempt) -> Option<usize> {
        let state = self.entries.get(&key)?;
        let (State::Running(lease, _) | State::Lost(lease, _)) = state else {
            return None;
        };
        let task_type = lease.task_type;
        if matches!(state, State::Lost(..)) {
            self.entries.remove(&key);
        } else {
            self.end(key, outcome.into_proto(), attempt);
        }
        Some(task_type)
    }

    fn end(&mut self, key: Key, outcome: End, attempt: Attempt) {
        let state = State::Ended { outcome, attempt, way: Way::Queued, refused: false };
        if let Some(State::Queued(lease) | State::Running(lease, _)) = self.entries.insert(key, state) {
            self.left(lease.task_type);
        }
        self.unsent.push_back(key);
    }

    /// Number of outcomes that are queued for the stream.
    pub(crate) fn unsent(&self) -> usize {
        self.unsent.len()
    }

    /// Whether no handler runs and all outcomes are confirmed.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Number of running handlers.
    pub(crate) fn running(&self) -> usize {
        let running = |state: &&State| matches!(state, State::Running(..) | State::Lost(..));
        self.entries.values().filter(running).count()
    }

    /// Whether all handlers have ended and some outcomes are unconfirmed.
    pub(crate) fn only_unconfirmed(&self) -> bool {
        !self.is_empty() && self.entries.values().all(|state| matches!(state, State::Ended { .. }))
    }

    /// Returns the ids of jobs with unconfirmed outcomes, and the names of these outcomes.
    pub(crate) fn unconfirmed(&self) -> impl Iterator<Item = (i64, &'static str)> {
        self.entries.iter().filter_map(|(key, state)| match state {
            State::Ended { outcome, .. } => Some((key.id, outcome_name(outcome))),
            _ => None,
        })
    }

    /// Takes queued outcomes for a message: for the Settle with the number of `Way::Sent`, or for a `SettleJobs` call. Takes at
    /// most `max_outcomes` and `max_bytes`, or one outcome if it alone is larger.
    pub(crate) fn take(&mut self, to: Way, max_outcomes: usize, max_bytes: usize) -> Vec<proto::Outcome> {
        let queue = if to == Way::Unary { &mut self.unary } else { &mut self.unsent };
        let room = queue.len().min(max_outcomes);
        let mut outcomes = Vec::with_capacity(room);
        let mut ids = HashSet::with_capacity(room);
        let mut bytes = 0;
        while outcomes.len() < max_outcomes
            && let Some(&key) = queue.front()
        {
            let Some(State::Ended { outcome, way, .. }) = self.entries.get_mut(&key) else {
                // The broker has confirmed this outcome while it was queued.
                queue.pop_front();
                continue;
            };
            if to != Way::Unary {
                fit(outcome, max_bytes);
            }
            bytes += size(outcome);
            // A message may name a job only once. A job that was delivered again after a lost lease may have two outcomes, so
            // the second one waits for the next message.
            let fits = bytes <= max_bytes || outcomes.is_empty();
            if !fits || !ids.insert(key.id) {
                break;
            }
            *way = to;
            outcomes.push(proto::Outcome { id: key.id, token: key.token, outcome: Some(outcome.clone()) });
            queue.pop_front();
        }
        outcomes
    }

    /// Handles the broker's result for an outcome, and counts it. Returns the number of the batch with which the outcome was sent
    /// on this stream.
    pub(crate) fn settled(
        &mut self,
        result: &SettleResult,
        broker: &Address,
        report: &mut WorkerReport,
    ) -> Option<u64> {
        let key = Key { id: result.id, token: result.token };
        let Some(State::Ended { outcome, attempt, way, refused }) = self.entries.get_mut(&key) else {
            return None;
        };
        let batch = if let Way::Sent(batch) = way { Some(*batch) } else { None };
        match result.status() {
            SettleStatus::Ok => match outcome {
                End::Ack(_) => report.acked += 1,
                End::Nack(_) => report.failed += 1,
                End::Snooze(_) => report.snoozed += 1,
                End::Release(_) => report.released += 1,
            },
            SettleStatus::Unavailable => {
                *way = Way::Later;
                self.later.push(key);
                return batch;
            }
            SettleStatus::Invalid if !*refused => {
                tracing::warn!(job = key.id, result.message, "the broker refused the outcome");
                *refused = true;
                *outcome = nack(format!("the outcome was refused: {}", result.message));
                *way = Way::Queued;
                self.unsent.push_back(key);
                return batch;
            }
            SettleStatus::LeaseLost | SettleStatus::Invalid | SettleStatus::Unspecified => {
                tracing::warn!(job = key.id, "the lease was lost before the outcome arrived");
                report.lost += 1;
            }
        }
        attempt.settled(outcome, Some(result), broker);
        self.entries.remove(&key);
        batch
    }

    /// Queues the outcomes that the broker could not store, to be sent again.
    pub(crate) fn resend(&mut self) {
        for key in mem::take(&mut self.later) {
            self.queue(key);
        }
    }

    /// Queues an outcome for the stream.
    fn queue(&mut self, key: Key) {
        if let Some(State::Ended { way, .. }) = self.entries.get_mut(&key) {
            *way = Way::Queued;
            self.unsent.push_back(key);
        }
    }

    /// Handles the broker's message that a lease has ended. Returns whether the job was queued or running. An outcome in flight
    /// is not affected: the broker answers it, too.
    pub(crate) fn cancel(&mut self, key: Key, reason: CancelReason) -> bool {
        let Some(state) = self.entries.get_mut(&key) else {
            return false;
        };
        let (State::Queued(lease) | State::Running(lease, _)) = &*state else {
            return false;
        };
        let lease = lease.clone();
        lease.cancel(reason);
        if let State::Running(_, task) = &*state {
            *state = State::Lost(lease.clone(), task.clone());
        } else {
            self.entries.remove(&key);
        }
        self.left(lease.task_type);
        true
    }

    /// Tells all handlers to abandon their jobs. Their outcomes are still sent.
    pub(crate) fn cancel_all(&self, reason: CancelReason) {
        for state in self.entries.values() {
            if let State::Queued(lease) | State::Running(lease, _) = state {
                lease.cancel(reason);
            }
        }
    }

    /// Aborts all handlers. Releases jobs that are still held, so that their attempts do not count.
    pub(crate) fn abort_all(&mut self) {
        self.live.clear();
        for (key, state) in mem::take(&mut self.entries) {
            match state {
                State::Ended { .. } => drop(self.entries.insert(key, state)),
                State::Lost(_, task) => task.abort(),
                State::Queued(_) => self.release(key),
                State::Running(_, task) => {
                    task.abort();
                    self.release(key);
                }
            }
        }
    }

    /// Ends the telemetry of unconfirmed outcomes, because the worker ends.
    pub(crate) fn give_up(&mut self, broker: &Address) {
        for state in self.entries.values_mut() {
            if let State::Ended { outcome, attempt, .. } = state {
                attempt.settled(outcome, None, broker);
            }
        }
    }

    /// Returns the leases to name in the Subscribe that resumes a session, one per job. If a job has two leases, the lease
    /// that is queued or running is named.
    pub(crate) fn held(&self) -> Vec<proto::Lease> {
        let mut tokens: HashMap<i64, i64> = HashMap::with_capacity(self.entries.len());
        for (key, state) in &self.entries {
            match state {
                State::Lost(..) => {}
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

    /// Resumes the session on a new stream, where the broker has kept these leases. Returns the number of queued and running
    /// jobs whose lease is lost. Unconfirmed outcomes are resent even if their lease is gone: the broker may have committed
    /// them before the stream broke, and then answers OK again.
    pub(crate) fn resume(&mut self, kept: &[proto::Lease]) -> usize {
        let kept: HashSet<Key> = kept.iter().map(|lease| Key { id: lease.id, token: lease.token }).collect();
        let unanswered = |state: &State| match state {
            State::Ended { outcome, way: Way::Sent(_), .. } => size(outcome),
            _ => 0,
        };
        let is_large = self.entries.values().map(unanswered).sum::<usize>() > RESEND_LIMIT;
        let mut lost = Vec::new();
        for (key, state) in &mut self.entries {
            match state {
                State::Ended { way: way @ Way::Sent(_), .. } if is_large => {
                    *way = Way::Unary;
                    self.unary.push_back(*key);
                }
                State::Ended { way: way @ Way::Sent(_), .. } => {
                    *way = Way::Queued;
                    self.unsent.push_back(*key);
                }
                State::Queued(_) | State::Running(..) if !kept.contains(key) => lost.push(*key),
                State::Queued(_) | State::Running(..) | State::Lost(..) | State::Ended { .. } => {}
            }
        }
        self.resend();
        let cancelled = |key: &Key| self.cancel(*key, CancelReason::LeaseLost);
        lost.iter().copied().filter(cancelled).count()
    }

    /// Queues the outcomes of a failed `SettleJobs` call again.
    pub(crate) fn requeue_unary(&mut self, keys: Vec<Key>) {
        keys.into_iter().rev().for_each(|key| self.unary.push_front(key));
    }

    /// Queues the outcomes of a `SettleJobs` call for the stream, unless the call has settled them.
    pub(crate) fn move_to_stream(&mut self, keys: &[Key]) {
        for key in keys {
            if matches!(self.entries.get(key), Some(State::Ended { way: Way::Unary, .. })) {
                self.queue(*key);
            }
        }
    }

    /// Replaces an outcome that a proxy refuses because of its size by a small nack without a retry. Returns the size of the
    /// refused outcome in bytes.
    pub(crate) fn fail_too_large(&mut self, key: Key, error: &Error) -> usize {
        let Some(State::Ended { outcome, .. }) = self.entries.get_mut(&key) else {
            return 0;
        };
        let bytes = size(outcome);
        let error = format!("the outcome takes {bytes} bytes and does not reach the broker: {error}");
        *outcome = End::Nack(Nack { error, no_retry: true, ..Nack::default() });
        self.move_to_stream(&[key]);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::{super::outcome::OUTCOME_OVERHEAD, *};

    fn lease(id: i64, token: i64) -> Arc<Lease> {
        Lease::new(Key { id, token }, 0, tokio::sync::mpsc::unbounded_channel().0, std::time::Duration::from_secs(1))
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
        assert_eq!(ledger.take(Way::Sent(0), 10, 1000).len(), 2);
        assert_eq!(ledger.take(Way::Sent(1), 10, 1000).len(), 1);
        assert_eq!(ledger.unsent(), 0);
    }

    #[test]
    fn a_resume_names_each_job_once_by_its_running_lease() {
        let mut ledger = Ledger::default();
        ended(&mut ledger, 1, 10);
        assert!(ledger.add(lease(1, 11)));
        assert_eq!(ledger.held(), [proto::Lease::new(1, 11)]);
        assert_eq!(ledger.resume(&[proto::Lease::new(1, 11)]), 0);
        let resent = ledger.take(Way::Sent(0), 10, 1000);
        assert_eq!(resent[0].token, 10, "the outcome of the other lease is resent");
    }

    #[test]
    fn messages_are_bounded_in_outcomes_and_bytes() {
        let mut ledger = Ledger::default();
        for id in 0..10 {
            ended(&mut ledger, id, id);
        }
        assert_eq!(ledger.take(Way::Sent(0), 3, 1000).len(), 3);
        assert_eq!(ledger.take(Way::Sent(1), 10, 2 * OUTCOME_OVERHEAD).len(), 2);
        assert_eq!(ledger.take(Way::Sent(2), 10, 1).len(), 1, "one always goes");
    }
}
