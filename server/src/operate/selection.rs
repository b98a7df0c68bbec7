//! Jobs named by their type instead of by id: any number of them, worked off in batches.

use crate::{
    error::Error,
    job::{JobState, PagePosition, TaskTypeName, TypeId},
    store::{PickArgs, Picked, Store},
};

/// Jobs in a statement at most.
pub(crate) const BATCH: usize = 1_000;
/// Jobs in a call at most, so that it ends; its answer says where to go on.
pub(crate) const JOBS_A_CALL: usize = 10_000;
/// Statements that pick, in a call at most: where few of many jobs are meant, most find none.
const PICKS_A_CALL: usize = 40;

/// Which jobs a call is about.
#[derive(Clone, Debug, PartialEq)]
pub enum Selection {
    /// These.
    Ids(Vec<i64>),
    /// Those of a type.
    OfType(TypeSelection),
}

/// Which jobs of a type.
#[derive(Clone, Debug, PartialEq)]
pub struct TypeSelection {
    /// The type.
    pub task_type: TaskTypeName,
    /// Only of this state; `None`: of each that the call is about.
    pub state: Option<JobState>,
    /// Only of this error group.
    pub error_group: Option<String>,
    /// Where the call before ended.
    pub from: Option<PagePosition>,
}

/// Goes through a selection, state by state.
pub(super) struct Walk<'a> {
    store: &'a Store,
    type_id: TypeId,
    error_group: Option<&'a str>,
    /// Of scheduled jobs only those that failed before.
    failed: bool,
    states: Vec<JobState>,
    at: Option<PagePosition>,
    jobs_left: usize,
    picks_left: usize,
}

impl<'a> Walk<'a> {
    /// Through these states, in this order.
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

    /// The next batch, of one state; `None`: the end, or enough for one call.
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

    /// Where the next call goes on; `None`: this was all.
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
