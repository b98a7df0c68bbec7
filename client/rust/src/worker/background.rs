//! Work of a session that it does with or without a stream: commands, mail, timers, and outcomes that are sent by unary calls.
//!
//! To a proxy, a stream is one request, and some proxies limit the bytes of a request. If a stream breaks with many bytes of
//! unanswered outcomes, each further stream may break at the same point. So these outcomes are sent by `SettleJobs`, a few at a
//! time. A unary call that is too large fails with HTTP 413; a stream is only cut.

use std::time::Duration;

use howdah_proto::v1::{CancelReason, SettleJobsRequest, SettleResult};
use tokio::time::Instant;

use crate::{Result, call::call};

use super::{
    handle::Command,
    handler,
    job::Job,
    ledger::{Key, Way},
    session::{HANDLER_TIMEOUT, Mail, Session, Stop},
};

/// Time that the broker has to confirm the releases of jobs at the end of a stop.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(5);
/// Time that a stop waits for the broker's next confirmation once no handler runs, even if the stop timeout is longer. A
/// connected broker cannot confirm while its database is unavailable.
const STORE_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval of the timer while nothing else is due.
const FAR: Duration = Duration::from_hours(1);

impl Session {
    pub(crate) fn command(&mut self, command: Command) {
        match command {
            Command::Stop => {
                self.begin_stop(Some(Instant::now() + self.config.stop_timeout));
                let jobs = self.slots.take_queues();
                self.release_queued(&jobs);
            }
            Command::Abort => {
                self.ledger.abort_all();
                self.stop = Stop::Now;
            }
            Command::Resize { task_type, jobs } => {
                if let Some(&index) = self.config.index.get(&task_type) {
                    let jobs = jobs.min(self.config.concurrency);
                    self.windows[index] = jobs;
                    let paused = self.slots.resize(index, jobs);
                    self.release_queued(&paused);
                    self.fill_slots();
                }
            }
        }
    }

    /// Releases jobs that were taken from the queues.
    fn release_queued(&mut self, jobs: &[Job]) {
        for key in jobs.iter().map(|job| job.lease.key) {
            // A job whose lease ended while it was queued needs no release.
            if self.ledger.is_queued(key) {
                self.ledger.release(key);
            }
        }
    }

