//! Messages on their way to a worker. They are made when the transport can take them, so that a worker that does not
//! read costs no memory. Jobs that wait here for a second are released.

use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::{Answer, CancelReason, JOB_OVERHEAD, ServerMessage, Session};
use crate::{
    dispatch::{Dispatch, Recipient as _, UNSENT_AFTER},
    job::{Lease, LeasedJob},
};

/// The approximate bytes of jobs in a message; one job may be larger.
const MESSAGE_BYTES: u64 = 256 << 10;
/// The most bytes of an answer in a message: numbers, and the text of its status.
const ANSWER_BYTES: u64 = 128;

#[derive(Default)]
pub(crate) struct Outbox {
    // Welcome comes first, Drain last.
    messages: VecDeque<ServerMessage>,
    // Pings that were asked for and not answered; one answer serves any number.
    ping: bool,
    answers: VecDeque<Answer>,
    extended: VecDeque<Answer>,
    progressed: VecDeque<Answer>,
    cancelled: VecDeque<(Lease, CancelReason)>,
    jobs: VecDeque<LeasedJob>,
    since: Option<Instant>,
}

impl Outbox {
    /// Returns whether jobs have started to wait.
    pub(crate) fn add_jobs(&mut self, jobs: Vec<LeasedJob>) -> bool {
        self.jobs.extend(jobs);
        let begins = self.since.is_none() && !self.jobs.is_empty();
        if begins {
            self.since = Some(Instant::now());
        }
        begins
    }

    pub(crate) fn add_answers(&mut self, answers: Vec<Answer>) {
        self.answers.extend(answers);
    }

    pub(crate) fn add_extended(&mut self, answers: Vec<Answer>) {
        self.extended.extend(answers);
    }

    pub(crate) fn add_progressed(&mut self, answers: Vec<Answer>) {
        self.progressed.extend(answers);
    }

    pub(crate) fn add_cancelled(&mut self, leases: Vec<Lease>, reason: CancelReason) {
        self.cancelled.extend(leases.into_iter().map(|lease| (lease, reason)));
    }

    pub(crate) fn add_message(&mut self, message: ServerMessage) {
        // Drain is the last message about jobs: jobs that were claimed before are sent before it.
        self.messages.push_back(message);
    }

    pub(crate) fn add_ping(&mut self) {
        self.ping = true;
    }

    pub(crate) fn take_jobs(&mut self) -> Vec<LeasedJob> {
        self.since = None;
        self.jobs.drain(..).collect()
    }

    /// Takes a job back that was not sent; false if it was sent.
    pub(crate) fn withdraw(&mut self, lease: Lease) -> bool {
        let before = self.jobs.len();
        self.jobs.retain(|job| job.lease != lease);
        self.jobs.len() < before
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
            && !self.ping
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

    /// The next message, of at most `max_bytes`, and the number of answers in it.
    pub(crate) fn next(&mut self, max_bytes: u64) -> Option<(ServerMessage, usize)> {
        let bound = max_bytes.min(MESSAGE_BYTES);
        if let Some(message) = self.messages.pop_front() {
            return Some((message, 0));
        }
        if std::mem::take(&mut self.ping) {
            return Some((ServerMessage::Ping, 0));
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
        let jobs = take_part(&mut self.jobs, bound, |job| job.weight + JOB_OVERHEAD);
        // The worker is reading: the rest starts to wait only now.
        self.since = (!self.jobs.is_empty()).then(Instant::now);
        (!jobs.is_empty()).then_some((ServerMessage::Jobs(jobs), 0))
    }
}

/// The items from the front that fit into this many bytes, and at least one.
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

/// Sessions whose outbox has started to wait, in order of time.
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

/// Takes back jobs that could not be sent for a second. Never ends.
pub(crate) async fn watch_unsent(sessions: Arc<super::Sessions>, dispatch: Arc<Dispatch>) {
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
                    // It reads slowly: check again later.
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
        // If it reads again by now, this makes it known.
        session.changed.notify_one();
        let mut freed = super::Loads::default();
        unsent.iter().for_each(|job| freed.add(job.type_id, job.weight));
        freed.free(&dispatch, session.key());
        dispatch.release(unsent);
    }
}
