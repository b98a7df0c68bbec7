//! Bulk operations: preview, start, pause, resume, cancel and list. `work` executes them.

mod work;

use std::time::Duration;

use howdah_core::{
    error::Error,
    job::{Bulk, BulkChange, BulkPreview, BulkSpec, BulkState, JobState, PagePosition, TypeId},
};

use super::Operator;
use crate::store::{Actor, NewBulk, PickBulk, StoreError};

pub(crate) use work::run;
pub use work::{BATCH, ROUNDS, SHARE};

/// Maximum number of running and paused bulk operations, a quarter of them by one principal.
pub const MOST_OPEN: i64 = 100;
/// Maximum number of jobs of a bulk operation that are counted.
pub const COUNTED: usize = 10_000;
/// Maximum number of statements that count the jobs of a bulk operation, each for at most 20,000 rows.
const COUNTS: usize = 10;
/// Number of example jobs in a preview.
pub const EXAMPLES: usize = 3;
/// Expected speed of a bulk operation, in jobs per second.
const EXPECTED_PER_S: i64 = 5_000;
/// Added to the current time as the upper bound for failure times. So all failed jobs are counted, even if this machine's clock
/// is behind.
const LATER: Duration = Duration::from_hours(24 * 365);

/// Count of the jobs of a bulk operation, up to a limit.
#[derive(Default)]
struct Counted {
    /// Ids of the first jobs.
    first: Vec<i64>,
    selected: usize,
    /// Number of leased jobs among the selected jobs.
    running: usize,
    /// Whether there may be more jobs than counted.
    has_more: bool,
}

/// A bulk operation to start.
#[derive(Clone, Debug)]
pub struct StartBulkQuery {
    /// The change, and which jobs to change.
    pub spec: BulkSpec,
    /// Request key of the caller. A second request with the same key starts no operation.
    pub request_key: Option<String>,
}

impl Operator {
    /// Counts the jobs that a bulk operation would change, and returns some of them as examples.
    pub async fn preview_bulk(&self, spec: &BulkSpec) -> Result<BulkPreview, Error> {
        let Some(type_id) = self.type_of_bulk(spec).await? else {
            return Ok(BulkPreview::default());
        };
        let Counted { first, selected, running, has_more } = self.count(type_id, spec).await?;
        let mut preview =
            BulkPreview { selected: selected as i64, has_more, running: running as i64, ..BulkPreview::default() };
        for id in first {
            // The job may have ended since it was picked. It is still an example, unless its history is gone.
            preview.examples.extend(self.context.store.get_job(id).await?);
        }
        if spec.change.undoes().is_some() {
            return Ok(preview);
        }
        if let Some(to) = spec.change.to_type() {
            preview.creates_type = self.context.registry.find(to).await?.is_none();
        }
        let counted = self.context.job_counts.look(&self.context.store).await;
        let of_type = counted.types.iter().find(|counted| counted.name == spec.task_type.as_str());
        let in_state = |state: &JobState| {
            let counts = of_type.map(|counted| counted.counts).unwrap_or_default();
            JobState::COUNTED.iter().zip(counts).find(|(counted, _)| *counted == state).map_or(0, |(_, jobs)| jobs)
        };
        let states = spec.states();
        preview.in_states = of_type.map(|_| states.iter().map(in_state).sum());
        // If the count reached its limit before the leased jobs, their number comes from the type's last job counts.
        if has_more && states.contains(&JobState::Leased) && spec.error_group.is_none() && spec.conditions.is_empty() {
            preview.running = in_state(&JobState::Leased);
        }
        Ok(preview)
    }

    /// Returns the task type of the jobs. For an undo it is the type of the bulk operation to undo, which must be one that can
    /// be undone.
    async fn type_of_bulk(&self, spec: &BulkSpec) -> Result<Option<TypeId>, Error> {
        let Some(id) = spec.change.undoes() else {
            return Ok(self.context.registry.find(&spec.task_type).await?);
        };
        let bulk = self.get_bulk(id).await?;
        if !bulk.spec.change.can_be_undone() {
            let instead = match &bulk.spec.change {
                BulkChange::Move(to) => format!("; move jobs of {to} back to {} instead", bulk.spec.task_type),
                BulkChange::Set(_) => "; set the fields again instead".into(),
                _ => String::new(),
            };
            let problem = format!(
                "bulk operation {id} is of the kind {}; only cancel and discard can be undone{instead}",
                bulk.spec.change.name()
            );
            return Err(Error::Precondition(problem));
        }
        if bulk.ended.is_none() {
            let state = bulk.state.name();
            let problem =
                format!("bulk operation {id} is {state}; wait until it has ended, or cancel it, and then undo it");
            return Err(Error::Precondition(problem));
        }
        Ok(Some(bulk.type_id))
    }

