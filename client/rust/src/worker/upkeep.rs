//! Work of a session with or without a stream: commands, mail, timers.

use std::time::Duration;

use howdah_proto::v1::CancelReason;
use tokio::time::Instant;

use super::{
    handle::Command,
    job::Job,
    session::{HANDLER_PATIENCE, Session, Stop},
    task,
};

/// How long confirming the last outcomes may take.
const CONFIRM_PATIENCE: Duration = Duration::from_secs(5);
/// How long a stop waits for the next confirmation when no handler runs any more, however long its handlers may take.
/// The broker may be connected while its database is away.
const STORE_PATIENCE: Duration = Duration::from_secs(30);
/// No timer is set further ahead, so that there always is one.
const FAR: Duration = Duration::from_hours(1);

impl Session {
    pub(crate) fn command(&mut self, command: Command) {
        match command {
            Command::Stop => {
                self.begin_stop(Some(Instant::now() + self.config.stop_timeout));
                for job in self.slots.take_queues() {
                    let key = job.lease().key();
                    // The job may have been cancelled while it waited.
                    if self.ledger.is_queued(key) {
                        self.ledger.release(key);
                    }
                }
            }
            Command::Abort => {
                self.ledger.abort_all();
                self.stop = Stop::Now;
            }
            Command::Resize { task_type, jobs } => {
                if let Some(&index) = self.config.index.get(&task_type) {
                    self.windows[index] = jobs;
                    self.slots.resize(index, jobs);
                    self.fill_slots(index);
                    if !self.is_stopping() {
                        self.resized.push_back(self.window(index));
                    }
                }
            }
        }
    }

    /// Takes no more jobs. A deadline that is set does not change.
    pub(crate) fn begin_stop(&mut self, deadline: Option<Instant>) {
        if matches!(self.stop, Stop::No | Stop::Draining(None)) {
            self.stop = Stop::Draining(deadline);
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stop != Stop::No
    }

    /// Takes outcomes, extensions and progress of the handlers.
    pub(crate) fn take_mail(&mut self) {
        let mut mail = self.mailbox.take(std::mem::take(&mut self.spare));
        for (key, outcome, settling) in mail.done.drain(..) {
            if let Some(task_type) = self.ledger.finish(key, outcome, settling) {
                self.slots.leave(task_type);
                self.fill_slots(task_type);
            }
        }
        for call in mail.extensions.drain(..) {
            self.extensions.add(call);
        }
        for call in mail.reports.drain(..) {
            self.reports.add(call);
        }
        self.spare = mail;
    }

    /// Starts waiting jobs while there are slots.
    fn fill_slots(&mut self, task_type: usize) {
        while let Some(job) = self.slots.next(task_type) {
            if self.ledger.is_queued(job.lease().key()) {
                self.run_job(task_type, job);
            } else {
                // The job was cancelled while it waited.
                self.slots.leave(task_type);
            }
        }
    }

    /// Runs a job that has a slot.
    pub(crate) fn run_job(&mut self, task_type: usize, job: Job) {
        let key = job.lease().key();
        let handler = self.config.types[task_type].handler.clone();
        let telemetry = self.client.settings().telemetry.clone();
        let broker = self.client.address(self.broker).clone();
        let task = task::spawn(handler, job, self.config.abort_cancelled, telemetry, broker);
        self.ledger.begin(key, task);
    }

    /// In a stop, handlers may take as long as they like, but not confirmations that never come.
    pub(crate) fn note_wait(&mut self) {
        let stops = matches!(self.stop, Stop::Draining(Some(_)));
        if stops && self.waits_since.is_none() && self.ledger.only_unconfirmed() {
            self.waits_since = Some(Instant::now());
        }
    }

    /// When to stop waiting for confirmations: at once when the broker has given up the leases.
    fn wait_ends(&self) -> Option<Instant> {
        let since = self.waits_since?;
        let latest = since + STORE_PATIENCE;
        Some(match self.grace {
            _ if self.has_stream => latest,
            Some(_) => self.lost_at.unwrap_or(since).min(latest),
            None => since + CONFIRM_PATIENCE,
        })
    }

    /// When the next timer is due, with or without a stream.
    pub(crate) fn next_timer(&self) -> Instant {
        let stop = match self.stop {
            Stop::No | Stop::Draining(None) => None,
            Stop::Draining(until) => until,
            Stop::Cancelling(until) | Stop::Closing(until) => Some(until),
            Stop::Now => Some(Instant::now()),
        };
        let due = [stop, self.lost_at, self.again_at, self.wait_ends()];
        let far = Instant::now() + FAR;
        due.into_iter().flatten().min().unwrap_or(far)
    }

    /// Handles due timers.
    pub(crate) fn on_timer(&mut self) {
        let now = Instant::now();
        let due = |at: Instant| at <= now;
        if self.again_at.is_some_and(due) {
            self.again_at = None;
            self.ledger.send_again();
            self.extensions.send_again();
            self.reports.send_again();
        }
        if self.lost_at.is_some_and(due) {
            self.lost_at = None;
            // The broker decides when we reconnect: it may have kept the leases.
            tracing::warn!("no stream within the grace time: the leases may be lost");
            self.ledger.cancel_all(CancelReason::LeaseLost);
        }
        if self.wait_ends().is_some_and(due) {
            self.stop = Stop::Now;
        }
        self.stop = match self.stop {
            Stop::Draining(Some(until)) if due(until) => {
                self.ledger.cancel_all(CancelReason::Unspecified);
                Stop::Cancelling(now + HANDLER_PATIENCE)
            }
            Stop::Cancelling(until) if due(until) => {
                self.ledger.abort_all();
                Stop::Closing(now + CONFIRM_PATIENCE)
            }
            Stop::Closing(until) if due(until) => Stop::Now,
            same => same,
        };
    }
}
