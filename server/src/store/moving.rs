//! A task type that moves to another store: the statements of both stores. Each may be repeated.

use std::time::SystemTime;

use tokio_postgres::Row;

use super::{Actor, Statement, Store, StoreError, audit::Change, transaction::until_unlocked};
use crate::job::{StoreNumber, TypeId};

/// Jobs that a left-over count goes up to.
const MOST_STAYING: i32 = 10_001;

/// Where a type goes to, as what store, and who moves it.
#[derive(Clone, Debug)]
pub(crate) struct MoveBegun {
    /// The version of all settings.
    pub(crate) version: i64,
    /// The name of the store that it goes to.
    pub(crate) to: String,
    /// Another broker that moves it; then nothing was changed.
    pub(crate) owner: Option<String>,
    /// It was not begun before.
    pub(crate) is_new: bool,
}

/// A job on its way.
#[derive(Debug)]
pub(crate) struct LeavingJob {
    pub(crate) id: i64,
    /// Where it was in the order of its table.
    pub(crate) place: i64,
    /// Its row as JSON.
    job: String,
    payload: Vec<u8>,
}

/// From which table jobs are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeavingState {
    Ready,
    Scheduled,
    Dead,
}

impl LeavingState {
    pub(crate) const ALL: [Self; 3] = [Self::Ready, Self::Scheduled, Self::Dead];

    const fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Scheduled => "scheduled",
            Self::Dead => "dead",
        }
    }
}

/// What has not moved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeftToMove {
    /// Jobs that run, and follow if they come back.
    pub(crate) running: i64,
    /// Jobs that belong to others and stay, counted up to a bound,
    pub(crate) staying: i64,
    /// and the first of them.
    pub(crate) first_staying: Vec<i64>,
    /// Jobs on their way.
    pub(crate) leaving: i64,
}

/// A move that is under way, or rests.
#[derive(Clone, Debug)]
pub(crate) struct MoveView {
    pub(crate) task_type: String,
    pub(crate) to: String,
    pub(crate) started: SystemTime,
    /// Whether a broker goes on with it.
    pub(crate) is_moving: bool,
}

impl MoveView {
    /// What goes on with it.
    pub(crate) fn command(&self) -> String {
        format!("howdah type move {} --to {}", self.task_type, self.to)
    }

    /// What happens next, or what has to.
    pub(crate) fn what_next(&self) -> String {
        if self.is_moving {
            "The move is under way.".into()
        } else {
            format!("The move rests; `{}` goes on with it.", self.command())
        }
    }
}

fn leaving(row: &Row) -> LeavingJob {
    LeavingJob { id: row.get("id"), place: row.get("place"), job: row.get("job"), payload: row.get("payload") }
}

fn view(row: &Row) -> MoveView {
    MoveView {
        task_type: row.get("task_type"),
        to: row.get("to_name"),
        started: row.get("started"),
        is_moving: row.get("is_moving"),
    }
}

/// In the store that a type leaves.
impl Store {
    /// Begins a move, or goes on with one, for this broker.
    pub(crate) async fn begin_move(
        &self,
        (type_id, name): (TypeId, &str),
        (to, number): (&str, StoreNumber),
        broker_id: i32,
        by: &Actor,
    ) -> Result<MoveBegun, StoreError> {
        let begin = |store: Self| async move {
            let mut transaction = store.begin_general().await?;
            let number = i32::from(number.get());
            let row =
                transaction.query_one(Statement::BeginMove, &[&type_id, &to, &number, &by.name(), &broker_id]).await?;
            let begun = MoveBegun {
                version: row.get("version"),
                to: row.get("to_name"),
                owner: row.get("owner"),
                is_new: row.get("is_new"),
            };
            if begun.is_new {
                transaction.record(by, &Change::of_name(to, name)).await?;
            }
            transaction.commit().await?;
            Ok(begun)
        };
        until_unlocked(self, begin).await
    }

    /// Takes jobs into `leaving`, at most so many, and so many bytes of payload.
    pub(crate) async fn leave_jobs(
        &self,
        type_id: TypeId,
        (state, after): (LeavingState, (i64, i64)),
        (jobs, bytes): (i32, i64),
        broker_id: i32,
    ) -> Result<Vec<LeavingJob>, StoreError> {
        let (place, id) = after;
        let params: super::connection::Params<'_> = &[&type_id, &state.name(), &place, &id, &jobs, &bytes, &broker_id];
        let rows = self.hot().await?.query(Statement::LeaveJobs, params).await?;
        Ok(rows.iter().map(leaving).collect())
    }

    /// Jobs that were on their way when somebody stopped.
    pub(crate) async fn on_the_way(&self, type_id: TypeId, at_most: i32) -> Result<Vec<LeavingJob>, StoreError> {
        let rows = self.general().await?.query(Statement::OnTheWay, &[&type_id, &at_most]).await?;
        Ok(rows.iter().map(leaving).collect())
    }

    /// Ends the way of these jobs. Without a new id they go back. Returns how many have moved.
    pub(crate) async fn leave_done(&self, type_id: TypeId, ids: &[(i64, Option<i64>)]) -> Result<i64, StoreError> {
        let (old, new): (Vec<i64>, Vec<Option<i64>>) = ids.iter().copied().unzip();
        Ok(self.hot().await?.query_one(Statement::LeaveDone, &[&type_id, &old, &new]).await?.get("done"))
    }

    /// What has not moved.
    pub(crate) async fn left_to_move(&self, type_id: TypeId) -> Result<LeftToMove, StoreError> {
        let row = self.general().await?.query_one(Statement::LeftToMove, &[&type_id, &MOST_STAYING]).await?;
        Ok(LeftToMove {
            running: row.get("running"),
            staying: row.get("staying"),
            first_staying: row.get("first_ids"),
            leaving: row.get("leaving"),
        })
    }

