//! Rows of schedules, and the transaction that fires them.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use howdah_core::job::schedule::{Drift, Missed, Overlap, PlanText, Schedule, ScheduleSpec, ScheduleState, Template};
use tokio_postgres::Row;

use super::{
    Actor, Connection, FirstRequests, KeyedJob, Lane, RequestColumns, Statement, Store, StoreError, StoredCoordinated,
    audit::{Change, SettingsBefore},
    connection::{Param, Params},
    rows::{self, FromRow},
    transaction::{Transaction, retry_while_locked_in_side_lane},
};

#[derive(Debug, Default)]
pub struct SchedulePage {
    /// Schedules without their payloads, ordered by name.
    pub schedules: Vec<Schedule>,
    /// Whether more schedules follow.
    pub more: bool,
}

/// Numbers of schedules, and the time of the count.
#[derive(Clone, Copy, Debug)]
pub struct ScheduleCount {
    /// Number of all schedules.
    pub all: i64,
    /// Number of schedules that the principal has created.
    pub own: i64,
    /// Database time in µs since 1970.
    pub now: i64,
}

impl Store {
    pub async fn get_schedule(&self, name: &str) -> Result<Option<Schedule>, StoreError> {
        self.general().await?.find(Statement::GetSchedule, &[&name]).await
    }

    /// Returns schedules after the name `after`, up to a number of schedules and of bytes.
    pub async fn list_schedules(&self, after: &str, at_most: i32, bytes: i64) -> Result<SchedulePage, StoreError> {
        let rows = self.read(Statement::ListSchedules, &[&after, &at_most, &bytes]).await?;
        let in_page = rows.first().map_or(0, |row| row.get::<_, i64>("page_rows"));
        let more = rows.len() >= at_most as usize || (rows.len() as i64) < in_page;
        Ok(SchedulePage { schedules: rows::all(&rows), more })
    }

    /// Deletes a schedule. False if it did not exist.
    pub async fn delete_schedule(&self, name: &str, task_type: &str, by: &Actor) -> Result<bool, StoreError> {
        let delete = |store: Self| async move {
            let mut transaction = store.begin().await?;
            let rows = transaction.query(Statement::DeleteSchedule, &[&name, &task_type]).await?;
            if let Some(row) = rows.first() {
                transaction.record(by, &Change::of_name(name, row.get("task_type"))).await?;
            }
            transaction.commit().await?;
            Ok(!rows.is_empty())
        };
        retry_while_locked_in_side_lane(self, delete).await
    }

    /// Counts all schedules, and the schedules of this principal.
    pub async fn count_schedules(&self, by: &str) -> Result<ScheduleCount, StoreError> {
        let (all, own, now) = self.general().await?.one(Statement::CountSchedules, &[&by]).await?;
        Ok(ScheduleCount { all, own, now: us(now) })
    }

    /// Creates a schedule. `None` if a schedule with this name exists.
    pub async fn create_schedule(&self, schedule: &Schedule, by: &Actor) -> Result<Option<Schedule>, StoreError> {
        let create = |store: Self| async move {
            let mut transaction = store.begin().await?;
            let creator = by.name();
            let created = write(&mut transaction, Statement::CreateSchedule, schedule, &[&creator]).await?;
            if created.is_some() {
                transaction.record(by, &change(schedule)).await?;
            }
            transaction.commit().await?;
            Ok(created)
        };
        retry_while_locked_in_side_lane(self, create).await
    }

    /// Returns schedules that fire again only when the jobs that they have enqueued are finished, with the ids of these
    /// jobs.
    pub async fn watched_schedules(&self) -> Result<Vec<(String, Vec<i64>)>, StoreError> {
        self.general().await?.list(Statement::WatchedSchedules, &[]).await
    }

    /// Returns the given jobs that are ready, leased, scheduled or waiting. Dead jobs count as finished.
    pub async fn unfinished(&self, ids: &[i64]) -> Result<HashSet<i64>, StoreError> {
        self.hot().await?.unfinished(ids).await
    }

    /// Begins a transaction, and locks the schedule of this name. Also returns the database time in µs since 1970.
    /// Retries until the call timeout while the schedule is locked, because brokers hold the lock only briefly.
    pub async fn lock_schedule(
        &self,
        name: &str,
    ) -> Result<(ScheduleTransaction<'_>, Option<(Schedule, i64)>), StoreError> {
        let until = Instant::now() + self.timeout;
        let mut holders = None;
        loop {
            let lock = async {
                let mut transaction = self.schedule_transaction().await?;
                let found = transaction.lock(name).await?;
                let before = SettingsBefore::read(&mut transaction.transaction, SettingsBefore::SCHEDULE, name).await?;
                transaction.before = Some(before);
                Ok((transaction, found))
            };
            let seen = async |holders: &mut Option<String>| {
                *holders = Some(self.until_holders_found(Lane::Operate).await);
                std::future::pending().await
            };
            // The search for lock holders runs beside the lock request, so it does not delay a free lock.
            let result = tokio::select! {
                result = lock => result,
                never = seen(&mut holders) => never,
            };
            match result {
                Err(StoreError::Locked(_)) if Instant::now() < until => {}
                Err(StoreError::Locked(cause)) => return Err(StoreError::Locked(holders.map_or(cause, Into::into))),
                other => return other,
            }
        }
    }

