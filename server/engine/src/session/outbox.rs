//! Outbox: jobs, answers and notices that a session still has to send. They are put into a message when the transport
//! can take one. If the worker takes no jobs for a second, its queued jobs are released.

use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
};

use howdah_core::job::{Lease, LeasedJob};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::{Answer, CancelReason, JOB_OVERHEAD, ServerMessage, Session};
use crate::dispatch::{Charge, Dispatch, Recipient as _, UNSENT_AFTER};

/// Approximate maximum bytes of a message with jobs, answers or cancelled leases. A single larger job gets its own
/// message.
const MESSAGE_BYTES: u64 = 256 << 10;
/// Maximum bytes of an answer in a message: numbers, and the text of its status.
const ANSWER_BYTES: u64 = 128;

#[derive(Default)]
pub struct Outbox {
    // Messages in the order of sending: `Welcome` is the first of a stream, and `Drain` the last.
    messages: VecDeque<ServerMessage>,
    // True if a `Ping` is to be sent.
    ping: bool,
    // True if a `Pong` is to be sent. One `Pong` answers any number of pings.
    pong: bool,
    answers: VecDeque<Answer>,
    extended: VecDeque<Answer>,
    progressed: VecDeque<Answer>,
    cancelled: VecDeque<(Lease, CancelReason)>,
    jobs: VecDeque<LeasedJob>,
    /// Memory of the queued jobs, counted in the budget for unsent jobs that all sessions share.
    charge: Option<Charge>,
    since: Option<Instant>,
}

impl Outbox {
    /// Queues jobs. Returns whether the outbox held no jobs before.
    pub(crate) fn add_jobs(&mut self, jobs: Vec<LeasedJob>, charge: impl FnOnce() -> Charge) -> bool {
        self.charge.get_or_insert_with(charge).add(jobs.iter().map(memory_of).sum());
        self.jobs.extend(jobs);
        let begins = self.since.is_none() && !self.jobs.is_empty();
        if begins {
            self.since = Some(Instant::now());
        }
        begins
    }

    pub fn add_answers(&mut self, answers: Vec<Answer>) {
        self.answers.extend(answers);
    }

    pub fn add_extended(&mut self, answers: Vec<Answer>) {
        self.extended.extend(answers);
    }

    pub fn add_progressed(&mut self, answers: Vec<Answer>) {
        self.progressed.extend(answers);
    }

    pub fn add_cancelled(&mut self, leases: Vec<Lease>, reason: CancelReason) {
        self.cancelled.extend(leases.into_iter().map(|lease| (lease, reason)));
    }

    pub(crate) fn add_message(&mut self, message: ServerMessage) {
        // `Drain` is the last message about jobs: the session takes unsent jobs back before it queues `Drain`.
        self.messages.push_back(message);
    }

    pub fn add_ping(&mut self) {
        self.ping = true;
    }

    pub fn add_pong(&mut self) {
        self.pong = true;
    }

    /// Returns whether the session, or its principal, uses its full share of the memory for unsent jobs.
    pub(crate) fn is_full(&self) -> bool {
        self.charge.as_ref().is_some_and(Charge::is_full)
    }

    /// Returns whether the queued jobs use so little memory that a stalled session may get jobs again.
    pub(crate) fn is_low(&self) -> bool {
        self.charge.as_ref().is_none_or(Charge::is_low)
    }

    pub(crate) fn take_jobs(&mut self) -> Vec<LeasedJob> {
        self.since = None;
        self.charge = None;
        self.jobs.drain(..).collect()
    }

    /// Removes an unsent job. Returns false if it was already sent.
    pub(crate) fn withdraw(&mut self, lease: Lease) -> bool {
        let Some(at) = self.jobs.iter().position(|job| job.lease == lease) else { return false };
        let withdrawn: Vec<_> = self.jobs.drain(at..=at).collect();
        self.discharge(&withdrawn);
        true
    }

    fn discharge(&mut self, jobs: &[LeasedJob]) {
        if let Some(charge) = &mut self.charge {
            charge.subtract(jobs.iter().map(memory_of).sum());
        }
    }

    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
            && !self.ping
            && !self.pong
            && self.answers.is_empty()
            && self.extended.is_empty()
            && self.progressed.is_empty()
            && self.cancelled.is_empty()
            && self.jobs.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn waiting_since(&self) -> Option<Instant> {
        self.since
    }

