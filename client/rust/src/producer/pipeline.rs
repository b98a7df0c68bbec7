//! The task of a producer: sends and repeats requests, reconnects, and delivers results.

use std::{collections::VecDeque, future::Future, pin::pin, sync::Arc, time::Duration};

use howdah_proto::v1::{StreamEnqueueRequest, StreamEnqueueResponse, job_service_client::JobServiceClient};
use tokio::{
    sync::{Semaphore, mpsc},
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::{Client, Error, Result, call::Backoff, connection::close_reason, enqueue::enqueued};

use super::{
    ProducerOptions,
    batch::{Batch, Submission},
};

/// Timeout of a request without an answer, after which the stream counts as dead. A broker that cannot reach Postgres
/// responds within 15 s.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(16);

/// Limit in bytes for resending the unanswered requests of a broken stream on the next stream. Above it, they are resent by
/// unary calls, because a proxy may limit the bytes of a stream.
const RESEND_LIMIT: usize = 4 << 10;

/// Interval of the timer while no submission can time out.
const FAR: Duration = Duration::from_hours(1);

pub(super) struct Pipeline {
    client: Client,
    options: ProducerOptions,
    submissions: mpsc::UnboundedReceiver<Submission>,
    /// Free bytes of the queue.
    room: Arc<Semaphore>,
    /// Submissions that are not yet part of a request.
    queue: VecDeque<Submission>,
    /// Requests sent on the current stream, in order.
    sent: VecDeque<Batch>,
    /// Requests to resend. They are not sent before `retry_at`.
    retries: VecDeque<Batch>,
    retry_at: Option<Instant>,
    sequence: u64,
    broker: usize,
    backoff: Backoff,
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        // Producers that wait for room fail, because nothing frees it any more.
        self.room.close();
    }
}

impl Pipeline {
    pub(super) fn new(
        client: Client,
        options: ProducerOptions,
        submissions: mpsc::UnboundedReceiver<Submission>,
        room: Arc<Semaphore>,
    ) -> Self {
        Self {
            broker: client.current(),
            client,
            options,
            submissions,
            room,
            queue: VecDeque::new(),
            sent: VecDeque::new(),
            retries: VecDeque::new(),
            retry_at: None,
            sequence: 0,
            backoff: Backoff::default(),
        }
    }

    pub(super) async fn run(mut self) {
        while self.wait_for_work().await {
            let open = open(self.client.clone(), self.broker);
            let ended = match self.meanwhile(open).await {
                Ok((requests, answers)) => self.serve(requests, answers).await,
                Err(error) => Err(error),
            };
            let Err(error) = ended else {
                return;
            };
            let is_large = self.sent.iter().map(Batch::cost).sum::<usize>() > RESEND_LIMIT;
            self.take_back();
            if error.is_refusal() || is_large {
                // Single calls show the cause. The broker may refuse one request, or the whole stream. Or a proxy limits the
                // bytes of a stream, which it counts as one request; then a single call succeeds, or fails with HTTP 413.
                tracing::debug!(%error, "enqueue stream refused or cut; using single calls");
                self.call_each().await;
                continue;
            }
            self.broker += 1;
            let wait = self.backoff.next();
            tracing::debug!(%error, ?wait, "enqueue stream broken; opening another");
            self.meanwhile(sleep(wait)).await;
        }
    }

    /// Waits until there is a request to send. Returns false when all producers are dropped and no request is left.
    async fn wait_for_work(&mut self) -> bool {
        if self.retries.is_empty() && self.queue.is_empty() {
            let Some(submission) = self.submissions.recv().await else {
                return false;
            };
            self.queue.push_back(submission);
        }
        true
    }

    /// Moves new submissions to the queue.
    fn gather(&mut self) {
        while let Ok(submission) = self.submissions.try_recv() {
            self.queue.push_back(submission);
        }
    }

