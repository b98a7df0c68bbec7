//! The task of a producer: it sends requests, reconnects, repeats them, and answers.

use std::{collections::VecDeque, future::Future, pin::pin, sync::Arc, time::Duration};

use howdah_proto::v1::{StreamEnqueueRequest, StreamEnqueueResponse};
use tokio::time::{Instant, sleep, sleep_until};
use tonic::Streaming;

use crate::{Client, Error, Result, backoff::Backoff, enqueue::enqueued};

use super::{
    ProducerOptions,
    gather::{Batch, Shared},
    link::{self, Link},
};

/// If a request is not answered within this time, its stream is dead: a broker that cannot reach Postgres answers
/// within 15 s.
const LONGEST_ANSWER: Duration = Duration::from_secs(16);

/// No timer is set further ahead, so that there always is one.
const FAR: Duration = Duration::from_hours(1);

pub(super) struct Pipeline {
    client: Client,
    options: ProducerOptions,
    shared: Arc<Shared>,
    /// Sent on the stream, in order.
    sent: VecDeque<Sent>,
    /// To be sent again, from `again_at` on.
    again: VecDeque<Batch>,
    again_at: Option<Instant>,
    sequence: u64,
    broker: usize,
    backoff: Backoff,
}

struct Sent {
    sequence: u64,
    at: Instant,
    batch: Batch,
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        self.shared.abandon();
    }
}

impl Pipeline {
    pub(super) fn new(client: Client, options: ProducerOptions, shared: Arc<Shared>) -> Self {
        Self {
            broker: client.current(),
            client,
            options,
            shared,
            sent: VecDeque::new(),
            again: VecDeque::new(),
            again_at: None,
            sequence: 0,
            backoff: Backoff::default(),
        }
    }

    pub(super) async fn run(mut self) {
        while self.wait_for_work().await {
            let open = link::open(self.client.clone(), self.broker);
            let ended = match self.meanwhile(open).await {
                Ok(link) => self.serve(link).await,
                Err(error) => Err(error),
            };
            let Err(error) = ended else {
                return;
            };
            self.take_back();
            if error.is_refusal() {
                // The broker refuses a request on the stream, or the stream: single calls find out which.
                tracing::debug!(%error, "enqueue stream refused; using single calls");
                self.call_each().await;
                continue;
            }
            self.broker += 1;
            let wait = self.backoff.next();
            tracing::debug!(%error, ?wait, "enqueue stream broken; opening another");
            self.meanwhile(sleep(wait)).await;
        }
    }

    /// Waits until there is something to send. False: there will be nothing any more.
    async fn wait_for_work(&mut self) -> bool {
        loop {
            if !self.again.is_empty() || !self.shared.is_empty() {
                return true;
            }
            if self.shared.is_closed() {
                return false;
            }
            self.shared.wake.notified().await;
        }
    }

