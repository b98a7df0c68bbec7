//! Waits until jobs have ended, at this or another broker (`WaitJobs`).

use std::{collections::HashSet, sync::Arc, time::Duration};

use howdah_core::{
    config::WakeMode,
    error::Error,
    job::{JobState, JobView},
};
use tokio::{
    sync::mpsc::{Sender, UnboundedReceiver, error::SendTimeoutError},
    time::{Instant, MissedTickBehavior, interval_at, timeout_at},
};

use super::Operator;
use crate::{
    maintain::Context,
    memory::{Account, Held},
};

/// Maximum number of jobs that a statement reads.
const BATCH: usize = 100;
/// Number of lookups before a job counts as missing. A single lookup may miss a job that moves between tables.
const SEARCHES: usize = 2;
/// Polling interval for jobs whose end was not announced, with notifications (`LOOK`) and without them (`POLL`).
const LOOK: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(100);

/// `READ`: bytes of jobs that a statement reads, in addition to the first job. `READ_ROOM`: memory reserved for it, which
/// includes one job of maximum size.
const READ: i64 = 2 << 20;
const READ_ROOM: usize = 6 << 20;
/// Maximum time for a caller to read a response.
pub const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Minimum time of the first check, even if the caller's timeout is shorter. This check finds jobs that have already ended.
const FIRST_LOOK: Duration = Duration::from_secs(10);

/// An ended job, or an error, to be sent to the caller.
pub struct Ended {
    pub job: Result<JobView, Error>,
    /// Memory reservation for the response, held until the caller has read the response.
    pub room: Option<Arc<Held>>,
}

impl Ended {
    fn error(error: Error) -> Self {
        Self { job: Err(error), room: None }
    }
}

/// Channel and memory accounts of the caller of `WaitJobs`.
pub struct WaitingCaller {
    pub answers: Sender<Ended>,
    /// The connection's account in the memory for responses.
    pub account: Arc<Account>,
    /// The connection's account of the jobs that `WaitJobs` calls wait for.
    pub job_quota: Arc<Account>,
}

/// A `WaitJobs` call in progress.
struct Wait {
    context: Arc<Context>,
    ids: Vec<i64>,
    /// Jobs that have not been reported yet.
    left: HashSet<i64>,
    /// Existing jobs that the caller may not see.
    hidden: HashSet<i64>,
    /// Jobs that are known to exist.
    seen: HashSet<i64>,
    answers: Sender<Ended>,
    /// The connection's account in the memory for responses.
    account: Arc<Account>,
}

impl Operator {
    /// Reports each of these jobs when it has ended, until all have ended or the time is over. Jobs in `hidden` are reported as
    /// if they did not exist.
    pub async fn wait_jobs(&self, mut ids: Vec<i64>, hidden: HashSet<i64>, timeout: Duration, to: WaitingCaller) {
        let WaitingCaller { answers, account, job_quota } = to;
        let context = self.context.clone();
        ids.sort_unstable();
        ids.dedup();
        let until = Instant::now() + timeout;
        // The call is registered before the jobs are read, so that the end of a job in between is not missed.
        let registered = match Registered::add(context.clone(), ids.clone(), &job_quota) {
            Ok(registered) => registered,
            Err(error) => return drop(answers.send(Ended::error(error)).await),
        };
        let left = ids.iter().copied().collect();
        let mut wait = Wait { context, ids, left, hidden, seen: HashSet::new(), answers, account };
        let caller = wait.answers.clone();
        let result = tokio::select! {
            result = wait.run(registered, until) => result,
            () = caller.closed() => Ok(()),
        };
        if let Err(error) = result {
            let _ = wait.answers.send(Ended::error(error)).await;
        }
    }
}

/// Entry of a call in [`Waiters`](crate::waiters::Waiters), which is removed on drop.
struct Registered {
    context: Arc<Context>,
    ids: Vec<i64>,
    ended: Option<UnboundedReceiver<i64>>,
    _job_quota: Held,
}

impl Registered {
    fn add(context: Arc<Context>, ids: Vec<i64>, account: &Arc<Account>) -> Result<Self, Error> {
        let (ended, job_quota) = context.waiters.add(&ids, account)?;
        Ok(Self { context, ids, ended: Some(ended), _job_quota: job_quota })
    }

    async fn next(&mut self) -> Option<i64> {
        self.ended.as_mut()?.recv().await
    }

    fn try_next(&mut self) -> Option<i64> {
        self.ended.as_mut()?.try_recv().ok()
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.ended = None;
        self.context.waiters.remove(&self.ids);
    }
}

impl Wait {
    /// Reports the jobs until all have ended or until the time `until`, even if the caller does not read the answers.
    async fn run(&mut self, registered: Registered, until: Instant) -> Result<(), Error> {
        let first = until.max(Instant::now() + FIRST_LOOK);
        let in_time = match timeout_at(first, self.look()).await {
            Ok(looked) => {
                looked?;
                timeout_at(until, self.report_as_they_end(registered)).await.ok()
            }
            Err(_) => None,
        };
        in_time.unwrap_or_else(|| {
            let (left, all) = (self.left.len(), self.ids.len());
            Err(Error::Deadline(format!("{left} of {all} jobs did not end in time")))
        })
    }

