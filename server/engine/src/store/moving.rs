//! Statements that move a task type with its jobs to another store, for the source store and the target store. Each
//! statement is idempotent.

use std::time::SystemTime;

use howdah_core::job::{StoreNumber, TypeId};

use super::{
    Actor, Statement, Store, StoreError, audit::Change, connection::Params, rows::from_row,
    transaction::retry_while_locked_in_side_lane,
};

/// Upper limit for the count of jobs that cannot move to another store.
const MOST_STAYING: i32 = 10_001;

/// Result of beginning to move a task type to another store.
#[derive(Clone, Debug)]
pub struct MoveBegun {
    /// Settings version after the move has begun.
    pub version: i64,
    /// Name of the target store.
    pub to: String,
    /// Name of another broker that owns the move and is alive. If set, nothing was changed.
    pub owner: Option<String>,
    /// Whether this call created the move.
    pub is_new: bool,
}

from_row! { MoveBegun(row) { version, to: row.get("to_name"), owner, is_new } }

/// A job in the table `leaving` of the source store. It has left the table of its state, and is not yet stored in the
/// target store.
#[derive(Debug)]
pub struct LeavingJob {
    pub id: i64,
    /// Sort position of the job in its former table: rank of a ready job, start time in µs of a scheduled job, 0 for a
    /// dead job.
    pub position: i64,
    /// Job row as JSON.
    job: String,
    payload: Vec<u8>,
}

from_row! { LeavingJob(row) { id, position: row.get("sort_position"), job, payload } }

/// Job state that selects the table of the source store from which jobs are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeavingState {
    Ready,
    Scheduled,
    Dead,
}

impl LeavingState {
    pub const ALL: [Self; 3] = [Self::Ready, Self::Scheduled, Self::Dead];

    const fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Scheduled => "scheduled",
            Self::Dead => "dead",
        }
    }
}

/// Counts of jobs that have not moved to the target store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftToMove {
    /// Number of running jobs. A running job moves only if it becomes ready or scheduled again.
    pub running: i64,
    /// Number of jobs that cannot move because other jobs or callers depend on them, counted up to `MOST_STAYING`.
    pub staying: i64,
    /// Ids of the first jobs that cannot move.
    pub first_staying: Vec<i64>,
    /// Number of jobs in the table `leaving`. These jobs have left the table of their state, and are not yet stored in
    /// the target store.
    pub leaving: i64,
}

from_row! { LeftToMove(row) { running, staying, first_staying: row.get("first_ids"), leaving } }

/// Settings of a limit key that has its own limit or is paused.
#[derive(Clone, Debug)]
pub struct KeySettings {
    pub key: String,
    max_running: Option<i32>,
    /// End of the pause as text, because it may be `infinity`. `None` if the limit key is not paused.
    paused_until: Option<String>,
}

from_row! { KeySettings(row) { key: row.get("limit_key"), max_running, paused_until } }

/// A move of a task type to another store that is in progress or interrupted.
#[derive(Clone, Debug)]
pub struct MoveView {
    pub(crate) task_type: String,
    pub to: String,
    pub(crate) started: SystemTime,
    /// Whether a broker is working on the move.
    pub(crate) is_moving: bool,
}

from_row! { MoveView(row) { task_type, to: row.get("to_name"), started, is_moving } }

impl MoveView {
    /// Returns the command that continues the move.
    pub fn command(&self) -> String {
        format!("howdah type move {} --to {}", self.task_type, self.to)
    }

    /// Returns a sentence about the progress of the move, for error messages.
    pub(crate) fn progress_note(&self) -> String {
        if self.is_moving {
            "The move is in progress.".into()
        } else {
            format!("The move was interrupted; run `{}` to continue it.", self.command())
        }
    }
}

/// Statements for the source store of a move.
impl Store {
    /// Begins or continues the move of a task type to another store, with this broker as the owner of the move.
    pub async fn begin_move(
        &self,
        (type_id, name): (TypeId, &str),
        (to, number): (&str, StoreNumber),
        broker_id: i32,
        by: &Actor,
    ) -> Result<MoveBegun, StoreError> {
        let begin = |store: Self| async move {
            let mut transaction = store.begin_general().await?;
            let number = i32::from(number.get());
            let begun: MoveBegun =
                transaction.one(Statement::BeginMove, &[&type_id, &to, &number, &by.name(), &broker_id]).await?;
            if begun.is_new {
                transaction.record(by, &Change::of_name(to, name)).await?;
            }
            transaction.commit().await?;
            Ok(begun)
        };
        retry_while_locked_in_side_lane(self, begin).await
    }