    /// Begins a transaction on schedules.
    pub async fn schedule_transaction(&self) -> Result<ScheduleTransaction<'_>, StoreError> {
        Ok(ScheduleTransaction { transaction: self.begin().await?, before: None })
    }
}

/// A transaction that locks schedules. A drop without commit closes the connection, so Postgres rolls back.
pub struct ScheduleTransaction<'a> {
    transaction: Transaction<'a>,
    /// The schedule before the change, if it was locked by its name.
    before: Option<SettingsBefore>,
}

impl ScheduleTransaction<'_> {
    /// Locks the schedule of this name. Also returns the database time in µs since 1970.
    pub async fn lock(&mut self, name: &str) -> Result<Option<(Schedule, i64)>, StoreError> {
        Ok(locked(&self.transaction.query(Statement::LockSchedule, &[&name]).await?).pop())
    }

    /// Locks and returns due schedules, except those in `but`, which lists names and times of the last update. Skips
    /// schedules that another transaction has locked.
    pub async fn lock_due(
        &mut self,
        at_most: i32,
        (but, updated): (&[String], &[SystemTime]),
    ) -> Result<Vec<(Schedule, i64)>, StoreError> {
        let rows = self.transaction.query(Statement::LockDueSchedules, &[&at_most, &but, &updated]).await?;
        Ok(locked(&rows))
    }

    /// Locks the given schedules that wait until their enqueued jobs are finished, except the schedules in `but`, as for
    /// `lock_due`. Skips schedules that another transaction has locked.
    pub async fn lock_watching(
        &mut self,
        names: &[&str],
        at_most: i32,
        (but, updated): (&[String], &[SystemTime]),
    ) -> Result<Vec<(Schedule, i64)>, StoreError> {
        let rows = self.transaction.query(Statement::LockSchedules, &[&names, &at_most, &but, &updated]).await?;
        Ok(locked(&rows))
    }

    /// Returns the given jobs that are ready, leased, scheduled or waiting. Must run after the schedules are locked, so
    /// that the snapshot of this query includes the jobs that the previous lock holder has enqueued.
    pub async fn unfinished(&mut self, ids: &[i64]) -> Result<HashSet<i64>, StoreError> {
        self.transaction.unfinished(ids).await
    }

    /// Returns the finish times of these jobs in µs since 1970. Omits jobs without a known finish time.
    pub async fn finish_times(&mut self, ids: &[i64]) -> Result<HashMap<i64, i64>, StoreError> {
        let rows = self.transaction.query(Statement::FinishTimes, &[&ids]).await?;
        Ok(rows.iter().map(|row| (row.get(0), us(row.get(1)))).collect())
    }

    /// Enqueues the jobs that a schedule fires.
    pub async fn enqueue(
        &mut self,
        jobs: &[KeyedJob<'_>],
        requests: &RequestColumns<'_>,
    ) -> Result<StoredCoordinated, StoreError> {
        self.transaction.enqueue_coordinated(jobs, requests).await
    }

    /// Returns the first request with each of these request keys.
    pub async fn repeated(&mut self, keys: &[&str]) -> Result<FirstRequests, StoreError> {
        self.transaction.repeated_requests(keys).await
    }

    /// Stores the state of a locked schedule.
    pub async fn save(&mut self, schedule: &Schedule) -> Result<Schedule, StoreError> {
        let row = StateRow::new(schedule);
        let mut params: Vec<Param<'_>> = vec![&schedule.spec.name];
        params.extend(row.params());
        self.transaction.one(Statement::SaveSchedule, &params).await
    }

    /// Stores the definition and the state of a locked schedule.
    pub async fn redefine(&mut self, schedule: &Schedule) -> Result<Schedule, StoreError> {
        let updated = write(&mut self.transaction, Statement::UpdateSchedule, schedule, &[]).await?;
        updated.ok_or_else(|| StoreError::Refused("bug: a schedule was deleted while it was locked".into()))
    }

    /// Audits a change of a schedule by this transaction.
    pub async fn record(&mut self, schedule: &Schedule, by: &Actor) -> Result<(), StoreError> {
        let change = Change { before: self.before.take(), ..change(schedule) };
        self.transaction.record(by, &change).await
    }

    /// Audits a run of a schedule, which changes none of its settings.
    pub async fn record_run(&mut self, schedule: &Schedule, by: &Actor) -> Result<(), StoreError> {
        self.transaction.record(by, &change(schedule)).await
    }

    pub async fn commit(self) -> Result<(), StoreError> {
        self.transaction.commit().await
    }

    pub async fn roll_back(self) {
        self.transaction.roll_back().await;
    }
}

fn change(schedule: &Schedule) -> Change<'_> {
    Change::of_name(&schedule.spec.name, &schedule.spec.template.task_type)
}