    /// Runs `work` while nothing can be sent, and answers waiters that have waited too long.
    async fn meanwhile<F: Future>(&mut self, work: F) -> F::Output {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = sleep_until(self.next_expiry()) => self.expire(),
            }
        }
    }

    /// Sends and answers until the stream ends. `Ok`: the last producer is gone and all is done.
    async fn serve(&mut self, mut link: Link) -> Result<()> {
        loop {
            let free = self.sent.len() < self.options.max_in_flight.max(1);
            let resend = self.again_at.is_none_or(|at| at <= Instant::now());
            let waiting = (resend && !self.again.is_empty()) || !self.shared.is_empty();
            if !waiting && self.sent.is_empty() && self.again.is_empty() && self.shared.is_closed() {
                return Ok(());
            }
            tokio::select! {
                biased;
                answer = link.answers.message() => match answer? {
                    Some(answer) => self.answered(answer),
                    None => return Err(Error::broken("the broker closed the enqueue stream")),
                },
                permit = link.requests.reserve(), if free && waiting => match permit {
                    Ok(permit) => if let Some(request) = self.next_request(resend) {
                        permit.send(request);
                    },
                    Err(_) => return Err(why_closed(&mut link.answers).await),
                },
                () = self.shared.wake.notified(), if free && !waiting => {}
                () = sleep_until(self.next_timer()) => {
                    self.expire();
                    if self.sent.front().is_some_and(|first| first.at.elapsed() >= LONGEST_ANSWER) {
                        return Err(Error::broken("the broker does not answer"));
                    }
                }
            }
        }
    }

    /// The next request: one to repeat, or else a new one.
    fn next_request(&mut self, resend: bool) -> Option<StreamEnqueueRequest> {
        let (jobs, bytes) = (self.options.max_batch_jobs, self.options.max_batch_bytes);
        let again = if resend { self.again.pop_front() } else { None };
        let mut batch = again.or_else(|| self.shared.take(jobs, bytes))?;
        batch.at(self.client.address(self.broker));
        self.sequence += 1;
        let request =
            StreamEnqueueRequest { sequence: self.sequence, jobs: batch.jobs.clone(), request_key: batch.key.clone() };
        self.sent.push_back(Sent { sequence: self.sequence, at: Instant::now(), batch });
        Some(request)
    }

    fn answered(&mut self, answer: StreamEnqueueResponse) {
        let matches = |sent: &Sent| sent.sequence == answer.sequence;
        let position = self.sent.iter().position(matches);
        let Some(sent) = position.and_then(|position| self.sent.remove(position)) else {
            tracing::warn!(sequence = answer.sequence, "an answer to an unknown request");
            return;
        };
        let result = match answer.error {
            Some(error) => Err(Error::of_request(error)),
            None => enqueued(answer.jobs, sent.batch.jobs.len()),
        };
        self.conclude(sent.batch, result);
    }

    fn conclude(&mut self, batch: Batch, result: Result<Vec<crate::Enqueued>>) {
        match result {
            Ok(answers) => {
                self.backoff.reset();
                self.shared.room.add_permits(batch.cost());
                batch.resolve(answers);
            }
            Err(error) if error.is_passing() => {
                if batch.oldest().is_none() {
                    self.shared.room.add_permits(batch.cost());
                    return;
                }
                self.again.push_back(batch);
                self.again_at = Some(Instant::now() + self.backoff.next());
            }
            Err(error) => {
                let rest = batch.split(&error, &self.shared.room);
                for batch in rest.into_iter().rev() {
                    self.again.push_front(batch);
                }
            }
        }
    }

    /// The stream broke: unanswered requests are sent again, before all others.
    fn take_back(&mut self) {
        while let Some(sent) = self.sent.pop_back() {
            self.again.push_front(sent.batch);
        }
        self.again_at = None;
        self.expire();
    }

    /// Makes single calls for all requests that are to be sent again.
    async fn call_each(&mut self) {
        if self.again.is_empty() {
            let (jobs, bytes) = (self.options.max_batch_jobs, self.options.max_batch_bytes);
            self.again.extend(self.shared.take(jobs, bytes));
        }
        while let Some(mut batch) = self.again.pop_front() {
            batch.at(self.client.address(self.client.current()));
            let client = self.client.clone();
            let (jobs, key) = (batch.jobs.clone(), batch.key.clone());
            let call = async move { client.enqueue_request(jobs, key).await };
            let result = self.meanwhile(call).await;
            let retry = result.as_ref().is_err_and(Error::is_passing);
            self.conclude(batch, result);
            self.expire();
            if retry {
                return;
            }
        }
    }

    /// Answers waiters after the request timeout, and drops requests without waiters.
    fn expire(&mut self) {
        let after = self.client.settings().request_timeout;
        let Some(before) = Instant::now().checked_sub(after) else {
            return;
        };
        let what = "enqueue";
        let error = Error::Deadline { what, after };
        self.shared.expire(before, &error);
        for batch in self.again.iter_mut().chain(self.sent.iter_mut().map(|sent| &mut sent.batch)) {
            batch.expire(before, &error);
        }
        let room = &self.shared.room;
        self.again.retain(|batch| {
            let wanted = batch.oldest().is_some();
            if !wanted {
                room.add_permits(batch.cost());
            }
            wanted
        });
    }

    /// When the next waiter will have waited too long.
    fn next_expiry(&self) -> Instant {
        let sent = self.sent.iter().map(|sent| &sent.batch);
        let oldest = sent.chain(&self.again).filter_map(Batch::oldest).chain(self.shared.oldest()).min();
        let now = Instant::now();
        let timeout = self.client.settings().request_timeout;
        // One millisecond more: too early, no waiter would be late.
        oldest.map_or(now + FAR, |oldest| oldest + timeout + Duration::from_millis(1))
    }

    fn next_timer(&self) -> Instant {
        let mut next = self.next_expiry();
        if let Some(first) = self.sent.front() {
            next = next.min(first.at + LONGEST_ANSWER);
        }
        if let Some(at) = self.again_at.filter(|at| !self.again.is_empty() && *at > Instant::now()) {
            next = next.min(at);
        }
        next
    }
}

/// Why a stream takes no more requests: the broker's status, if it still sends one.
async fn why_closed(answers: &mut Streaming<StreamEnqueueResponse>) -> Error {
    let broken = || Error::broken("the enqueue stream is closed");
    loop {
        match tokio::time::timeout(Duration::from_secs(1), answers.message()).await {
            Ok(Ok(Some(_answer_to_be_asked_for_again))) => {}
            Ok(Err(status)) => return status.into(),
            Ok(Ok(None)) | Err(_) => return broken(),
        }
    }
}
