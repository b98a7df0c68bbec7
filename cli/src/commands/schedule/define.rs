//! `howdah schedule create` and `update`: defines a schedule.

use std::{path::PathBuf, time::Duration};

use howdah_client::{
    NewSchedule,
    proto::{self, Schedule, schedule::Plan},
};
use jiff::Timestamp;

use super::show::{DRIFTS, MISSED, OVERLAPS, existing, print};
use crate::commands::{context::Global, failure::Failure, input, job_flags::JobFlags, values};

/// Create a schedule
///
/// At each planned time exactly one job is enqueued, however many brokers run. The job has the headers howdah-planned-time and
/// howdah-schedule (the name). Creating an identical schedule again is not an error. With --every the first job is enqueued at
/// once, unless --start-time says otherwise.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah schedule create tidy cache.tidy --every 5m --overlap skip   # the first job now
  howdah schedule create sync mail.sync --every 1h --start-time 1h   # the first job in an hour
  howdah schedule create nightly report.make daily --cron '30 2 * * *' --time-zone Europe/Berlin
  howdah schedule create poll mail.poll --every 30s --drift end      # 30 s after the last job ended
  howdah schedule create sums bill.sum --cron '@monthly' --missed all --missed-limit 12")]
pub(in crate::commands) struct CreateArgs {
    /// Name of the schedule: letters, digits and . _ : / -
    #[arg(value_name = "NAME")]
    name: String,
    /// Task type of the job
    #[arg(value_name = "TYPE")]
    task_type: String,
    /// Payload of the job; - reads stdin [default: empty]
    #[arg(value_name = "PAYLOAD", conflicts_with = "file")]
    payload: Option<String>,
    /// Read the payload from a file
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    when: When,
    /// Create the schedule paused
    #[arg(long)]
    paused: bool,
    #[command(flatten)]
    options: JobFlags,
    /// Print one JSON object: the message Schedule
    #[arg(long)]
    json: bool,
}

/// Change a schedule
///
/// Only the given flags change. If TYPE is given, the payload and options given here replace the whole job. A changed --every
/// counts from the last planned time. If that time is more than one period ago, a job is due at once.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah schedule update nightly --cron '0 4 * * *'
  howdah schedule update tidy cache.tidy all --priority 5 --timeout 1m
  howdah schedule update tidy --end-time none")]
pub(in crate::commands) struct UpdateArgs {
    /// Name of the schedule
    #[arg(value_name = "NAME")]
    name: String,
    /// Task type of the job; replaces the whole job
    #[arg(value_name = "TYPE")]
    task_type: Option<String>,
    /// Payload of the job; - reads stdin [default: empty]
    #[arg(value_name = "PAYLOAD", conflicts_with = "file")]
    payload: Option<String>,
    /// Read the payload from a file
    #[arg(long, value_name = "FILE", requires = "task_type")]
    file: Option<PathBuf>,
    #[command(flatten)]
    when: When,
    #[command(flatten)]
    options: JobFlags,
    /// Print one JSON object: the message Schedule
    #[arg(long)]
    json: bool,
}

/// Plan of a schedule.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Plan")]
struct When {
    /// Enqueue a job once per period, such as 5m; at least 1s
    #[arg(long, value_name = "DURATION", value_parser = values::duration, conflicts_with = "cron")]
    every: Option<Duration>,
    /// Enqueue jobs by a cron expression: minute hour day month weekday, optionally with seconds first; or @daily and the like
    #[arg(long, value_name = "EXPRESSION")]
    cron: Option<String>,
    /// Time zone of --cron, such as Europe/Berlin [default: UTC]
    #[arg(long, value_name = "NAME", conflicts_with = "every")]
    time_zone: Option<String>,
    /// Start of each --every period: the planned time (plan), or the end of the last job (end) [default: plan]
    #[arg(long, value_name = "FROM", value_parser = ["plan", "end"])]
    drift: Option<String>,
    /// Action while an earlier job is unfinished: allow (enqueue anyway), skip, or one-waiting [default: allow]
    #[arg(long, value_name = "POLICY", value_parser = ["allow", "skip", "one-waiting"])]
    overlap: Option<String>,
    /// Catch up on missed times: skip (none), one (the newest), all [default: one]
    #[arg(long, value_name = "POLICY", value_parser = ["skip", "one", "all"])]
    missed: Option<String>,
    /// With --missed all: catch up on at most this many, the newest, 1 to 1000 [default: 100]
    #[arg(long, value_name = "N")]
    missed_limit: Option<u32>,
    /// First planned time of --every, earliest one of --cron: 2027-01-01T03:00:00Z, or 1h for an hour from now; none: now
    /// [default: none]
    #[arg(long, value_name = "TIME", value_parser = time_or_none)]
    start_time: Option<TimeOrNone>,
    /// Plan no times from this time on, such as 2027-01-01T03:00:00Z, or 7d for a week from now; none: no end [default: none]
    #[arg(long, value_name = "TIME", value_parser = time_or_none)]
    end_time: Option<TimeOrNone>,
    /// Delay each job by a random time up to this, such as 30s
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    jitter: Option<Duration>,
}

/// Value of `--start-time` and `--end-time`: a time, a duration from now, or the word `none`.
#[derive(Clone, Copy, Debug)]
struct TimeOrNone(Option<Timestamp>);

fn time_or_none(given: &str) -> Result<TimeOrNone, String> {
    if given == "none" {
        return Ok(TimeOrNone(None));
    }
    values::time_or_in(given).map(|time| TimeOrNone(Some(time)))
}

