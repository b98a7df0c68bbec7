//! One stream: receives and sends messages.

use howdah_proto::v1::{
    Cancel, CancelReason, Extend, Extended, LeasedJob, Progress, Progressed, Settle, SettleResult, Settled,
    WorkRequest, WorkResponse, work_request::Message as Out, work_response::Message as In,
};
use tokio::time::{Instant, sleep_until};

use crate::Error;

use super::{
    flow::Flow,
    job::{Job, Lease},
    ledger::{Answer, Key},
    link::{Link, Messages},
    session::{End, Session, Stop},
};

impl Session {
    /// Serves a stream until it ends, or until the worker must leave it to stop or to reconnect.
    pub(crate) async fn serve(&mut self, link: &mut Link, flow: &mut Flow) -> End {
        loop {
            self.pulse.record();
            self.take_mail();
            if self.is_stopping() {
                flow.request_drain();
            }
            self.track_wait();
            if let Some(end) = self.end(flow) {
                return end;
            }
            let outcomes = flow.batches.takes(self.ledger.unsent(), self.slots.limit());
            let requests = self.extensions.has_unsent() || self.reports.has_unsent();
            let window = !self.is_stopping() && self.changed_window().is_some();
            let outgoing = outcomes || !flow.control.is_empty() || requests || window;
            // With the maximum number of unanswered Settle messages, no outcome can be sent. Then the mailbox is read only if
            // jobs wait for a slot, because an outcome frees one.
            let read_mail = !flow.batches.is_full() || self.slots.has_queue();
            let timer = self.next_timer().min(flow.next_timer()).min(self.pulse.due());
            tokio::select! {
                biased;
                message = link.messages.message() => match message {
                    Ok(Some(message)) => self.receive(message, flow),
                    Ok(None) => return self.closed(flow),
                    Err(status) => return End::Broken(status.into()),
                },
                // A message is built only when the connection can take it. Until then, outcomes accumulate and share a
                // message.
                permit = link.requests.reserve(), if outgoing => match permit {
                    Ok(permit) => if let Some(message) = self.next_message(flow) {
                        permit.send(WorkRequest { message: Some(message) });
                    },
                    Err(_) => return close_reason(&mut link.messages).await,
                },
                Some(command) = self.commands.recv() => self.command(command),
                () = self.mailbox.wake.notified(), if read_mail => {}
                // The timer is last in the biased select, so that a message that has already arrived counts as a sign of
                // life.
                () = sleep_until(timer) => {
                    self.on_timer();
                    if let Some(why) = flow.death() {
                        return End::Broken(Error::broken(why));
                    }
                }
            }
        }
    }

    /// Returns why to leave the stream now; `None` to stay on it.
    fn end(&self, flow: &Flow) -> Option<End> {
        if self.stop == Stop::Now {
            return Some(End::Finished);
        }
        let done = self.ledger.is_empty() && flow.control.is_empty();
        if done && self.is_stopping() && flow.is_drained() {
            return Some(End::Finished);
        }
        if let Some(at) = flow.reconnect_at()
            && (done || at <= Instant::now())
        {
            return Some(End::Drained(at));
        }
        None
    }

    /// Handles the end of a stream that the broker has ended without an error.
    fn closed(&self, flow: &Flow) -> End {
        match flow.reconnect_at() {
            Some(at) => End::Drained(at),
            None if flow.is_drained() && self.ledger.is_empty() => End::Finished,
            None => End::Broken(Error::broken("the broker closed the stream")),
        }
    }

    /// Builds the next message: control messages first, then windows, extensions and progress reports, then outcomes. So a
    /// smaller window precedes the outcomes that make room in it.
    fn next_message(&mut self, flow: &mut Flow) -> Option<Out> {
        if let Some(request) = flow.control.pop_front() {
            return request.message;
        }
        if let Some(index) = self.changed_window().filter(|_| !self.is_stopping()) {
            return Some(Out::Window(self.window(index)));
        }
        if self.extensions.has_unsent() {
            let extensions = self.extensions.next_batch(flow.max_outcomes, flow.max_bytes);
            return (!extensions.is_empty()).then_some(Out::Extend(Extend { extensions }));
        }
        if self.reports.has_unsent() {
            let reports = self.reports.next_batch(flow.max_outcomes, flow.max_bytes);
            return (!reports.is_empty()).then_some(Out::Progress(Progress { reports }));
        }
        let batch = flow.batches.next();
        let outcomes = self.ledger.next_batch(batch, flow.max_outcomes, flow.max_bytes);
        if outcomes.is_empty() {
            return None;
        }
        flow.batches.sent(outcomes.len());
        Some(Out::Settle(Settle { outcomes }))
    }