impl Connection {
    async fn unfinished(&mut self, ids: &[i64]) -> Result<HashSet<i64>, StoreError> {
        Ok(rows::all(&self.query(Statement::Unfinished, &[&ids]).await?))
    }
}

/// Columns of a schedule's state.
struct StateRow<'a> {
    state: &'a ScheduleState,
    anchor: SystemTime,
    next: Option<SystemTime>,
    next_at: Option<SystemTime>,
    zone_offset: Option<i32>,
    held: Option<SystemTime>,
    last_planned: Option<SystemTime>,
    last_fired: Option<SystemTime>,
}

impl<'a> StateRow<'a> {
    fn new(schedule: &'a Schedule) -> Self {
        let state = &schedule.state;
        Self {
            state,
            anchor: time(state.anchor),
            next: state.next.map(time),
            next_at: schedule.next_at().map(time),
            zone_offset: schedule.zone_offset(),
            held: state.held.map(time),
            last_planned: state.last_planned.map(time),
            last_fired: state.last_fired.map(time),
        }
    }

    fn params(&self) -> [Param<'_>; 14] {
        let state = self.state;
        [
            &state.paused,
            &self.anchor,
            &self.next,
            &self.next_at,
            &self.held,
            &state.watching,
            &state.job_ids,
            &self.last_planned,
            &self.last_fired,
            &state.last_job_id,
            &state.fired,
            &state.skipped,
            &state.last_error,
            &self.zone_offset,
        ]
    }
}

/// Stores the definition and the state of a schedule. `more` are the last parameters of the statement.
async fn write(
    connection: &mut Connection,
    statement: Statement,
    schedule: &Schedule,
    more: Params<'_>,
) -> Result<Option<Schedule>, StoreError> {
    let spec = &schedule.spec;
    let (period_ms, cron, time_zone) = match &spec.plan {
        PlanText::Period(ms) => (Some(*ms), None, None),
        PlanText::Cron { expression, time_zone } => (None, Some(expression), Some(time_zone)),
    };
    let (message, payload) = (&spec.template.message, &spec.template.payload[..]);
    let (drift, overlap, missed) = (spec.drift.name(), spec.overlap.name(), spec.missed.name());
    let (limit, start, end) = (spec.missed.limit() as i32, spec.start.map(time), spec.end.map(time));
    let state = StateRow::new(schedule);
    let mut params: Vec<Param<'_>> = vec![
        &spec.name,
        message,
        &payload,
        &spec.template.task_type,
        &period_ms,
        &cron,
        &time_zone,
        &drift,
        &overlap,
        &missed,
        &limit,
        &start,
        &end,
        &spec.jitter_ms,
    ];
    params.extend(state.params());
    params.extend(more);
    connection.find(statement, &params).await
}

/// Returns locked schedules, each with the database time in µs since 1970.
fn locked(rows: &[Row]) -> Vec<(Schedule, i64)> {
    rows.iter().map(|row| (Schedule::from_row(row), us(row.get("now")))).collect()
}

impl FromRow for Schedule {
    fn from_row(row: &Row) -> Self {
        let time = |column| row.get::<_, Option<SystemTime>>(column).map(us);
        let plan = match row.get::<_, Option<i64>>("period_ms") {
            Some(ms) => PlanText::Period(ms),
            None => PlanText::Cron {
                expression: row.get::<_, Option<String>>("cron").unwrap_or_default(),
                time_zone: row.get::<_, Option<String>>("time_zone").unwrap_or_default(),
            },
        };
        let limit = row.get::<_, i32>("missed_limit").max(0) as u32;
        Schedule {
            spec: ScheduleSpec {
                name: row.get("name"),
                template: Template {
                    message: row.get("template"),
                    payload: Bytes::copy_from_slice(row.get("payload")),
                    task_type: row.get("task_type"),
                },
                plan,
                drift: Drift::parse(row.get("drift")),
                overlap: Overlap::parse(row.get("overlap")),
                missed: Missed::parse(row.get("missed"), limit),
                start: time("start_time"),
                end: time("end_time"),
                jitter_ms: row.get("jitter_ms"),
            },
            state: ScheduleState {
                paused: row.get("paused"),
                anchor: us(row.get("anchor")),
                unplanned: time("next_planned").is_none() && time("next_at").is_some(),
                next: time("next_planned"),
                zone_offset: time("next_planned").zip(row.get("zone_offset_s")),
                held: time("held"),
                watching: row.get("watching"),
                job_ids: row.get("job_ids"),
                last_planned: time("last_planned"),
                last_fired: time("last_fired"),
                last_job_id: row.get("last_job_id"),
                fired: row.get("fired"),
                skipped: row.get("skipped"),
                last_error: row.get("last_error"),
                not_before: None,
            },
            created: row.get("created"),
            updated: row.get("updated"),
        }
    }
}

/// Converts a time to µs since 1970.
fn us(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => after.as_micros() as i64,
        Err(before) => -(before.duration().as_micros() as i64),
    }
}

fn time(us: i64) -> SystemTime {
    let length = Duration::from_micros(us.unsigned_abs());
    if us < 0 { UNIX_EPOCH - length } else { UNIX_EPOCH + length }
}