    /// Counts the jobs of a bulk operation, up to a limit.
    async fn count(&self, type_id: TypeId, spec: &BulkSpec) -> Result<Counted, Error> {
        let (states, before) = (spec.states(), self.context.now() + LATER);
        let mut at = states.first().copied().map(PagePosition::first);
        let mut counted = Counted::default();
        for _ in 0..COUNTS {
            let Some(from) = at else { break };
            // One more job than the limit, to detect whether there are more.
            let at_most = (COUNTED + 1 - counted.selected) as i32;
            let pick = PickBulk { type_id, spec, from, at_most, last_id: i64::MAX, before };
            let picked = self.context.store.pick_for_bulk(&pick).await?;
            counted.first.extend(picked.ids.iter().copied().take(EXAMPLES - counted.first.len()));
            counted.selected += picked.ids.len();
            if from.state == JobState::Leased {
                counted.running += picked.ids.len();
            }
            if counted.selected > COUNTED {
                return Ok(Counted { selected: COUNTED, has_more: true, ..counted });
            }
            at = picked.next.or_else(|| PagePosition::after(from.state, &states));
        }
        Ok(Counted { has_more: at.is_some(), ..counted })
    }

    /// Starts a bulk operation, which is executed in the background. A repeated request key returns the existing operation.
    pub async fn start_bulk(&self, query: &StartBulkQuery, by: &Actor) -> Result<Bulk, Error> {
        let spec = &query.spec;
        let Some(type_id) = self.type_of_bulk(spec).await? else {
            return Err(Error::NotFound(format!("there is no task type {:?}", spec.task_type.as_str())));
        };
        if let Some(to) = spec.change.to_type() {
            // The target task type is created if it is new, as by an enqueue.
            self.context.registry.resolve(std::slice::from_ref(to), by.name()).await?;
        }
        let Counted { selected, has_more, .. } = self.count(type_id, spec).await?;
        let undone = spec.change.undoes().filter(|_| selected == 0 && !has_more);
        let request_key = query.request_key.as_deref();
        // An undo without jobs starts nothing. If an earlier request with the same key has started an operation, it is
        // returned, even if it is complete.
        let at_most = if undone.is_some() { 0 } else { MOST_OPEN };
        let bulk = NewBulk { spec, type_id, selected: (selected as i64, has_more), request_key, at_most };
        let id = match (self.context.store.start_bulk(&bulk, by).await, undone) {
            (Err(StoreError::TooMany(_)), Some(undone)) => return Err(nothing_to_undo(undone)),
            (started, _) => started?,
        };
        self.context.wake.bulk_in(Duration::ZERO);
        self.get_bulk(id).await
    }

    /// Returns a bulk operation by id.
    pub async fn get_bulk(&self, id: i64) -> Result<Bulk, Error> {
        self.context.store.get_bulk(id).await?.ok_or_else(|| no_bulk(id))
    }

    /// Returns bulk operations whose id is lower than `before`, newest first.
    pub async fn list_bulks(
        &self,
        before: i64,
        task_type: Option<&str>,
        open_only: bool,
        at_most: usize,
    ) -> Result<Vec<Bulk>, Error> {
        Ok(self.context.store.list_bulks(before, task_type, open_only, at_most as i32).await?)
    }

    /// Pauses, resumes or cancels a bulk operation. Does nothing if it is already in the requested state.
    pub async fn change_bulk(&self, bulk: &Bulk, to: BulkState, by: &Actor) -> Result<Bulk, Error> {
        let from: &[BulkState] = match to {
            BulkState::Paused => &[BulkState::Running],
            BulkState::Running => &[BulkState::Paused],
            BulkState::Cancelled | BulkState::Completed => &[BulkState::Running, BulkState::Paused],
        };
        let changed = self.context.store.change_bulk(bulk, to, from, by).await?;
        let bulk = self.get_bulk(bulk.id).await?;
        if !changed && bulk.state != to {
            return Err(Error::Precondition(format!(
                "bulk operation {} has ended: it is {}",
                bulk.id,
                bulk.state.name()
            )));
        }
        if to == BulkState::Running {
            self.context.wake.bulk_in(Duration::ZERO);
        }
        Ok(bulk)
    }
}

/// Returns the estimated duration of a bulk operation with this number of jobs.
pub fn expected(spec: &BulkSpec, jobs: i64) -> Duration {
    let rate = spec.jobs_per_s.map_or(EXPECTED_PER_S, |rate| EXPECTED_PER_S.min(rate.into()));
    Duration::from_secs_f64(jobs.max(0) as f64 / rate.max(1) as f64)
}

/// Error for a bulk operation that does not exist or is not visible to the caller.
pub fn no_bulk(id: i64) -> Error {
    Error::NotFound(format!("bulk operation {id} does not exist, or ended so long ago that it was deleted"))
}

fn nothing_to_undo(id: i64) -> Error {
    Error::Precondition(format!(
        "nothing is left to undo of bulk operation {id}: its jobs are restored, or their history was dropped"
    ))
}