    /// Moves jobs in one state, after a position, from the table of their state to the table `leaving`, up to limits on
    /// jobs and payload bytes. Returns these jobs.
    pub async fn leave_jobs(
        &self,
        type_id: TypeId,
        (state, after): (LeavingState, (i64, i64)),
        (jobs, bytes): (i32, i64),
        broker_id: i32,
    ) -> Result<Vec<LeavingJob>, StoreError> {
        let (position, id) = after;
        let params: Params<'_> = &[&type_id, &state.name(), &position, &id, &jobs, &bytes, &broker_id];
        self.hot().await?.list(Statement::LeaveJobs, params).await
    }

    /// Returns jobs that were left in `leaving` when an earlier move was interrupted.
    pub async fn jobs_in_transit(&self, type_id: TypeId, at_most: i32) -> Result<Vec<LeavingJob>, StoreError> {
        self.general().await?.list(Statement::JobsInTransit, &[&type_id, &at_most]).await
    }

    /// Removes jobs from the table `leaving`. A job with a new id is stored in the target store. A job without a new id
    /// returns to the table of its state, because the target store did not take it. Returns the number of moved jobs.
    pub async fn leave_done(&self, type_id: TypeId, ids: &[(i64, Option<i64>)]) -> Result<i64, StoreError> {
        let (old, new): (Vec<i64>, Vec<Option<i64>>) = ids.iter().copied().unzip();
        self.hot().await?.one(Statement::LeaveDone, &[&type_id, &old, &new]).await
    }

    /// Counts the jobs of a task type that have not moved.
    pub async fn left_to_move(&self, type_id: TypeId) -> Result<LeftToMove, StoreError> {
        self.general().await?.one(Statement::LeftToMove, &[&type_id, &MOST_STAYING]).await
    }

    /// Returns the own settings of limit keys of a task type, from after the given key on.
    pub async fn key_settings(
        &self,
        type_id: TypeId,
        after: &str,
        at_most: i32,
    ) -> Result<Vec<KeySettings>, StoreError> {
        self.general().await?.list(Statement::KeySettings, &[&type_id, &after, &at_most]).await
    }

    /// Moves the schedules of a task type to the table `leaving_schedule`, and returns them as JSON.
    pub async fn leave_schedules(&self, name: &str) -> Result<Vec<String>, StoreError> {
        let leave = |store: Self| async move { store.general().await?.list(Statement::LeaveSchedules, &[&name]).await };
        retry_while_locked_in_side_lane(self, leave).await
    }

    /// Removes the schedules of a task type from the table `leaving_schedule`. Schedules named in `moved` are deleted,
    /// because the target store has them. All others become active here again.
    pub async fn leave_schedules_done(&self, name: &str, moved: &[String]) -> Result<(), StoreError> {
        self.general().await?.run(Statement::LeaveSchedulesDone, &[&name, &moved]).await
    }

    /// Ends the move of a task type to another store. Returns the settings version.
    pub async fn end_move(&self, type_id: TypeId, broker_id: i32) -> Result<i64, StoreError> {
        self.general().await?.one(Statement::EndMove, &[&type_id, &broker_id]).await
    }

    /// Gives up this broker's ownership of the move, so that another broker may continue it.
    pub async fn release_move(&self, type_id: TypeId, broker_id: i32) -> Result<(), StoreError> {
        self.general().await?.run(Statement::ReleaseMove, &[&type_id, &broker_id]).await
    }

    /// Returns the unfinished move of a task type from this store to another one. `None` if the type is not moving.
    pub async fn move_of_type(&self, name: &str) -> Result<Option<MoveView>, StoreError> {
        self.general().await?.find(Statement::MoveOfType, &[&name]).await
    }

    /// Returns the unfinished move to which a job in the table `leaving` belongs. `None` if the job is not in that
    /// table.
    pub(crate) async fn move_of_job(&self, id: i64) -> Result<Option<MoveView>, StoreError> {
        self.general().await?.find(Statement::MoveOfJob, &[&id]).await
    }

    /// Returns the old and new id of each given job that has moved from this store to another one.
    pub(crate) async fn moved_jobs(&self, ids: &[i64]) -> Result<Vec<(i64, i64)>, StoreError> {
        self.general().await?.list(Statement::MovedJobs, &[&ids]).await
    }

