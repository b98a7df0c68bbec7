//! Converts a task of `pg_task` to a job or schedule, or gives the reason why that is impossible.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use howdah_client::{
    NewJob, NewSchedule, Plan,
    proto::{Drift, OverlapPolicy},
};
use howdah_core::job::Limits;
use tokio_postgres::Row;

/// Row of a `pg_task` table.
#[derive(Clone, Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each flag is a column of the table")]
pub(super) struct Task {
    pub(super) id: i64,
    pub(super) max: i64,
    /// Input of the task, which becomes the payload. `None` if it exceeds 4 MiB.
    input: Option<String>,
    /// Planned time in microseconds since 1970; `None` if the task is never run.
    plan: Option<i64>,
    /// Milliseconds after `plan` during which the task may start; `None` for no limit.
    active: Option<i64>,
    is_too_long: bool,
    pub(super) is_late: bool,
    repeat: i64,
    repeats_by_months: bool,
    timeout: i64,
    drift: bool,
    /// Format of the result, as headers of the SQL worker.
    look: Vec<(&'static str, String)>,
    group: String,
    remote: Option<String>,
    data: Option<String>,
    parent: Option<i64>,
}

/// Result of converting a task.
#[derive(Debug)]
pub(super) enum Becomes {
    Job(Box<NewJob>),
    Schedule(Box<NewSchedule>),
    /// The task cannot be converted, for this reason.
    Nothing(String),
}

/// Settings of an import.
#[derive(Clone, Debug)]
pub struct Target {
    /// Task type of the jobs.
    pub task_type: String,
    /// Database names of the SQL worker, by values of the column `remote`.
    pub remotes: BTreeMap<String, String>,
    /// Prefix of schedule names.
    pub schedule_prefix: String,
}

impl Task {
    pub(super) fn read(row: &Row) -> Result<Self, tokio_postgres::Error> {
        let text = |name: &str| row.try_get::<_, Option<String>>(name);
        let mut look = Vec::new();
        if !row.try_get("header")? {
            look.push(("sql-header", "none".to_owned()));
        }
        if !row.try_get("string")? {
            look.push(("sql-quote-all", "true".to_owned()));
        }
        let columns = [("delimiter", "sql-delimiter", "\t"), ("escape", "sql-escape", ""), ("quote", "sql-quote", "")];
        for (column, header, default) in columns.into_iter().chain([("null", "sql-null", "\\N")]) {
            if let Some(value) = text(column)?.filter(|value| value != default) {
                look.push((header, value));
            }
        }
        Ok(Self {
            id: row.try_get("id")?,
            max: row.try_get("max")?,
            input: text("input")?,
            plan: row.try_get("plan_us")?,
            active: row.try_get("active_ms")?,
            is_too_long: row.try_get("is_too_long")?,
            is_late: row.try_get("is_late")?,
            repeat: row.try_get("repeat_ms")?,
            repeats_by_months: row.try_get("repeats_by_months")?,
            timeout: row.try_get("timeout_ms")?,
            drift: row.try_get("drift")?,
            look,
            group: text("group")?.unwrap_or_default(),
            remote: text("remote")?,
            data: text("data")?,
            parent: row.try_get("parent")?,
        })
    }

    /// Converts a task. The same row of the same `table` always gives the same result.
    pub(super) fn becomes(&self, target: &Target, table: &str) -> Becomes {
        self.try_become(target, table).unwrap_or_else(Becomes::Nothing)
    }

    fn try_become(&self, target: &Target, table: &str) -> Result<Becomes, String> {
        if self.is_too_long {
            return Err("column active is longer than ten years; use infinity, or at most ten years".into());
        }
        let plan = self.plan.ok_or("column plan is infinite, so the task never runs")?;
        let plan =
            SystemTime::UNIX_EPOCH + Duration::from_micros(plan.try_into().map_err(|_| "column plan is before 1970")?);
        if self.is_late && self.repeat == 0 {
            return Err("plan + active has passed, so pg_task would not run it any more".into());
        }
        let job = self.job(target, table)?;
        if self.repeat > 0 {
            return self.schedule(target, job, plan).map(|schedule| Becomes::Schedule(Box::new(schedule)));
        }
        let job = job.run_at(plan);
        let job = match self.active_for() {
            Some(active) => job.expire_at(plan + active),
            None => job,
        };
        Ok(Becomes::Job(Box::new(job)))
    }

    fn active_for(&self) -> Option<Duration> {
        self.active.and_then(|active| u64::try_from(active).ok()).map(Duration::from_millis)
    }

    /// Returns how many tasks of the group may run at once when this task starts; 0 without a limit. `max` of `pg_task` does
    /// not count the task itself, and a negative `max` is a pause.
    fn limit_max(&self) -> u32 {
        u32::try_from(self.max.saturating_add(1)).ok().filter(|most| *most <= Limits::LIMIT_MAX).unwrap_or_default()
    }