    /// Begins a stop, after which the worker takes no more jobs. Keeps the deadline of an earlier stop.
    pub(crate) fn begin_stop(&mut self, deadline: Option<Instant>) {
        if matches!(self.stop, Stop::No | Stop::Draining(None)) {
            self.stop = Stop::Draining(deadline);
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stop != Stop::No
    }

    /// Handles all mail that has arrived, and sends outcomes by unary calls if some are queued.
    pub(crate) fn take_mail(&mut self) {
        while let Ok(mail) = self.mail.try_recv() {
            self.handle_mail(mail);
        }
        self.settle_unary();
    }

    pub(crate) fn handle_mail(&mut self, mail: Mail) {
        match mail {
            Mail::Done(key, outcome, attempt) => {
                if let Some(task_type) = self.ledger.finish(key, outcome, attempt) {
                    self.slots.leave(task_type);
                    self.fill_slots();
                }
            }
            Mail::Request(request) => self.requests.add(request),
            Mail::Unary(keys, result) => self.unary_settled(keys, result),
        }
    }

    /// Starts queued jobs while slots are free.
    pub(crate) fn fill_slots(&mut self) {
        while let Some((task_type, job)) = self.slots.next() {
            let key = job.lease.key;
            if !self.ledger.is_queued(key) {
                // The lease ended while the job was queued, so the slot is free again.
                self.slots.leave(task_type);
                continue;
            }
            let handler = self.config.types[task_type].handler.clone();
            let telemetry = self.client.settings().telemetry.clone();
            let broker = self.client.address(self.broker).clone();
            let task = handler::spawn(handler, job, self.config.abort_cancelled, telemetry, broker);
            self.ledger.begin(key, task);
        }
    }

    /// Records the time from which a stopping worker waits only for confirmations, because all handlers have ended.
    pub(crate) fn track_wait(&mut self) {
        let stops = matches!(self.stop, Stop::Draining(Some(_)));
        if stops && self.waits_since.is_none() && self.ledger.only_unconfirmed() {
            self.waits_since = Some(Instant::now());
        }
    }

    /// Time at which a stopping worker gives up waiting for confirmations. While no stream is open, it is the end of the
    /// grace time at the latest, because the leases are then lost.
    fn wait_ends(&self) -> Option<Instant> {
        let since = self.waits_since?;
        let latest = since + STORE_TIMEOUT;
        Some(match self.grace {
            _ if self.has_stream => latest,
            Some(_) => self.lost_at.unwrap_or(since).min(latest),
            None => since + CONFIRM_TIMEOUT,
        })
    }

    /// Time at which the next timer of the session is due, with or without a stream.
    pub(crate) fn next_timer(&self) -> Instant {
        let stop = match self.stop {
            Stop::No | Stop::Draining(None) => None,
            Stop::Draining(until) => until,
            Stop::Cancelling(until) | Stop::Closing(until) => Some(until),
            Stop::Now => Some(Instant::now()),
        };
        let due = [stop, self.lost_at, self.resend_at, self.wait_ends(), self.slots.next_timeout()];
        let far = Instant::now() + FAR;
        due.into_iter().flatten().min().unwrap_or(far)
    }

    /// Handles due timers.
    pub(crate) fn on_timer(&mut self) {
        let now = Instant::now();
        let due = |at: Instant| at <= now;
        if self.resend_at.is_some_and(due) {
            self.resend_at = None;
            self.ledger.resend();
            self.requests.resend();
        }
        if self.lost_at.is_some_and(due) {
            self.lost_at = None;
            // The handlers are told to abandon their jobs, but their outcomes are still sent, because the broker may have
            // kept the leases.
            tracing::warn!("could not reconnect to a broker within the session's grace time: the leases may be lost");
            self.ledger.cancel_all(CancelReason::LeaseLost);
        }
        let timed_out = self.slots.take_timed_out(now);
        self.release_queued(&timed_out);
        if self.wait_ends().is_some_and(due) {
            self.stop = Stop::Now;
        }
        self.stop = match self.stop {
            Stop::Draining(Some(until)) if due(until) => {
                self.ledger.cancel_all(CancelReason::Unspecified);
                Stop::Cancelling(now + HANDLER_TIMEOUT)
            }
            Stop::Cancelling(until) if due(until) => {
                self.ledger.abort_all();
                Stop::Closing(now + CONFIRM_TIMEOUT)
            }
            Stop::Closing(until) if due(until) => Stop::Now,
            same => same,
        };
    }

    /// Makes the next `SettleJobs` call, if outcomes are queued. The result arrives as mail. While outcomes wait for the end of a
    /// backoff, no call is made.
    pub(crate) fn settle_unary(&mut self) {
        if self.unary_is_busy || self.resend_at.is_some() {
            return;
        }
        let outcomes = self.ledger.take(Way::Unary, usize::MAX, self.unary_bytes);
        if outcomes.is_empty() {
            return;
        }
        self.unary_is_busy = true;
        let keys = outcomes.iter().map(|outcome| Key { id: outcome.id, token: outcome.token }).collect();
        let (client, mail) = (self.client.clone(), self.mail_sender.clone());
        tokio::spawn(async move {
            let answer = call!(Change client.workers().settle_jobs(SettleJobsRequest { outcomes }));
            // Sending fails only if the worker has ended.
            let _ = mail.send(Mail::Unary(keys, answer.map(|answer| answer.results)));
        });
    }

    /// Handles the result of a `SettleJobs` call.
    pub(crate) fn unary_settled(&mut self, keys: Vec<Key>, result: Result<Vec<SettleResult>>) {
        self.unary_is_busy = false;
        match result {
            Ok(results) => {
                self.answered(&results);
                self.ledger.move_to_stream(&keys);
            }
            Err(error) if error.is_too_large() && keys.len() > 1 => {
                self.unary_bytes /= 2;
                self.ledger.requeue_unary(keys);
            }
            Err(error) if error.is_too_large() => {
                for key in keys {
                    let bytes = self.ledger.fail_too_large(key, &error);
                    tracing::error!(job = key.id, bytes, %error, "the outcome is too large for a proxy: the job fails");
                }
            }
            Err(error) if error.is_retried() => {
                tracing::debug!(%error, "outcomes were not sent; trying again");
                self.ledger.requeue_unary(keys);
                self.resend_later();
            }
            // The broker refused `SettleJobs`, but it may still accept the outcomes on a stream.
            Err(error) => {
                tracing::warn!(%error, "a call with outcomes was refused; sending the outcomes on the stream");
                self.ledger.move_to_stream(&keys);
            }
        }
    }
}