    async fn report_as_they_end(&mut self, mut registered: Registered) -> Result<(), Error> {
        let period = if self.context.config.wake == WakeMode::Poll { POLL } else { LOOK };
        let mut tick = interval_at(Instant::now() + period, period);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !self.left.is_empty() {
            tokio::select! {
                Some(id) = registered.next() => {
                    let mut ids = vec![id];
                    while ids.len() < BATCH && let Some(id) = registered.try_next() {
                        ids.push(id);
                    }
                    self.report(&ids).await?;
                }
                _ = tick.tick() => {
                    let left: Vec<i64> = self.left.iter().copied().collect();
                    self.report(&left).await?;
                }
            }
        }
        Ok(())
    }

    /// Marks the jobs as awaited, and reports those that have already ended.
    async fn look(&mut self) -> Result<(), Error> {
        let ids = self.ids.clone();
        for batch in ids.chunks(BATCH) {
            let (hidden, shown): (Vec<i64>, Vec<i64>) = batch.iter().partition(|id| self.hidden.contains(id));
            let mut unknown = shown;
            // A job that had ended may be retried before it is read. It is then unfinished again, and the second search finds
            // it.
            for _ in 0..SEARCHES {
                if !unknown.is_empty() {
                    unknown = self.look_for(unknown).await?;
                }
            }
            unknown.extend(hidden);
            // Sorted, so that the job that the error names does not reveal whether it is hidden or missing.
            unknown.sort_unstable();
            self.tell_of_unknown(&unknown).await?;
        }
        Ok(())
    }

    /// Marks the unfinished jobs as awaited, and reports the ended ones. Returns the jobs that were not found.
    async fn look_for(&mut self, ids: Vec<i64>) -> Result<Vec<i64>, Error> {
        let live = self.context.store.mark_awaited(&ids).await?;
        self.refuse_unkept(&live).await?;
        self.seen.extend(&live);
        let gone: Vec<i64> = ids.into_iter().filter(|id| !live.contains(id)).collect();
        self.report(&gone).await?;
        Ok(gone.into_iter().filter(|id| self.left.contains(id)).collect())
    }

    /// Rejects jobs that history may not keep if they succeed, because such a job might end and be deleted before the call finds
    /// it.
    async fn refuse_unkept(&self, live: &[i64]) -> Result<(), Error> {
        let types = self.context.registry.short_histories().incomplete();
        if live.is_empty() {
            return Ok(());
        }
        match self.context.store.live_unkept(live, &types).await? {
            None => Ok(()),
            Some((id, task_type)) => Err(Error::NoHistory(format!(
                "job {id} cannot be waited for: its history mode, or that of its task type {task_type}, does not keep every \
                 succeeded job; set it to full"
            ))),
        }
    }

    async fn report(&mut self, ids: &[i64]) -> Result<(), Error> {
        for batch in ids.chunks(BATCH) {
            let mut wanted = self.tell_all_ended(batch.to_vec()).await?;
            wanted.retain(|id| self.seen.contains(id));
            if wanted.is_empty() {
                continue;
            }
            let live = self.context.store.still_live(&wanted).await?;
            wanted.retain(|id| !live.contains(id));
            // Some jobs may have ended between the two reads. Jobs that are still not found have ended and are in no table,
            // because their types keep no history.
            let forgotten = self.tell_all_ended(wanted).await?;
            self.tell_of_unknown(&forgotten).await?;
        }
        Ok(())
    }

    /// Reports the ended jobs. Returns the jobs that were not found.
    async fn tell_all_ended(&mut self, mut ids: Vec<i64>) -> Result<Vec<i64>, Error> {
        ids.retain(|id| self.left.contains(id));
        while !ids.is_empty() {
            let more = self.report_ended(&ids).await?;
            ids.retain(|id| self.left.contains(id));
            if !more {
                break;
            }
        }
        Ok(ids)
    }

    /// Reports the ended jobs of one read. Returns whether there are more.
    async fn report_ended(&mut self, ids: &[i64]) -> Result<bool, Error> {
        let room = self.context.waiters.answer_memory.take(&self.account, READ_ROOM).await;
        let mut room = room.map_err(|_| {
            let problem = "too many WaitJobs calls wait for memory for their answers; try again later";
            Error::Unavailable(problem.into())
        })?;
        let ended = self.context.store.ended_jobs(ids, READ).await?;
        // Releases the part of the reservation that the jobs of this read do not need.
        room.shrink(ended.bytes as usize + (1 << 10));
        let room = Some(Arc::new(room));
        for job in ended.jobs {
            self.answer(Ended { room: room.clone(), job: Ok(job) }).await?;
        }
        Ok(ended.cut)
    }

    async fn answer(&mut self, report: Ended) -> Result<(), Error> {
        let id = report.job.as_ref().map(|job| job.id).unwrap_or_default();
        match self.answers.send_timeout(report, READ_TIMEOUT).await {
            Err(SendTimeoutError::Timeout(_)) => {
                Err(Error::Deadline(format!("the answer for job {id} was not read within {READ_TIMEOUT:?}")))
            }
            // If the channel is closed, the caller has gone, and this call is cancelled soon.
            Ok(()) | Err(SendTimeoutError::Closed(_)) => {
                self.left.remove(&id);
                Ok(())
            }
        }
    }

    async fn tell_of_unknown(&mut self, ids: &[i64]) -> Result<(), Error> {
        for id in ids {
            if !self.seen.contains(id) {
                let text = format!("job {id} does not exist, or its history has been dropped");
                return Err(Error::NotFound(text));
            }
            let job = Ok(JobView::forgotten(*id, JobState::Succeeded));
            self.answer(Ended { job, room: None }).await?;
        }
        Ok(())
    }
}
