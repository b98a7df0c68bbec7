//! Jobs selected by id, or by type: any number of them, processed in batches.

use std::slice::Chunks;

use howdah_core::{
    error::Error,
    job::{Chosen, JobConditions, JobState, PagePosition, TaskTypeName, TypeId},
};

use super::Operator;
use crate::store::{Pick, Picked, Store};

/// Maximum number of jobs that a statement changes.
pub const BATCH: usize = 1_000;
/// Maximum number of jobs per call, so that a call does not take too long. The response has a page token for the next call.
pub const JOBS_A_CALL: usize = 10_000;
/// Maximum number of selecting statements per call. Bounds the time of a call if few jobs match, so that most statements find
/// none.
const PICKS_A_CALL: usize = 40;

/// The jobs that a call changes.
#[derive(Clone, Debug, PartialEq)]
pub enum Selection {
    /// Jobs by id.
    Ids(Chosen),
    /// Jobs of a type.
    OfType(TypeSelection),
}

/// Selection by type.
#[derive(Clone, Debug, PartialEq)]
pub struct TypeSelection {
    /// The type.
    pub task_type: TaskTypeName,
    /// State of the jobs; `None`: every state that the call supports.
    pub state: Option<JobState>,
    /// Error group of the jobs; `None` for all jobs.
    pub error_group: Option<String>,
    /// Further conditions on the jobs.
    pub conditions: JobConditions,
    /// Position at which the previous call ended, to continue there.
    pub from: Option<PagePosition>,
}

/// Iterator over the jobs of a selection, in batches: jobs by id, or the jobs of a type state by state.
pub(super) struct Walk<'a> {
    by_id: Option<(&'a Chosen, Chunks<'a, i64>)>,
    of_type: Option<TypeWalk<'a>>,
}

/// Position in the jobs of a selection by type.
struct TypeWalk<'a> {
    store: &'a Store,
    type_id: TypeId,
    selection: &'a TypeSelection,
    /// Jobs that the worker of the selection holds; `None` if it names no worker.
    held: Option<Vec<i64>>,
    /// Whether scheduled jobs are selected only if an attempt of theirs has failed.
    failed: bool,
    /// If set, only jobs with another priority are selected.
    other_priority: Option<i16>,
    states: Vec<JobState>,
    at: Option<PagePosition>,
    jobs_left: usize,
    picks_left: usize,
}

impl<'a> Walk<'a> {
    /// Returns an iterator over the jobs of a selection. If it is by type: in these states and in this order.
    pub(super) async fn new(
        operator: &'a Operator,
        selection: &'a Selection,
        failed: bool,
        states: &[JobState],
    ) -> Result<Self, Error> {
        match selection {
            Selection::Ids(jobs) => Ok(Self { by_id: Some((jobs, jobs.ids.chunks(BATCH))), of_type: None }),
            Selection::OfType(selection) => Self::of_type(operator, selection, failed, states).await,
        }
    }

    /// Returns an iterator over the jobs of a type, which ends at once if the type does not exist.
    pub(super) async fn of_type(
        operator: &'a Operator,
        selection: &'a TypeSelection,
        failed: bool,
        states: &[JobState],
    ) -> Result<Self, Error> {
        let Some(type_id) = operator.context.registry.find(&selection.task_type).await? else {
            return Ok(Self { by_id: None, of_type: None });
        };
        let held = operator.held_by_worker_of(&selection.conditions, Some(type_id)).await?;
        let states: Vec<JobState> =
            states.iter().copied().filter(|&state| selection.state.is_none_or(|only| only == state)).collect();
        let walk = TypeWalk {
            store: &operator.context.store,
            type_id,
            selection,
            held,
            failed,
            other_priority: None,
            at: selection.from.or(states.first().copied().map(PagePosition::first)),
            states,
            jobs_left: JOBS_A_CALL,
            picks_left: PICKS_A_CALL,
        };
        Ok(Self { by_id: None, of_type: Some(walk) })
    }

    /// Leaves out jobs that have this priority.
    pub(super) fn with_other_priority(mut self, priority: i16) -> Self {
        self.of_type.iter_mut().for_each(|walk| walk.other_priority = Some(priority));
        self
    }

    /// Returns the next batch; a batch of a selection by type has jobs of one state. `None` at the end, or after the maximum
    /// number of jobs per call.
    pub(super) async fn next(&mut self) -> Result<Option<(Option<JobState>, Chosen)>, Error> {
        if let Some((chosen, batches)) = &mut self.by_id {
            return Ok(batches.next().map(|ids| (None, chosen.but(ids.to_vec()))));
        }
        match &mut self.of_type {
            Some(walk) => Ok(walk.next().await?.map(|(state, ids)| (Some(state), ids.into()))),
            None => Ok(None),
        }
    }

    /// Position at which the next call continues; `None` if all jobs were visited.
    pub(super) fn rest(&self) -> Option<PagePosition> {
        self.of_type.as_ref()?.at
    }
}

impl TypeWalk<'_> {
    async fn next(&mut self) -> Result<Option<(JobState, Vec<i64>)>, Error> {
        while let Some(from) = self.at
            && self.picks_left > 0
            && self.jobs_left > 0
        {
            let at_most = BATCH.min(self.jobs_left);
            let pick = Pick {
                type_id: self.type_id,
                from,
                at_most: at_most as i32,
                conditions: &self.selection.conditions,
                held: self.held.as_deref(),
                error_group: self.selection.error_group.as_deref(),
                failed: self.failed,
                failed_before: None,
                other_priority: self.other_priority,
                last_id: i64::MAX,
            };
            let Picked { ids, next } = self.store.pick(&pick).await?;
            self.at = next.or_else(|| PagePosition::after(from.state, &self.states));
            self.picks_left -= 1;
            self.jobs_left -= ids.len().min(self.jobs_left);
            if !ids.is_empty() {
                return Ok(Some((from.state, ids)));
            }
        }
        Ok(None)
    }
}
