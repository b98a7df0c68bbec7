//! `howdah schedule show` and `list`: shows one schedule with its next ten times, or lists all schedules.

use howdah_client::proto::{Drift, MissedPolicy, OverlapPolicy, Schedule, schedule::Plan};
use howdah_core::logging::escaped;
use jiff::{Timestamp, tz::TimeZone};

use crate::commands::{
    context::Global,
    failure::Failure,
    output::{self, note},
    table::Table,
    text,
};

/// Values of --drift.
pub(super) const DRIFTS: [(&str, Drift); 2] = [("plan", Drift::Plan), ("end", Drift::End)];
/// Values of --overlap.
pub(super) const OVERLAPS: [(&str, OverlapPolicy); 3] =
    [("allow", OverlapPolicy::Allow), ("skip", OverlapPolicy::Skip), ("one-waiting", OverlapPolicy::OneWaiting)];
/// Values of --missed.
pub(super) const MISSED: [(&str, MissedPolicy); 3] =
    [("skip", MissedPolicy::Skip), ("one", MissedPolicy::One), ("all", MissedPolicy::All)];

/// Show a schedule: its definition, next ten times and counters
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah schedule show nightly
  howdah schedule show nightly --json | jq -r '.next_times[]'")]
pub(in crate::commands) struct ShowArgs {
    /// Name of the schedule
    #[arg(value_name = "NAME")]
    name: String,
    /// Print one JSON object: the message Schedule
    #[arg(long)]
    json: bool,
}

/// List schedules by name, with their next times
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah schedule list
  howdah schedule list --json | jq -r 'select(.paused) | .name'")]
pub(in crate::commands) struct ListArgs {
    /// Print one JSON object per schedule: the message Schedule, without its payload
    #[arg(long)]
    json: bool,
}

pub(super) fn show(args: &ShowArgs, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| print(&existing(&args.name, client.get_schedule(&args.name).await?)?, args.json))
}

pub(super) fn list(args: &ListArgs, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| {
        let schedules = client.list_schedules().await?;
        if schedules.is_empty() && !args.json {
            note("no schedules yet: create one with `howdah schedule create NAME TYPE --every 5m`");
            return Ok(());
        }
        output::list(args.json, "Schedule", &schedules, || table(&schedules, Timestamp::now()))
    })
}

/// Returns the schedule, or the error that it does not exist.
pub(super) fn existing(name: &str, found: Option<Schedule>) -> Result<Schedule, Failure> {
    found.ok_or_else(|| Failure::failed(format!("schedule {name:?} does not exist")))
}

/// Prints a schedule as stored by the broker.
pub(super) fn print(schedule: &Schedule, json: bool) -> Result<(), Failure> {
    output::show(json, "Schedule", schedule, || describe(schedule, Timestamp::now()))
}

fn table(schedules: &[Schedule], now: Timestamp) -> Table<'_, Schedule> {
    let relative =
        |time: Option<&_>| text::timestamp(time).map_or_else(|| "-".into(), |time| text::relative(time, now));
    let next = |schedule: &Schedule| {
        if schedule.paused { "paused".into() } else { relative(schedule.next_times.first()) }
    };
    Table::new(schedules)
        .store(|schedule| &schedule.store)
        .left("NAME", |schedule| &schedule.name)
        .left("TYPE", |schedule| schedule.template.as_ref().map_or("", |job| &job.task_type))
        .left("PLAN", plan_words)
        .left("NEXT", next)
        .left("LAST", |schedule| relative(schedule.last_fire_time.as_ref()))
        .right("JOBS", |schedule| schedule.fired)
        .left("ERROR", |schedule| text::summary(&schedule.last_error))
}