    /// Returns the next message to send, of at most `max_bytes`, and the number of answers in it.
    pub fn next(&mut self, max_bytes: u64) -> Option<(ServerMessage, usize)> {
        let bound = max_bytes.min(MESSAGE_BYTES);
        if let Some(message) = self.messages.pop_front() {
            return Some((message, 0));
        }
        if std::mem::take(&mut self.ping) {
            return Some((ServerMessage::Ping, 0));
        }
        if std::mem::take(&mut self.pong) {
            return Some((ServerMessage::Pong, 0));
        }
        if let Some((_, reason)) = self.cancelled.front().copied() {
            let part = take_part(&mut self.cancelled, bound, |(_, r)| if *r == reason { 40 } else { u64::MAX / 2 });
            return Some((ServerMessage::Cancel(part.into_iter().map(|(lease, _)| lease).collect(), reason), 0));
        }
        let answer_bytes = |a: &Answer| ANSWER_BYTES + a.status.as_ref().err().map_or(0, |text| text.len() as u64);
        if !self.answers.is_empty() {
            let part = take_part(&mut self.answers, bound, answer_bytes);
            let count = part.len();
            return Some((ServerMessage::Settled(part), count));
        }
        if !self.extended.is_empty() {
            let part = take_part(&mut self.extended, bound, answer_bytes);
            let count = part.len();
            return Some((ServerMessage::Extended(part), count));
        }
        if !self.progressed.is_empty() {
            let part = take_part(&mut self.progressed, bound, answer_bytes);
            let count = part.len();
            return Some((ServerMessage::Progressed(part), count));
        }
        let jobs = take_part(&mut self.jobs, bound, memory_of);
        self.discharge(&jobs);
        // The worker is reading, so the second after which its remaining jobs are released starts again.
        self.since = (!self.jobs.is_empty()).then(Instant::now);
        (!jobs.is_empty()).then_some((ServerMessage::Jobs(jobs), 0))
    }
}

/// Returns the approximate memory of a queued job.
fn memory_of(job: &LeasedJob) -> u64 {
    job.weight + JOB_OVERHEAD
}

/// Takes items from the front that fit into `most_bytes`, at least one.
fn take_part<T>(queue: &mut VecDeque<T>, most_bytes: u64, bytes_of: impl Fn(&T) -> u64) -> Vec<T> {
    let (mut bytes, mut count) = (64, 0);
    for item in queue.iter() {
        bytes += bytes_of(item);
        if count > 0 && bytes > most_bytes {
            break;
        }
        count += 1;
    }
    queue.drain(..count).collect()
}

/// Sessions with queued jobs, in the order in which their jobs began to wait.
#[derive(Default)]
pub(super) struct UnsentWatch {
    waiting: Mutex<VecDeque<(Instant, Weak<Session>)>>,
    arrived: Notify,
}

impl UnsentWatch {
    pub(super) fn add(&self, session: &Arc<Session>) {
        let mut waiting = self.waiting.lock();
        waiting.push_back((Instant::now(), Arc::downgrade(session)));
        if waiting.len() == 1 {
            self.arrived.notify_one();
        }
    }
}

/// Releases the queued jobs of sessions whose worker has taken no jobs for a second. Never returns.
pub async fn watch_unsent(sessions: Arc<super::Sessions>, dispatch: Arc<Dispatch>) {
    let watch = sessions.unsent_watch();
    loop {
        let first = watch.waiting.lock().pop_front();
        let Some((since, session)) = first else {
            watch.arrived.notified().await;
            continue;
        };
        tokio::time::sleep_until(since + UNSENT_AFTER).await;
        let Some(session) = session.upgrade() else { continue };
        let unsent = {
            let mut state = session.state.lock();
            match state.outbox.waiting_since() {
                Some(since) if since + UNSENT_AFTER <= Instant::now() => state.take_unsent(),
                Some(_) => {
                    // The worker reads slowly: check again later.
                    drop(state);
                    watch.add(&session);
                    continue;
                }
                None => continue,
            }
        };
        tracing::info!(
            session = session.key,
            jobs = unsent.len(),
            "the worker does not read; its unsent jobs are released"
        );
        dispatch.stall(session.key(), true);
        session.state.lock().stalled = true;
        // If the worker is already reading again, its stream ends the stall.
        session.changed.notify_one();
        let mut freed = super::Loads::default();
        unsent.iter().for_each(|job| freed.add(job.type_id, job.weight));
        freed.free(&dispatch, session.key());
        dispatch.release(unsent);
    }
}