    fn job(&self, target: &Target, table: &str) -> Result<NewJob, String> {
        let input = self.input.clone().ok_or("its input has more than 4 MiB")?;
        let mut job = NewJob::new(&target.task_type)
            .payload(input)
            // `pg_task` runs tasks with a larger max first, and Howdah runs jobs with a lower priority number first.
            .priority(self.max.saturating_neg().clamp(-1000, 1000) as i32)
            .limit_key(&self.group)
            .limit_max(self.limit_max())
            // This header distinguishes equal tasks of two tables: creating the second schedule fails instead of returning the
            // first one.
            .header("pg-task-table", table)
            .header("pg-task-id", self.id.to_string())
            // `pg_task` runs each task once, except tasks of a crashed worker, so the SQL worker must not retry a failed job.
            .header("sql-retry", "false");
        if let Some(remote) = self.remote.as_deref().filter(|remote| !remote.is_empty()) {
            let name = target
                .remotes
                .get(remote)
                .ok_or("it runs in another database (column remote); name that database with --remote 'CONN=NAME'")?;
            job = job.header("sql-database", name);
        }
        if self.timeout > 0 {
            job = job.timeout(Duration::from_millis(self.timeout as u64));
        }
        if let Some(parent) = self.parent {
            job = job.header("pg-task-parent", parent.to_string());
        }
        if let Some(data) = &self.data {
            job = job.header("pg-task-data", data);
        }
        Ok(self.look.iter().fold(job, |job, (name, value)| job.header(*name, value)))
    }

    fn schedule(&self, target: &Target, job: NewJob, plan: SystemTime) -> Result<NewSchedule, String> {
        if self.repeats_by_months {
            return Err("it repeats by months, which differ in length; create a schedule with --cron".into());
        }
        if self.repeat < 1000 {
            return Err("it repeats in less than a second, the shortest period of a schedule".into());
        }
        let job = match self.active_for() {
            Some(active) => job.expire_after(active),
            None => job,
        };
        let name = format!("{}{}", target.schedule_prefix, self.id);
        let every = Plan::every(Duration::from_millis(self.repeat as u64));
        let schedule = NewSchedule::new(name, job, every).start(plan);
        // `pg_task` plans the next run of a task after the task ends, so runs never overlap.
        if self.drift {
            return Ok(schedule.drift(Drift::End));
        }
        Ok(schedule.drift(Drift::Plan).overlap(OverlapPolicy::Skip))
    }
}

#[cfg(test)]
mod tests {
    use howdah_client::proto::new_job::{Expiry, Start};

    use super::*;

    fn target() -> Target {
        let remotes = [("host=far".to_owned(), "far".to_owned())].into();
        Target { task_type: "sql".into(), remotes, schedule_prefix: "pg_task.".into() }
    }

    fn task() -> Task {
        Task { id: 7, input: Some("SELECT 1".into()), plan: Some(1_000_000), group: "group".into(), ..Task::default() }
    }

    fn reason(task: &Task) -> String {
        match task.becomes(&target(), "t") {
            Becomes::Nothing(reason) => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_column_gets_into_the_job() {
        let look = vec![("sql-header", "none".to_owned())];
        let task = Task {
            max: 3,
            active: Some(60_000),
            timeout: 5000,
            look,
            remote: Some("host=far".into()),
            data: Some("mine".into()),
            parent: Some(2),
            ..task()
        };
        let Becomes::Job(job) = task.becomes(&target(), "t") else { panic!("no job") };
        let job = job.into_proto();
        assert_eq!((&job.payload[..], job.priority), (&b"SELECT 1"[..], -3));
        assert_eq!((&*job.limit_key, job.limit_max), ("group", 4));
        assert_eq!(job.start, Some(Start::RunAt(prost_types::Timestamp { seconds: 1, nanos: 0 })));
        assert_eq!(job.expiry, Some(Expiry::ExpireAt(prost_types::Timestamp { seconds: 61, nanos: 0 })));
        assert_eq!(job.timeout, Some(prost_types::Duration { seconds: 5, nanos: 0 }));
        let headers = [
            ("sql-database", "far"),
            ("sql-header", "none"),
            ("sql-retry", "false"),
            ("pg-task-table", "t"),
            ("pg-task-id", "7"),
            ("pg-task-parent", "2"),
            ("pg-task-data", "mine"),
        ];
        assert_eq!(job.headers.len(), headers.len());
        for (name, value) in headers {
            assert_eq!(job.headers[name], value);
        }
    }

    #[test]
    fn a_repeating_task_becomes_a_schedule_that_counts_from_its_plan_or_its_end() {
        let drifting = Task { repeat: 300_000, drift: true, is_late: true, ..task() };
        let Becomes::Schedule(schedule) = drifting.becomes(&target(), "t") else { panic!("no schedule") };
        let schedule = schedule.into_proto();
        assert_eq!((schedule.name.as_str(), schedule.drift()), ("pg_task.7", Drift::End));
        let strict = Task { repeat: 300_000, ..task() };
        let Becomes::Schedule(schedule) = strict.becomes(&target(), "t") else { panic!("no schedule") };
        assert_eq!(schedule.into_proto().overlap(), OverlapPolicy::Skip);
    }

    #[test]
    fn a_task_that_cannot_be_imported_has_a_reason_without_passwords() {
        assert!(reason(&Task { is_too_long: true, ..task() }).contains("active"));
        assert!(reason(&Task { plan: None, ..task() }).contains("infinite"));
        assert!(reason(&Task { input: None, ..task() }).contains("4 MiB"));
        assert!(reason(&Task { is_late: true, ..task() }).contains("plan"));
        assert!(reason(&Task { repeat: 500, ..task() }).contains("second"));
        assert!(reason(&Task { repeat: 1 << 40, repeats_by_months: true, ..task() }).contains("--cron"));
        let remote = reason(&Task { remote: Some("password=s3cret".into()), ..task() });
        assert!(remote.contains("--remote") && !remote.contains("s3cret"), "{remote}");
    }
}
