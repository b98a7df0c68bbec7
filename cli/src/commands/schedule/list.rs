//! `howdah schedule list`: lists all schedules.

use howdah_client::proto::Schedule;
use howdah_core::logging::escaped;
use jiff::Timestamp;

use super::show::plan_words;
use crate::commands::{
    context::Global,
    failure::Failure,
    output::{Output, note},
    table::{Align, Table},
    text,
};

/// List schedules by name, with their next times
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah schedule list
  howdah schedule list --json | jq -r 'select(.paused) | .name'")]
pub(in crate::commands) struct Args {
    /// Print one JSON object per schedule: the message Schedule, without its payload
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| {
        let schedules = client.list_schedules().await?;
        let mut output = Output::new();
        if args.json {
            output.messages("Schedule", &schedules)?;
        } else if schedules.is_empty() {
            note("no schedules yet: create one with `howdah schedule create NAME TYPE --every 5m`");
        } else {
            output.line(table(&schedules, Timestamp::now()))?;
        }
        output.flush()
    })
}

fn table(schedules: &[Schedule], now: Timestamp) -> Table<7> {
    let mut table = Table::new([
        ("NAME", Align::Left),
        ("TYPE", Align::Left),
        ("PLAN", Align::Left),
        ("NEXT", Align::Left),
        ("LAST", Align::Left),
        ("JOBS", Align::Right),
        ("ERROR", Align::Left),
    ]);
    for schedule in schedules {
        let relative = |time: Option<&prost_types::Timestamp>| {
            text::timestamp(time).map_or_else(|| "-".into(), |time| text::relative(time, now))
        };
        let next = if schedule.paused { "paused".into() } else { relative(schedule.next_times.first()) };
        table.row_of_store(
            [
                escaped(&schedule.name).into_owned(),
                schedule.template.as_ref().map_or_else(String::new, |job| escaped(&job.task_type).into_owned()),
                plan_words(schedule),
                next,
                relative(schedule.last_fire_time.as_ref()),
                schedule.fired.to_string(),
                text::summary(&schedule.last_error),
            ],
            &schedule.store,
        );
    }
    table
}