pub(super) fn create(args: CreateArgs, global: &Global) -> Result<(), Failure> {
    if args.when.every.is_none() && args.when.cron.is_none() {
        return Err(Failure::usage("no plan given: use --every DURATION or --cron EXPRESSION"));
    }
    let job = args.options.job(&args.task_type)?;
    global.with_client(async |client| {
        let payload = input::payload(args.file.as_deref(), args.payload).await?;
        let job = job.payload(payload).into_proto();
        let schedule = Schedule { name: args.name, template: Some(job), paused: args.paused, ..Schedule::default() };
        let schedule = args.when.changed(schedule)?;
        print(&client.create_schedule(NewSchedule::from(schedule)).await?, args.json)
    })
}

pub(super) fn update(args: UpdateArgs, global: &Global) -> Result<(), Failure> {
    // Job options without TYPE are an error, because they would have no effect.
    if args.task_type.is_none() && !args.options.is_empty() {
        return Err(Failure::usage("job options replace the whole job of the schedule: give TYPE and PAYLOAD, too"));
    }
    let job = args.task_type.as_ref().map(|task_type| args.options.job(task_type)).transpose()?;
    global.with_client(async |client| {
        let mut schedule = existing(&args.name, client.get_schedule(&args.name).await?)?;
        if let Some(job) = job {
            let payload = input::payload(args.file.as_deref(), args.payload).await?;
            schedule.template = Some(job.payload(payload).into_proto());
        }
        let schedule = args.when.changed(schedule)?;
        print(&client.update_schedule(NewSchedule::from(schedule), false).await?, args.json)
    })
}

impl When {
    /// Applies the given flags to a schedule.
    fn changed(&self, mut schedule: Schedule) -> Result<Schedule, Failure> {
        if let Some(period) = self.every {
            schedule.plan = Some(Plan::Period(values::wire_duration("--every", period)?));
        }
        if self.cron.is_some() || self.time_zone.is_some() {
            let mut cron = match schedule.plan.take() {
                Some(Plan::Cron(cron)) => cron,
                _ => proto::Cron { time_zone: "UTC".into(), ..proto::Cron::default() },
            };
            cron.expression = self.cron.clone().unwrap_or(cron.expression);
            cron.time_zone = self.time_zone.clone().unwrap_or(cron.time_zone);
            schedule.plan = Some(Plan::Cron(cron));
        }
        if let Some(word) = &self.drift {
            schedule.set_drift(named(&DRIFTS, word));
        }
        if let Some(word) = &self.overlap {
            schedule.set_overlap(named(&OVERLAPS, word));
        }
        if let Some(word) = &self.missed {
            schedule.set_missed(named(&MISSED, word));
            schedule.missed_limit = 0;
        }
        schedule.missed_limit = self.missed_limit.unwrap_or(schedule.missed_limit);
        let time = |given: TimeOrNone| given.0.map(values::wire);
        schedule.start_time = self.start_time.map_or(schedule.start_time, time);
        schedule.end_time = self.end_time.map_or(schedule.end_time, time);
        if let Some(jitter) = self.jitter {
            schedule.jitter = Some(values::wire_duration("--jitter", jitter)?);
        }
        Ok(schedule)
    }
}

fn named<T: Copy + Default>(words: &[(&str, T)], word: &str) -> T {
    words.iter().find(|(name, _)| *name == word).map_or_else(T::default, |(_, value)| *value)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use howdah_client::proto::{Drift, MissedPolicy, OverlapPolicy};

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        args: UpdateArgs,
    }

    fn changed(flags: &[&str], before: Schedule) -> Schedule {
        let command = Command::try_parse_from(["update", "s"].iter().chain(flags)).unwrap();
        command.args.when.changed(before).unwrap()
    }

    #[test]
    fn fields_of_a_schedule_without_a_flag_stay_unchanged() {
        let flags = ["--cron", "0 3 * * *", "--time-zone", "Europe/Berlin", "--overlap", "skip", "--jitter", "30s"];
        let first = changed(&flags, Schedule::default());
        assert_eq!(first.overlap(), OverlapPolicy::Skip);
        let later = changed(&["--cron", "0 4 * * *", "--missed", "all", "--end-time", "2030-01-01T00:00:00Z"], first);
        let cron = proto::Cron { expression: "0 4 * * *".into(), time_zone: "Europe/Berlin".into() };
        assert_eq!(later.plan, Some(Plan::Cron(cron)));
        assert_eq!((later.overlap(), later.missed()), (OverlapPolicy::Skip, MissedPolicy::All));
        assert!(later.end_time.is_some() && later.jitter.is_some());
        let every = changed(&["--every", "5m", "--drift", "end", "--end-time", "none"], later);
        assert_eq!(every.plan, Some(Plan::Period(prost_types::Duration { seconds: 300, nanos: 0 })));
        assert_eq!((every.drift(), every.end_time), (Drift::End, None));
    }

    #[test]
    fn contradictions_are_refused() {
        let cases: [&[&str]; 5] = [
            &["--every", "5m", "--cron", "0 3 * * *"],
            &["--every", "5m", "--time-zone", "UTC"],
            &["--overlap", "often"],
            &["--start-time", "soon"],
            &["--file", "f"],
        ];
        for flags in cases {
            assert!(Command::try_parse_from(["update", "s"].iter().chain(flags)).is_err(), "{flags:?}");
        }
    }
}
