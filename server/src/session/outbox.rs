//! What is on its way to a worker. It leaves when the transport can take it, so that a worker that
//! does not read costs no memory: jobs that wait here for a second go back to the queue.

use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::{Answer, JOB_OVERHEAD, ServerMessage, Session};
use crate::{
    dispatch::{Dispatch, UNSENT_AFTER},
    job::{Lease, LeasedJob},
};

/// Bytes of jobs in a message, about; one job may be larger.
const MESSAGE_BYTES: u64 = 256 << 10;
/// Answers in a message at most.
const MESSAGE_ANSWERS: usize = 5_000;

#[derive(Default)]
pub(super) struct Outbox {
    // In the order of sending: Welcome, Cancel, Drain, Extended.
    messages: VecDeque<ServerMessage>,
    // Asked for and not sent: one answers any number.
    ping: bool,
    answers: Vec<Answer>,
    jobs: VecDeque<LeasedJob>,
    since: Option<Instant>,
}

impl Outbox {
    /// True if jobs have begun to wait.
    pub(super) fn add_jobs(&mut self, jobs: Vec<LeasedJob>) -> bool {
        self.jobs.extend(jobs);
        let begins = self.since.is_none() && !self.jobs.is_empty();
        if begins {
            self.since = Some(Instant::now());
        }
        begins
    }

    pub(super) fn add_answers(&mut self, answers: Vec<Answer>) {
        self.answers.extend(answers);
    }

    pub(super) fn add_message(&mut self, message: ServerMessage) {
        // Drain is the last word on jobs: what was claimed before goes before it.
        self.messages.push_back(message);
    }

    pub(super) fn add_ping(&mut self) {
        self.ping = true;
    }

    pub(super) fn take_jobs(&mut self) -> Vec<LeasedJob> {
        self.since = None;
        self.jobs.drain(..).collect()
    }

    /// Takes a job back that was not sent; false if it was.
    pub(super) fn withdraw(&mut self, lease: Lease) -> bool {
        let before = self.jobs.len();
        self.jobs.retain(|job| job.lease != lease);
        self.jobs.len() < before
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty() && !self.ping && self.answers.is_empty() && self.jobs.is_empty()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn waiting_since(&self) -> Option<Instant> {
        self.since
    }

    /// The next message, at most `max_bytes`; and how many answers are in it.
    pub(super) fn next(&mut self, max_bytes: u64) -> Option<(ServerMessage, usize)> {
        if let Some(message) = self.messages.pop_front() {
            let answers = match &message {
                ServerMessage::Extended(answers) => answers.len(),
                _ => 0,
            };
            return Some((message, answers));
        }
        if std::mem::take(&mut self.ping) {
            return Some((ServerMessage::Ping, 0));
        }
        if !self.answers.is_empty() {
            // An answer may carry a text of some hundred bytes; most carry none.
            let most = MESSAGE_ANSWERS.min((max_bytes / 512).max(1) as usize).min(self.answers.len());
            let answers: Vec<Answer> = self.answers.drain(..most).collect();
            let count = answers.len();
            return Some((ServerMessage::Settled(answers), count));
        }
        let bound = max_bytes.min(MESSAGE_BYTES);
        let (mut bytes, mut count) = (0, 0);
        for job in &self.jobs {
            bytes += job.weight() + JOB_OVERHEAD;
            if count > 0 && bytes > bound {
                break;
            }
            count += 1;
        }
        if count == 0 {
            return None;
        }
        let jobs: Vec<LeasedJob> = self.jobs.drain(..count).collect();
        // The worker is reading: the rest has waited only since now.
        self.since = (!self.jobs.is_empty()).then(Instant::now);
        Some((ServerMessage::Jobs(jobs), 0))
    }
}

/// Sessions whose outbox began to wait, in the order of time.
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

/// Takes back what could not be sent for a second, for ever.
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
                    // It reads, slowly: look again.
                    drop(state);
                    watch.add(&session);
                    continue;
                }
                None => continue,
            }
        };
        tracing::info!(
            session = session.id(),
            jobs = unsent.len(),
            "the worker does not read: its unsent jobs go back"
        );
        dispatch.stall(session.key(), true);
        session.state.lock().stalled = true;
        // If it reads by now, this makes it say so.
        session.changed.notify_one();
        let mut freed = super::Loads::default();
        unsent.iter().for_each(|job| freed.add(job.type_id, job.weight()));
        freed.free(&dispatch, session.key());
        dispatch.give_back(unsent);
    }
}
