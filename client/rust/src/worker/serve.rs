//! One stream: receives and sends messages.

use std::mem;

use futures::StreamExt as _;
use howdah_proto::v1::{
    Cancel, CancelReason, DrainRequest, Extended, LeasedJob, Progressed, Settle, SettleResult, SettleStatus, Settled,
    WorkRequest, WorkResponse, work_request::Message as Out, work_response::Message as In,
};
use tokio::time::{Instant, sleep_until};

use crate::{Error, connection::close_reason};

use super::{
    flow::Flow,
    job::{Job, Lease},
    ledger::{Key, Way},
    link::Link,
    session::{End, Session, Stop},
};

impl Session {
    /// Serves a stream until it ends, or until the worker must leave it to stop or to reconnect.
    pub(crate) async fn serve(&mut self, link: &mut Link, flow: &mut Flow) -> End {
        loop {
            flow.pulse.record();
            self.take_mail();
            if self.is_stopping() {
                flow.request_drain();
            }
            self.track_wait();
            if let Some(end) = self.end(flow) {
                return end;
            }
            let outcomes = flow.batches.takes(self.ledger.unsent(), self.slots.limit());
            let window = !self.is_stopping() && self.changed_window().is_some();
            let outgoing = outcomes || flow.drain_is_due || self.requests.has_unsent() || window;
            // With the maximum number of unanswered Settle messages, no outcome can be sent. Then mail wakes the worker only if
            // jobs wait for a slot, because an outcome frees one.
            let read_mail = !flow.batches.is_full() || self.slots.has_queue();
            let timer = self.next_timer().min(flow.next_timer());
            tokio::select! {
                biased;
                message = link.messages.next() => match message {
                    Some(Ok(message)) => self.receive(message, flow),
                    Some(Err(status)) => return End::Broken(status.into()),
                    None => return self.closed(flow),
                },
                // A message is built only when the connection can take it. Until then, outcomes accumulate and share a
                // message.
                permit = link.requests.reserve(), if outgoing => match permit {
                    Ok(permit) => if let Some(message) = self.next_message(flow) {
                        permit.send(WorkRequest { message: Some(message) });
                    },
                    Err(_) => return End::Broken(close_reason(&mut link.messages).await),
                },
                Some(command) = self.commands.recv() => self.command(command),
                Some(mail) = self.mail.recv(), if read_mail => self.handle_mail(mail),
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
        let done = self.ledger.is_empty();
        if done && self.is_stopping() && flow.is_drained() {
            return Some(End::Finished);
        }
        if let Some(at) = flow.reconnect_at
            && (done || at <= Instant::now())
        {
            return Some(End::Drained(at));
        }
        None
    }

    /// Handles the end of a stream that the broker has ended without an error.
    fn closed(&self, flow: &Flow) -> End {
        match flow.reconnect_at {
            Some(at) => End::Drained(at),
            None if flow.is_drained() && self.ledger.is_empty() => End::Finished,
            None => End::Broken(Error::broken("the broker closed the stream")),
        }
    }

    /// Builds the next message: a drain request first, then windows, extensions and progress reports, then outcomes. So a
    /// smaller window precedes the outcomes that make room in it.
    fn next_message(&mut self, flow: &mut Flow) -> Option<Out> {
        if mem::take(&mut flow.drain_is_due) {
            return Some(Out::Drain(DrainRequest {}));
        }
        if let Some(index) = self.changed_window().filter(|_| !self.is_stopping()) {
            return Some(Out::Window(self.window(index)));
        }
        if self.requests.has_unsent() {
            return self.requests.next_message(flow.max_outcomes, flow.max_bytes);
        }
        let outcomes = self.ledger.take(Way::Sent(flow.batches.next), flow.max_outcomes, flow.max_bytes);
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
            Some(In::Settled(Settled { results })) => {
                let (batches, stored) = self.answered(&results);
                batches.into_iter().for_each(|batch| flow.batches.answered(batch));
                flow.has_stored |= stored;
            }
            Some(In::Extended(Extended { results }) | In::Progressed(Progressed { results })) => {
                if self.requests.answered(results) {
                    self.resend_later();
                }
            }
            Some(In::Cancel(cancel)) => self.cancelled(&cancel),
            Some(In::Drain(drain)) => {
                tracing::debug!(reason = ?drain.reason(), "the broker is draining this stream");
                flow.drain(&drain);
            }
            // The thread of the connection (module `link`) has already answered the Ping.
            Some(In::Ping(_) | In::Pong(_)) => {}
            Some(In::Welcome(_)) => tracing::warn!("the broker sent a second welcome on one stream"),
            None => tracing::debug!("ignoring a message of a newer protocol"),
        }
    }

    fn jobs(&mut self, jobs: Vec<LeasedJob>) {
        self.count(|report| report.received += jobs.len() as u64);
        let max = self.config.max_jobs.unwrap_or(u64::MAX);
        let timeout = self.client.settings().request_timeout;
        for job in jobs {
            let key = Key { id: job.id, token: job.token };
            let Some(&task_type) = self.config.index.get(&job.task_type) else {
                tracing::warn!(job.id, job.task_type, "received a job of a type that was not subscribed to");
                self.ledger.release(key);
                continue;
            };
            // The broker may have sent a job before it knew that its type is paused here.
            if self.is_stopping() || self.taken >= max || self.slots.is_paused(task_type) {
                self.ledger.release(key);
                continue;
            }
            let lease = Lease::new(key, task_type, self.mail_sender.clone(), timeout);
            if !self.ledger.add(lease.clone()) {
                tracing::warn!(job.id, "received a job twice with the same token");
                continue;
            }
            self.taken += 1;
            self.slots.add(task_type, Job::new(job, lease, Some(&self.client)));
        }
        self.fill_slots();
        if self.taken >= max {
            self.begin_stop(None);
        }
    }

    /// Handles the broker's results for outcomes. Returns the batches with which they were sent, and whether the broker could
    /// store all of them.
    pub(crate) fn answered(&mut self, results: &[SettleResult]) -> (Vec<u64>, bool) {
        let mut batches = Vec::new();
        let broker = self.client.address(self.broker);
        self.status.send_if_modified(|status| {
            batches.extend(results.iter().filter_map(|result| self.ledger.settled(result, broker, &mut status.report)));
            false
        });
        let stored = results.iter().all(|result| result.status() != SettleStatus::Unavailable);
        if stored {
            // The broker works. A stopping worker waits another full time for the next confirmation.
            self.waits_since = None;
            self.resend_backoff.reset();
        } else {
            self.resend_later();
        }
        (batches, stored)
    }

    pub(crate) fn resend_later(&mut self) {
        if self.resend_at.is_none() {
            self.resend_at = Some(Instant::now() + self.resend_backoff.next());
        }
    }

    fn cancelled(&mut self, cancel: &Cancel) {
        for job in &cancel.jobs {
            let reason = job.reason();
            if self.ledger.cancel(Key { id: job.id, token: job.token }, reason) {
                tracing::debug!(job = job.id, ?reason, "the broker has ended a lease");
                self.count(|report| match reason {
                    CancelReason::LeaseLost => report.lost += 1,
                    _ => report.cancelled += 1,
                });
            }
        }
    }
}
