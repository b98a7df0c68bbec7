//! Waits until jobs have ended.

use std::{collections::BTreeSet, time::Duration};

use howdah_proto::v1 as proto;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::{Request, Streaming};

use crate::{
    Client, Error, Result,
    call::{Backoff, Rotation},
    time,
};

/// Longest single `WaitJobs` call. A wait consists of many calls, because proxies end calls after 15 s (Envoy) to a minute.
/// Also, a broker that disappears silently is noticed only at the end of a call.
const LONGEST_CALL: Duration = Duration::from_secs(10);
/// Time that the broker has to respond after the wait time of a `WaitJobs` call has passed, before it counts as silent.
const SLACK: Duration = Duration::from_secs(2);

/// Maximum timeout of [`Client::wait_jobs`].
const LONGEST_WAIT: Duration = Duration::from_hours(24);

/// Returns jobs as they end, each once; see [`Client::wait_jobs`].
#[derive(Debug)]
pub struct EndedJobs {
    client: Client,
    left: BTreeSet<i64>,
    timeout: Duration,
    until: Instant,
    rotation: Rotation,
    /// Whether the broker that was called last has responded to a call of this wait.
    broker_works: bool,
    /// Index of the broker that was called last.
    broker: usize,
    backoff: Backoff,
    call: Option<Call>,
}

/// One `WaitJobs` call.
#[derive(Debug)]
struct Call {
    messages: Streaming<proto::WaitJobsResponse>,
    /// Time after which the broker counts as silent if it has not responded.
    silent_at: Instant,
    /// Time at which the wait time of the call ends: the broker should then respond, even if no job has ended.
    waits_until: Instant,
}

impl EndedJobs {
    /// Waits for the next job that is finished or dead, and returns it with its result; `None` after the last one. Fails if the
    /// timeout of the wait passes, or if a job does not exist. Continues while brokers restart.
    pub async fn next(&mut self) -> Result<Option<proto::Job>> {
        while self.call.is_some() || !self.left.is_empty() {
            let error = match self.answer().await {
                Ok(Some(job)) if self.left.remove(&job.id) => return Ok(Some(job)),
                Ok(Some(_duplicate)) => continue,
                Ok(None) => return Ok(None),
                Err(error) => error,
            };
            self.continue_after(error).await?;
        }
        Ok(None)
    }

    async fn answer(&mut self) -> Result<Option<proto::Job>> {
        if self.call.is_none() {
            self.open().await?;
        }
        let Some(Call { messages, silent_at, .. }) = &mut self.call else {
            return Ok(None);
        };
        let answer = timeout_at(*silent_at, messages.message()).await.map_err(|_| self.timed_out())??;
        Ok(answer.and_then(|answer| answer.job))
    }

    /// Makes a `WaitJobs` call at the broker in use. Until that broker has responded, the call gets only a share of the
    /// remaining time, so that time is left to try the other brokers.
    async fn open(&mut self) -> Result<()> {
        let now = Instant::now();
        let remaining = self.until.saturating_duration_since(now);
        let untried = if self.broker_works { 1 } else { self.rotation.untried() };
        let share = remaining / untried;
        let (wait_time, limit) = match untried {
            1 => (share.min(LONGEST_CALL), share.min(LONGEST_CALL) + SLACK),
            _ => ((share * 3 / 4).min(LONGEST_CALL), share.clamp(SLACK / 2, LONGEST_CALL + SLACK)),
        };
        self.broker = self.client.current();
        let silent_at = now + limit;
        let ids = self.left.iter().copied().collect();
        let mut request = Request::new(proto::WaitJobsRequest { ids, timeout: Some(time::to_proto(wait_time)) });
        request.set_timeout(limit);
        let opened = async {
            self.client.check_current().await?;
            Ok::<_, Error>(self.client.jobs().wait_jobs(request).await?.into_inner())
        };
        let messages = timeout_at(silent_at, opened).await.map_err(|_| self.timed_out())??;
        self.call = Some(Call { messages, silent_at, waits_until: now + wait_time });
        Ok(())
    }

    fn timed_out(&self) -> Error {
        Error::Deadline { operation: "wait", after: self.timeout }
    }

    /// Prepares the next call after an error. If the broker answered that its wait time has passed, the call goes to the same
    /// broker, otherwise to the next one.
    async fn continue_after(&mut self, error: Error) -> Result<()> {
        let call = self.call.take();
        // Only the broker sends this reason. A deadline error without it is from the client's own timer, so the broker did
        // not answer.
        let is_from_broker = error.reason() == Some("DEADLINE_EXCEEDED");
        if !is_from_broker && !error.is_retried() {
            return Err(error);
        }
        let remaining = self.until.saturating_duration_since(Instant::now());
        // The wait asks every broker at least once whether the jobs have ended, even if its timeout has passed.
        if remaining.is_zero() && (is_from_broker || self.rotation.untried() == 1 || !self.rotation.is_first_round()) {
            return Err(if is_from_broker { error } else { self.timed_out() });
        }
        self.broker_works = is_from_broker;
        let in_time = call.is_some_and(|call| call.waits_until <= Instant::now() + SLACK);
        if is_from_broker && in_time {
            self.backoff.reset();
            return Ok(());
        }
        if !is_from_broker {
            self.client.move_on_from(self.broker);
            self.rotation.next();
            tracing::debug!(%error, "waiting for jobs failed; trying again");
        }
        sleep(self.backoff.next().min(remaining)).await;
        Ok(())
    }
}

impl Client {
    /// Waits until jobs are finished or dead, for at most `timeout` (up to a day), and continues while brokers restart. Jobs
    /// that have already ended are returned at once.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use howdah_client::NewJob;
    /// # async fn f(client: howdah_client::Client) -> howdah_client::Result<()> {
    /// let question = client.enqueue(NewJob::new("text.upper").payload("hello")).await?;
    /// let mut ended = client.wait_jobs([question.id], Duration::from_secs(30)).await?;
    /// while let Some(job) = ended.next().await? {
    ///     println!("{:?}: {:?}", job.state(), job.result);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn wait_jobs(&self, ids: impl IntoIterator<Item = i64>, timeout: Duration) -> Result<EndedJobs> {
        if timeout > LONGEST_WAIT {
            return Err(Error::refused("timeout", format!("is {timeout:?}; at most {LONGEST_WAIT:?} are allowed")));
        }
        let mut ended = EndedJobs {
            client: self.clone(),
            left: ids.into_iter().collect(),
            timeout,
            until: Instant::now() + timeout,
            rotation: Rotation::new(self.broker_count()),
            broker_works: false,
            broker: self.current(),
            backoff: Backoff::default(),
            call: None,
        };
        while let Err(error) = ended.open().await {
            ended.continue_after(error).await?;
        }
        Ok(ended)
    }
}