    /// Runs `work`. Meanwhile fails submissions whose request timeout passes.
    async fn meanwhile<F: Future>(&mut self, work: F) -> F::Output {
        let mut work = pin!(work);
        loop {
            self.gather();
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = sleep_until(self.next_expiry()) => self.expire(),
            }
        }
    }

    /// Sends requests and delivers results until the stream ends. Returns `Ok` when the last producer was dropped and all
    /// requests are answered.
    async fn serve(
        &mut self,
        requests: mpsc::Sender<StreamEnqueueRequest>,
        mut answers: Streaming<StreamEnqueueResponse>,
    ) -> Result<()> {
        loop {
            // Read before `gather`: if the last producer is already dropped, `gather` takes all remaining submissions.
            let is_closed = self.submissions.is_closed();
            self.gather();
            let free = self.sent.len() < self.options.max_in_flight.max(1);
            let resend = self.retry_at.is_none_or(|at| at <= Instant::now());
            let waiting = (resend && !self.retries.is_empty()) || !self.queue.is_empty();
            if is_closed && !waiting && self.sent.is_empty() && self.retries.is_empty() {
                return Ok(());
            }
            let timer = self.next_timer();
            tokio::select! {
                biased;
                answer = answers.message() => match answer? {
                    Some(answer) => self.answered(answer),
                    None => return Err(Error::broken("the broker closed the enqueue stream")),
                },
                permit = requests.reserve(), if free && waiting => match permit {
                    Ok(permit) => if let Some(request) = self.next_request(resend) {
                        permit.send(request);
                    },
                    Err(_) => return Err(close_reason(&mut answers).await),
                },
                submission = self.submissions.recv(), if free && !waiting && !is_closed => self.queue.extend(submission),
                () = sleep_until(timer) => {
                    self.expire();
                    if self.sent.front().is_some_and(|first| first.sent_at.elapsed() >= ANSWER_TIMEOUT) {
                        return Err(Error::broken("the broker does not answer enqueue requests"));
                    }
                }
            }
        }
    }

    /// Takes the next request to send: one to resend, or else a new one.
    fn next_request(&mut self, resend: bool) -> Option<StreamEnqueueRequest> {
        let retry = if resend { self.retries.pop_front() } else { None };
        let mut batch = retry.or_else(|| self.take())?;
        self.sequence += 1;
        (batch.sequence, batch.sent_at) = (self.sequence, Instant::now());
        let jobs = batch.send_to(self.client.address(self.broker));
        let request = StreamEnqueueRequest { sequence: self.sequence, jobs, request_key: batch.key.clone() };
        self.sent.push_back(batch);
        Some(request)
    }

    /// Takes as many queued submissions as fit into one request, in order, but at least one.
    fn take(&mut self) -> Option<Batch> {
        self.gather();
        let (mut jobs, mut bytes) = (0, 0);
        let fits = |submission: &&Submission| {
            let is_first = jobs == 0;
            jobs += submission.jobs.len();
            bytes += submission.room.num_permits();
            is_first || (jobs <= self.options.max_batch_jobs && bytes <= self.options.max_batch_bytes)
        };
        let count = self.queue.iter().take_while(fits).count();
        (count > 0).then(|| Batch::new(self.queue.drain(..count).collect()))
    }

    fn answered(&mut self, answer: StreamEnqueueResponse) {
        let position = self.sent.iter().position(|sent| sent.sequence == answer.sequence);
        let Some(batch) = position.and_then(|position| self.sent.remove(position)) else {
            tracing::warn!(sequence = answer.sequence, "ignoring the broker's answer to an unknown enqueue request");
            return;
        };
        let result = match answer.error {
            Some(error) => Err(Error::from_request(error)),
            None => enqueued(answer.jobs, batch.job_count()),
        };
        self.conclude(batch, result);
    }

    fn conclude(&mut self, batch: Batch, result: Result<Vec<crate::Enqueued>>) {
        match result {
            Ok(answers) => {
                self.backoff.reset();
                batch.resolve(answers);
            }
            Err(error) if error.is_retried() => {
                if batch.oldest().is_some() {
                    self.retries.push_back(batch);
                    self.retry_at = Some(Instant::now() + self.backoff.next());
                }
            }
            Err(error) => {
                if error.is_too_large() {
                    self.options.max_batch_bytes = batch.cost() / 2;
                }
                batch.split(&error).into_iter().rev().for_each(|batch| self.retries.push_front(batch));
            }
        }
    }

    /// Moves the unanswered requests of a broken stream to the front of the resend queue.
    fn take_back(&mut self) {
        while let Some(batch) = self.sent.pop_back() {
            self.retries.push_front(batch);
        }
        self.retry_at = None;
        self.expire();
    }

    /// Sends all requests to resend by unary calls. Without such requests, it sends the next queued jobs.
    async fn call_each(&mut self) {
        if self.retries.is_empty() {
            let batch = self.take();
            self.retries.extend(batch);
        }
        while let Some(mut batch) = self.retries.pop_front() {
            let client = self.client.clone();
            let (jobs, key) = (batch.send_to(client.address(client.current())), batch.key.clone());
            let call = async move { client.enqueue_request(jobs, key).await };
            let result = self.meanwhile(call).await;
            let is_retried = result.as_ref().is_err_and(Error::is_retried);
            self.conclude(batch, result);
            self.expire();
            if is_retried {
                return;
            }
        }
    }

    /// Fails submissions whose request timeout has passed, and drops requests without a waiting caller.
    fn expire(&mut self) {
        let after = self.client.settings().request_timeout;
        let Some(before) = Instant::now().checked_sub(after) else {
            return;
        };
        let error = Error::Deadline { operation: "enqueue", after };
        self.gather();
        let expired = self.queue.partition_point(|submission| submission.since < before);
        self.queue.drain(..expired).for_each(|mut submission| submission.answer(Err(error.clone())));
        // These jobs may have been sent, unlike the queued ones.
        let error = error.with_effect_unknown(true);
        for batch in self.retries.iter_mut().chain(&mut self.sent) {
            batch.expire(before, &error);
        }
        self.retries.retain(|batch| batch.oldest().is_some());
    }

    /// Time at which the request timeout of the next submission passes.
    fn next_expiry(&self) -> Instant {
        let queued = self.queue.front().map(|first| first.since);
        let oldest = self.sent.iter().chain(&self.retries).filter_map(Batch::oldest).chain(queued).min();
        // The timer is set 1 ms later, because a timer that fires slightly early would find no submission to fail.
        let timeout = self.client.settings().request_timeout + Duration::from_millis(1);
        oldest.map_or(Instant::now() + FAR, |oldest| oldest + timeout)
    }

    fn next_timer(&self) -> Instant {
        let answer = self.sent.front().map(|first| first.sent_at + ANSWER_TIMEOUT);
        let retry = self.retry_at.filter(|at| !self.retries.is_empty() && *at > Instant::now());
        answer.into_iter().chain(retry).fold(self.next_expiry(), Instant::min)
    }
}

/// Opens a stream on a new connection. Returns both directions.
async fn open(
    client: Client,
    broker: usize,
) -> Result<(mpsc::Sender<StreamEnqueueRequest>, Streaming<StreamEnqueueResponse>)> {
    let limit = client.settings().max_message_bytes;
    let jobs = JobServiceClient::new(client.dial(broker).await?);
    let mut jobs = jobs.max_decoding_message_size(limit).max_encoding_message_size(limit);
    // The capacity is 1. So one request waits for HTTP/2 flow control while the producer gathers jobs for the next request.
    let (requests, outgoing) = mpsc::channel(1);
    let after = client.settings().connect_timeout;
    let answers = timeout(after, jobs.stream_enqueue(ReceiverStream::new(outgoing)))
        .await
        .map_err(|_| Error::Deadline { operation: "opening an enqueue stream", after })?
        .map_err(|status| Error::from(status).at(&client.endpoint_name(broker)))?;
    Ok((requests, answers.into_inner()))
}
