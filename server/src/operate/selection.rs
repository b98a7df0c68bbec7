//! Jobs selected by their type instead of by id: any number of them, handled in batches.

use crate::{
    error::Error,
    job::{Chosen, JobState, PagePosition, TaskTypeName, TypeId},
    store::{PickArgs, Picked, Store},
};

/// The most jobs in a statement.
pub(crate) const BATCH: usize = 1_000;
/// The most jobs in a call, so that it ends. The answer has the position of the next call.
pub(crate) const JOBS_A_CALL: usize = 10_000;
/// The most picking statements in a call. If few of many jobs match, most statements find none.
const PICKS_A_CALL: usize = 40;

/// The jobs that a call selects.
#[derive(Clone, Debug, PartialEq)]
pub enum Selection {
    /// Jobs by id.
    Ids(Chosen),
    /// Jobs of a type.
    OfType(TypeSelection),
}

/// The jobs of a type that a call selects.
#[derive(Clone, Debug, PartialEq)]
pub struct TypeSelection {
    /// The type.
    pub task_type: TaskTypeName,
    /// Their state; `None`: each state that the call accepts.
    pub state: Option<JobState>,
    /// Their error group; `None`: any.
    pub error_group: Option<String>,
    /// The position at which the call before ended.
    pub from: Option<PagePosition>,
}

/// Goes through a selection, state by state.
pub(super) struct Walk<'a> {
    store: &'a Store,
    type_id: TypeId,
    error_group: Option<&'a str>,
    /// Whether to take only those scheduled jobs that have failed.
    failed: bool,
    states: Vec<JobState>,
    at: Option<PagePosition>,
    jobs_left: usize,
    picks_left: usize,
}

impl<'a> Walk<'a> {
    /// Goes through these states, in this order.
    pub(super) fn new(
        store: &'a Store,
        type_id: TypeId,
        selection: &'a TypeSelection,
        failed: bool,
        states: &[JobState],
    ) -> Self {
        let states: Vec<JobState> =
            states.iter().copied().filter(|&state| selection.state.is_none_or(|only| only == state)).collect();
        let first = states.first().map(|&state| start_of(state));
        Self {
            store,
            type_id,
            error_group: selection.error_group.as_deref(),
            failed,
            at: selection.from.or(first),
            states,
            jobs_left: JOBS_A_CALL,
            picks_left: PICKS_A_CALL,
        }
    }

    /// The next batch, all of one state; `None`: the end, or enough for one call.
    pub(super) async fn next(&mut self) -> Result<Option<(JobState, Vec<i64>)>, Error> {
        while let Some(from) = self.at
            && self.picks_left > 0
            && self.jobs_left > 0
        {
            let at_most = BATCH.min(self.jobs_left);
            let pick = PickArgs {
                type_id: self.type_id,
                from,
                error_group: self.error_group,
                failed: self.failed,
                at_most: at_most as i32,
            };
            let Picked { ids, next } = self.store.pick(&pick).await?;
            self.at = next.or_else(|| self.state_after(from.state));
            self.picks_left -= 1;
            self.jobs_left -= ids.len().min(self.jobs_left);
            if !ids.is_empty() {
                return Ok(Some((from.state, ids)));
            }
        }
        Ok(None)
    }

    /// The position of the next call; `None`: there is no more.
    pub(super) fn rest(&self) -> Option<PagePosition> {
        self.at
    }

    fn state_after(&self, state: JobState) -> Option<PagePosition> {
        let place = self.states.iter().position(|s| *s == state)?;
        self.states.get(place + 1).copied().map(start_of)
    }
}

fn start_of(state: JobState) -> PagePosition {
    PagePosition { state, rank: i64::MIN, id: i64::MIN }
}