    fn receive(&mut self, message: WorkResponse, flow: &mut Flow) {
        flow.message_received();
        match message.message {
            Some(In::Jobs(jobs)) => self.jobs(jobs.jobs),
            Some(In::Settled(settled)) => self.settled(&settled, flow),
            Some(In::Cancel(cancel)) => self.cancelled(&cancel),
            Some(In::Drain(drain)) => {
                tracing::debug!(reason = ?drain.reason(), "the broker is draining this stream");
                flow.drain(&drain);
            }
            Some(In::Extended(extended)) => self.extended(extended),
            Some(In::Progressed(progressed)) => self.progressed(progressed),
            // The thread of the connection (module `link`) has already answered the Ping.
            Some(In::Ping(_) | In::Pong(_)) => {}
            Some(In::Welcome(_)) => tracing::warn!("the broker sent a second welcome on one stream"),
            None => tracing::debug!("ignoring a message of a newer protocol"),
        }
    }

    fn jobs(&mut self, jobs: Vec<LeasedJob>) {
        self.status.report.lock().received += jobs.len() as u64;
        let max = self.config.max_jobs.unwrap_or(u64::MAX);
        let timeout = self.client.settings().request_timeout;
        for job in jobs {
            let key = Key { id: job.id, token: job.token };
            let Some(&task_type) = self.config.index.get(&job.task_type) else {
                tracing::warn!(job.id, job.task_type, "received a job of a type that was not subscribed to");
                self.ledger.release(key);
                continue;
            };
            if self.is_stopping() || self.taken >= max {
                self.ledger.release(key);
                continue;
            }
            let lease = Lease::new(key, self.mailbox.clone(), timeout);
            if !self.ledger.add(lease.clone(), task_type) {
                tracing::warn!(job.id, "received a job twice with the same token");
                continue;
            }
            self.taken += 1;
            if let Some(job) = self.slots.enter(task_type, Job::new(job, lease, Some(&self.client))) {
                self.run_job(task_type, job);
            }
        }
        if self.taken >= max {
            self.begin_stop(None);
        }
    }

    fn settled(&mut self, settled: &Settled, flow: &mut Flow) {
        let (batches, stored) = self.answered(&settled.results);
        batches.into_iter().for_each(|batch| flow.batches.answered(batch));
        flow.has_stored |= stored;
    }

    /// Handles the broker's results for outcomes. Returns the batches with which they were sent, and whether the broker could
    /// store all of them.
    pub(crate) fn answered(&mut self, results: &[SettleResult]) -> (Vec<u64>, bool) {
        let (mut resend, mut batches) = (false, Vec::new());
        let mut report = self.status.report.lock();
        let broker = self.client.address(self.broker);
        for result in results {
            let (answer, batch) = self.ledger.settled(result, broker);
            batches.extend(batch);
            match answer {
                Answer::Acked => report.acked += 1,
                Answer::Nacked => report.failed += 1,
                Answer::Snoozed => report.snoozed += 1,
                Answer::Released => report.released += 1,
                Answer::Lost => {
                    report.lost += 1;
                    tracing::warn!(job = result.id, "the lease was lost before the outcome arrived");
                }
                Answer::Refused => {
                    tracing::warn!(job = result.id, result.message, "the broker refused the outcome");
                }
                Answer::Later => resend = true,
                Answer::Unknown => {}
            }
        }
        drop(report);
        if resend {
            self.resend_later();
        } else {
            // No outcome must be resent, so the broker works. A stopping worker waits another full time for the next
            // confirmation.
            self.waits_since = None;
            self.resend_backoff.reset();
        }
        (batches, !resend)
    }

    fn extended(&mut self, extended: Extended) {
        if self.extensions.answered(extended.results) {
            self.resend_later();
        }
    }

    fn progressed(&mut self, progressed: Progressed) {
        if self.reports.answered(progressed.results) {
            self.resend_later();
        }
    }

    pub(crate) fn resend_later(&mut self) {
        if self.resend_at.is_none() {
            self.resend_at = Some(Instant::now() + self.resend_backoff.next());
        }
    }

    fn cancelled(&mut self, cancel: &Cancel) {
        for job in &cancel.jobs {
            let key = Key { id: job.id, token: job.token };
            let reason = job.reason();
            if self.ledger.cancel(key, reason) {
                tracing::debug!(job = job.id, ?reason, "the broker has ended a lease");
                let mut report = self.status.report.lock();
                if reason == CancelReason::LeaseLost {
                    report.lost += 1;
                } else {
                    report.cancelled += 1;
                }
            }
        }
    }
}

/// Returns why a stream accepts no more messages: the broker's status, if it arrives within the close timeout.
async fn close_reason(messages: &mut Messages) -> End {
    let error = loop {
        let next = messages.message();
        match tokio::time::timeout(super::session::CLOSE_TIMEOUT, next).await {
            Ok(Ok(Some(_ignored))) => {}
            Ok(Err(status)) => break status.into(),
            Ok(Ok(None)) | Err(_) => break Error::broken("the stream is closed"),
        }
    };
    End::Broken(error)
}