    /// Takes the schedules of a type into `leaving_schedule`; as JSON.
    pub(crate) async fn leave_schedules(&self, name: &str) -> Result<Vec<String>, StoreError> {
        let leave =
            |store: Self| async move { store.general().await?.query(Statement::LeaveSchedules, &[&name]).await };
        Ok(until_unlocked(self, leave).await?.iter().map(|row| row.get("schedule")).collect())
    }

    /// Ends the way of schedules: these have moved, the others come back.
    pub(crate) async fn leave_schedules_done(&self, name: &str, moved: &[String]) -> Result<(), StoreError> {
        self.general().await?.query(Statement::LeaveSchedulesDone, &[&name, &moved]).await.map(drop)
    }

    /// Ends the move; returns the version of all settings.
    pub(crate) async fn end_move(&self, type_id: TypeId, broker_id: i32) -> Result<i64, StoreError> {
        Ok(self.general().await?.query_one(Statement::EndMove, &[&type_id, &broker_id]).await?.get("version"))
    }

    /// This broker goes on with the move no more.
    pub(crate) async fn disown_move(&self, type_id: TypeId, broker_id: i32) -> Result<(), StoreError> {
        self.general().await?.query(Statement::DisownMove, &[&type_id, &broker_id]).await.map(drop)
    }

    /// The move of this type from here, if there is one.
    pub(crate) async fn move_of_type(&self, name: &str) -> Result<Option<MoveView>, StoreError> {
        Ok(self.general().await?.query(Statement::MoveOfType, &[&name]).await?.first().map(view))
    }

    /// The move of a job that is on its way.
    pub(crate) async fn move_of_job(&self, id: i64) -> Result<Option<MoveView>, StoreError> {
        Ok(self.general().await?.query(Statement::MoveOfJob, &[&id]).await?.first().map(view))
    }

    /// The new ids of those of these jobs that have moved from here.
    pub(crate) async fn moved_jobs(&self, ids: &[i64]) -> Result<Vec<(i64, i64)>, StoreError> {
        let rows = self.general().await?.query(Statement::MovedJobs, &[&ids]).await?;
        Ok(rows.iter().map(|row| (row.get("old_id"), row.get("new_id"))).collect())
    }

    /// Forgets old and new ids of jobs that moved before so many days.
    pub(crate) async fn forget_moved(&self, days: i32) -> Result<(), StoreError> {
        self.general().await?.query(Statement::ForgetMoved, &[&days]).await.map(drop)
    }
}

/// In the store that it goes to, and in both.
impl Store {
    /// Says that jobs of a type are about to come; returns the version of all settings.
    pub(crate) async fn begin_arrival(&self, type_id: TypeId, from: StoreNumber) -> Result<i64, StoreError> {
        let params: super::connection::Params<'_> = &[&type_id, &i32::from(from.get())];
        Ok(self.general().await?.query_one(Statement::BeginArrival, params).await?.get("version"))
    }

    /// Makes this store the home of a type that another one has had since then; returns the version of all settings.
    pub(crate) async fn be_home(&self, type_id: TypeId, oldest: SystemTime) -> Result<i64, StoreError> {
        Ok(self.general().await?.query_one(Statement::BeHome, &[&type_id, &oldest]).await?.get("version"))
    }

    /// Stores jobs, each once; returns their old and new ids. Without a new id a job was not stored: its key is held.
    pub(crate) async fn arrive_jobs(
        &self,
        type_id: TypeId,
        jobs: &[LeavingJob],
    ) -> Result<Vec<(i64, Option<i64>)>, StoreError> {
        let ids: Vec<i64> = jobs.iter().map(|job| job.id).collect();
        let rows: Vec<&str> = jobs.iter().map(|job| job.job.as_str()).collect();
        let payloads: Vec<&[u8]> = jobs.iter().map(|job| job.payload.as_slice()).collect();
        let rows = self.hot().await?.query(Statement::ArriveJobs, &[&type_id, &ids, &rows, &payloads]).await?;
        Ok(rows.iter().map(|row| (row.get("old_id"), row.get("new_id"))).collect())
    }

    /// Stores schedules, each once; returns the names of those that are here now.
    pub(crate) async fn arrive_schedules(&self, schedules: &[String]) -> Result<Vec<String>, StoreError> {
        let rows = self.general().await?.query(Statement::ArriveSchedules, &[&schedules]).await?;
        Ok(rows.iter().map(|row| row.get("name")).collect())
    }

    /// All jobs that could move have come; returns the version of all settings.
    pub(crate) async fn end_arrival(&self, type_id: TypeId) -> Result<i64, StoreError> {
        Ok(self.general().await?.query_one(Statement::EndArrival, &[&type_id]).await?.get("version"))
    }

    /// The move of a type to this store is over.
    pub(crate) async fn forget_arrival(&self, type_id: TypeId) -> Result<(), StoreError> {
        self.general().await?.query(Statement::ForgetArrival, &[&type_id]).await.map(drop)
    }

    /// The types whose jobs are not claimed while they move from here or to here, and whether jobs have moved from here.
    pub(crate) async fn resting_types(&self) -> Result<(Vec<TypeId>, bool), StoreError> {
        let row = self.general().await?.query_one(Statement::RestingTypes, &[]).await?;
        Ok((row.get("type_ids"), row.get("has_moved")))
    }

    /// Whether every broker that lives goes by this version of all settings, or a later one.
    pub(crate) async fn all_go_by(&self, version: i64) -> Result<bool, StoreError> {
        Ok(self.general().await?.query_one(Statement::AllGoBy, &[&version]).await?.get(0))
    }
}