fn describe(schedule: &Schedule, now: Timestamp) -> String {
    let job = schedule.template.clone().unwrap_or_default();
    let paused = if schedule.paused { ": paused" } else { "" };
    let mut lines = vec![format!("schedule {}{paused}", escaped(&schedule.name))];
    let mut field = |name: &str, value: String| lines.push(format!("  {name:<9} {value}"));
    field("job", format!("{} {}", escaped(&job.task_type), text::payload_summary(&job.payload)).trim_end().to_owned());
    field("plan", plan_words(schedule));
    field("overlap", word(&OVERLAPS, schedule.overlap()).unwrap_or("unknown").to_owned());
    field("missed", missed_words(schedule));
    let zone = zone(schedule);
    let shown = |time: Timestamp| {
        let there = match &zone {
            Some(zone) => time.to_zoned(zone.clone()).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string(),
            None => text::time(time),
        };
        format!("{there}  ({})", text::relative(time, now))
    };
    let times = [
        ("starts", &schedule.start_time),
        ("ends", &schedule.end_time),
        ("waiting", &schedule.waiting_time),
        ("planned", &schedule.last_planned_time),
        ("fired", &schedule.last_fire_time),
    ];
    for (name, time) in times {
        if let Some(time) = text::timestamp(time.as_ref()) {
            field(name, shown(time));
        }
    }
    if schedule.last_job_id != 0 {
        field("last job", schedule.last_job_id.to_string());
    }
    field("jobs", format!("{} enqueued, {} planned times skipped", schedule.fired, schedule.skipped));
    if !schedule.last_error.is_empty() {
        field("error", text::summary(&schedule.last_error));
    }
    let mut name = "next";
    for time in schedule.next_times.iter().filter_map(|time| text::timestamp(Some(time))) {
        field(name, shown(time));
        name = "";
    }
    lines.join("\n")
}

/// Formats a plan as `every 5m` or `0 3 * * *  Europe/Berlin`, with jitter and drift if set.
fn plan_words(schedule: &Schedule) -> String {
    let length = |time| text::duration(Some(time)).map_or_else(|| "?".into(), howdah_core::config::duration_text);
    let mut words = match &schedule.plan {
        Some(Plan::Period(period)) => format!("every {}", length(period)),
        Some(Plan::Cron(cron)) => format!("{}  {}", escaped(&cron.expression), escaped(&cron.time_zone)),
        None => "unknown".into(),
    };
    if word(&DRIFTS, schedule.drift()) == Some("end") {
        words.push_str(" from the end of the last job");
    }
    if let Some(jitter) = &schedule.jitter {
        words = format!("{words}, delayed at random by up to {}", length(jitter));
    }
    words
}

/// Returns the flag value for an enum value of the protocol; `None` for a newer value that this program does not know.
fn word<T: Copy + PartialEq>(words: &[(&'static str, T)], value: T) -> Option<&'static str> {
    words.iter().find(|(_, known)| *known == value).map(|(word, _)| *word)
}

fn missed_words(schedule: &Schedule) -> String {
    let policy = word(&MISSED, schedule.missed()).unwrap_or("unknown");
    if schedule.missed_limit == 0 { policy.into() } else { format!("{policy}, {} at most", schedule.missed_limit) }
}

/// Returns the time zone of a cron plan, in which the times of the schedule are shown.
fn zone(schedule: &Schedule) -> Option<TimeZone> {
    match &schedule.plan {
        Some(Plan::Cron(cron)) => TimeZone::get(&cron.time_zone).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use howdah_client::proto::{Cron, NewJob};

    use super::*;

    #[test]
    fn a_schedule_is_described_with_its_next_times_in_its_own_time_zone() {
        let at = |seconds| prost_types::Timestamp { seconds, nanos: 0 };
        let schedule = Schedule {
            name: "nightly".into(),
            template: Some(NewJob { task_type: "report".into(), payload: "x".into(), ..NewJob::default() }),
            plan: Some(Plan::Cron(Cron { expression: "30 2 * * *".into(), time_zone: "Europe/Berlin".into() })),
            overlap: 2,
            missed: 3,
            missed_limit: 5,
            jitter: Some(prost_types::Duration { seconds: 60, nanos: 0 }),
            next_times: vec![at(86_400), at(172_800)],
            fired: 7,
            ..Schedule::default()
        };
        let expected = "\
schedule nightly
  job       report x
  plan      30 2 * * *  Europe/Berlin, delayed at random by up to 1m
  overlap   skip
  missed    all, 5 at most
  jobs      7 enqueued, 0 planned times skipped
  next      1970-01-02T01:00:00+01:00  (in 1d)
            1970-01-03T01:00:00+01:00  (in 2d)";
        assert_eq!(describe(&schedule, Timestamp::UNIX_EPOCH), expected);
    }
}
