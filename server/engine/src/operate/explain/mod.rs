//! Explains why a job does not run. The statements only look up rows by index, and count up to a limit.

mod ended;
mod ready;
mod text;
mod waiting;

use std::time::{Duration, SystemTime};

use howdah_core::{
    error::Error,
    job::{Before, Explanation, JobState, ListedWorker, Reason, RelatedJob, WorkerPosition},
};

use super::Operator;
use crate::store::{JobFacts, StoreError};

/// Maximum number of jobs to count that run before a job.
pub(crate) const MOST_BEFORE: i64 = 10_000;
/// Maximum number of workers of a type to examine.
pub(crate) const MOST_WORKERS: usize = 1_000;
/// Maximum number of jobs named in a reason.
const MOST_RELATED: usize = 10;

/// Facts in an explanation in addition to the reasons.
#[derive(Default)]
struct Outlook {
    before: Option<Before>,
    expected_in: Option<Duration>,
    settled_per_minute: f64,
}

impl Operator {
    /// Explains why a job does not run; `None` if it does not exist or is not visible to the caller. Of other jobs that the
    /// caller may not read, reasons contain only the ids.
    pub async fn explain_job(
        &self,
        id: i64,
        may_read: &(dyn Fn(&str) -> bool + Sync),
    ) -> Result<Option<Explanation>, Error> {
        match self.context.store.explain_job(id).await? {
            Some(job) if may_read(&job.task_type) => Ok(Some(self.explain(job, may_read).await?)),
            Some(_) => Ok(None),
            None => {
                let job = self.archived_job(id).await?.filter(|job| may_read(&job.task_type));
                Ok(job.map(ended::archived))
            }
        }
    }

    async fn explain(&self, job: JobFacts, may_read: &(dyn Fn(&str) -> bool + Sync)) -> Result<Explanation, Error> {
        let (id, mut outlook) = (job.id, Outlook::default());
        let reasons = match job.state {
            JobState::Leased => vec![ended::running(&job, self.holder_of(id).await?)],
            JobState::Scheduled => {
                outlook.expected_in = job.run_at.map(|at| at.duration_since(job.now).unwrap_or_default());
                waiting::for_time(&job)
            }
            JobState::Waiting => {
                let related = self.related(&job, may_read).await?;
                match job.limit_key.as_deref().filter(|_| related.is_empty()) {
                    Some(key) => {
                        let limit = self.context.store.explain_limit_key(&job, key, MOST_BEFORE + 1).await?;
                        outlook.before = Some(before(limit.before));
                        waiting::for_limit(&job, key, &limit)
                    }
                    None => waiting::for_jobs(&job, related),
                }
            }
            JobState::Ready => {
                let floor = self.context.dispatch.claimed_up_to(job.type_id).min(job.rank);
                let facts = self.context.store.explain_ready(&job, floor, MOST_BEFORE + 1).await?;
                let workers = self.workers_of(&job.task_type).await?;
                let pulled = self.pulled(&job, facts.pulled);
                let about = ready::About::new(&job, facts, pulled, &workers);
                (outlook.before, outlook.settled_per_minute) = (Some(before(facts.before)), about.settled_per_minute());
                outlook.expected_in = about.expected_in();
                about.reasons()
            }
            _ => {
                let holder = self.store_states(job.key_holder.as_slice(), may_read).await?;
                ended::reasons(&job, holder)
            }
        };
        let mut reasons = reasons;
        if let (Some(undone), Some(first)) = (&job.undone, reasons.first_mut()) {
            first.text = format!("{} {}", first.text, ended::undone(undone, job.now));
        }
        if let Some(first) = self.if_moving(&job).await? {
            reasons.insert(0, first);
        }
        let Outlook { before, expected_in, settled_per_minute } = outlook;
        let JobFacts { task_type, state, .. } = job;
        Ok(Explanation { id, task_type, state, reasons, before, expected_in, settled_per_minute })
    }

    /// Returns an additional reason if the task type is being moved to another store, or its move is interrupted.
    async fn if_moving(&self, job: &JobFacts) -> Result<Option<Reason>, Error> {
        let is_held = matches!(job.state, JobState::Ready | JobState::Scheduled | JobState::Waiting);
        if !job.moves || !is_held {
            return Ok(None);
        }
        let task_type = &job.task_type;
        let view = self.context.store.move_of_type(task_type).await?;
        let since = view.as_ref().map(|view| view.started);
        let (text, remedy) = match view {
            Some(view) if view.is_moving => (
                format!(
                    "The task type {task_type} is moving to store {}, and is paused until its jobs are there.",
                    view.to
                ),
                String::new(),
            ),
            Some(view) => (
                format!("The task type {task_type} is moving to store {}, and the move is interrupted.", view.to),
                format!("Run `{}` to resume the move.", view.command()),
            ),
            None => (
                format!(
                    "The task type {task_type} is moving here from another store, and is paused until its jobs are here."
                ),
                format!("If the move is interrupted, run `howdah type move {task_type} --to` this store."),
            ),
        };
        Ok(Some(Reason { kind: howdah_proto::v1::ReasonKind::TypeMoving, text, remedy, since, ..Reason::default() }))
    }

    /// Returns the jobs that a waiting job waits for. The holder of its key comes first.
    async fn related(
        &self,
        job: &JobFacts,
        may_read: &(dyn Fn(&str) -> bool + Sync),
    ) -> Result<Vec<RelatedJob>, StoreError> {
        let ids: Vec<i64> = job.queued_behind.iter().chain(&job.after).copied().take(MOST_RELATED).collect();
        self.store_states(&ids, may_read).await
    }

    async fn store_states(
        &self,
        ids: &[i64],
        may_read: &(dyn Fn(&str) -> bool + Sync),
    ) -> Result<Vec<RelatedJob>, StoreError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut jobs = self.context.store.states_of_jobs(ids).await?;
        for job in &mut jobs {
            job.known.take_if(|(task_type, _)| !may_read(task_type));
        }
        Ok(jobs)
    }

    /// Returns the last pull of jobs of the job's task type. `noted` is the last pull that any broker has recorded.
    fn pulled(&self, job: &JobFacts, noted: Option<SystemTime>) -> ready::Pulled {
        let pulls = &self.context.sessions.pulls;
        if pulls.is_waiting(job.type_id) {
            return ready::Pulled::Now;
        }
        let own = pulls.last(job.type_id).map(|last| job.now - last.elapsed());
        own.max(noted).map_or(ready::Pulled::Never, ready::Pulled::At)
    }

    /// Returns the workers that have a window for the task type.
    async fn workers_of(&self, task_type: &str) -> Result<Vec<ListedWorker>, Error> {
        self.list_workers(WorkerPosition::FIRST, Some(task_type), MOST_WORKERS).await
    }
}

fn before(counted: i64) -> Before {
    Before { jobs: counted.min(MOST_BEFORE), has_more: counted > MOST_BEFORE }
}

/// Returns an additional reason if the task type is paused.
fn if_paused(job: &JobFacts) -> Option<Reason> {
    job.paused.then(|| Reason {
        kind: howdah_proto::v1::ReasonKind::TypePaused,
        text: format!("The task type {} is paused.", job.task_type),
        remedy: "Resume the task type.".into(),
        ..Reason::default()
    })
}