    /// Deletes the records (old id, new id) of jobs that moved to another store more than `days` days ago.
    pub(crate) async fn forget_moved(&self, days: i32) -> Result<(), StoreError> {
        self.general().await?.run(Statement::ForgetMoved, &[&days]).await
    }
}

/// Statements for the target store of a move, and for both stores.
impl Store {
    /// Records that jobs of a task type will arrive from another store, so that brokers do not claim jobs of this type
    /// yet. Returns the settings version.
    pub async fn begin_arrival(&self, type_id: TypeId, from: StoreNumber) -> Result<i64, StoreError> {
        let params: Params<'_> = &[&type_id, &i32::from(from.get())];
        self.general().await?.one(Statement::BeginArrival, params).await
    }

    /// Makes this store the home of a task type. The home is the store with the type's earliest creation time, so this
    /// function sets the time here to before `oldest`, the earliest one in other stores. Returns the settings version.
    pub async fn make_home_store(&self, type_id: TypeId, oldest: SystemTime) -> Result<i64, StoreError> {
        self.general().await?.one(Statement::MakeHomeStore, &[&type_id, &oldest]).await
    }

    /// Stores settings of limit keys of a task type that arrive from another store. Unless `replaces` is set, limit keys that
    /// have own settings here keep them.
    pub async fn arrive_key_settings(
        &self,
        type_id: TypeId,
        keys: &[KeySettings],
        replaces: bool,
    ) -> Result<(), StoreError> {
        let names: Vec<&str> = keys.iter().map(|key| key.key.as_str()).collect();
        let most: Vec<Option<i32>> = keys.iter().map(|key| key.max_running).collect();
        let paused: Vec<Option<&str>> = keys.iter().map(|key| key.paused_until.as_deref()).collect();
        let params: Params<'_> = &[&type_id, &names, &most, &paused, &replaces];
        let arrive =
            |store: Self| async move { store.general().await?.run(Statement::ArriveKeySettings, params).await };
        retry_while_locked_in_side_lane(self, arrive).await
    }

    /// Stores jobs that arrive from another store, each only once even if the call is repeated. Returns old and new
    /// ids. A job without a new id was not stored because another job holds its key.
    pub async fn arrive_jobs(
        &self,
        type_id: TypeId,
        jobs: &[LeavingJob],
    ) -> Result<Vec<(i64, Option<i64>)>, StoreError> {
        let ids: Vec<i64> = jobs.iter().map(|job| job.id).collect();
        let rows: Vec<&str> = jobs.iter().map(|job| job.job.as_str()).collect();
        let payloads: Vec<&[u8]> = jobs.iter().map(|job| job.payload.as_slice()).collect();
        self.hot().await?.list(Statement::ArriveJobs, &[&type_id, &ids, &rows, &payloads]).await
    }

    /// Stores schedules that arrive from another store, each only once even if the call is repeated. Returns the names
    /// of the schedules that now exist here.
    pub async fn arrive_schedules(&self, schedules: &[String]) -> Result<Vec<String>, StoreError> {
        self.general().await?.list(Statement::ArriveSchedules, &[&schedules]).await
    }

    /// Records that all jobs that can move to this store have arrived, so that brokers claim jobs of the type again.
    /// Returns the settings version.
    pub async fn end_arrival(&self, type_id: TypeId) -> Result<i64, StoreError> {
        self.general().await?.one(Statement::EndArrival, &[&type_id]).await
    }

    /// Deletes the record of a move of a task type to this store.
    pub async fn delete_arrival(&self, type_id: TypeId) -> Result<(), StoreError> {
        self.general().await?.run(Statement::DeleteArrival, &[&type_id]).await
    }

    /// Returns task types whose jobs are not claimed because the type is moving from or to this store, and whether any
    /// jobs have moved from this store.
    pub(crate) async fn unclaimed_types(&self) -> Result<(Vec<TypeId>, bool), StoreError> {
        self.general().await?.one(Statement::UnclaimedTypes, &[]).await
    }

    /// Whether every living broker uses this settings version or a later one.
    pub async fn all_brokers_use_version(&self, version: i64) -> Result<bool, StoreError> {
        self.general().await?.one(Statement::AllBrokersUseVersion, &[&version]).await
    }
}
