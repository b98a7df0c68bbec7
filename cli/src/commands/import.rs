//! `howdah import pg_task`: imports planned tasks of pg_task as jobs for the SQL worker.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{IsTerminal as _, stderr},
};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::{
    commands::{
        context::{Global, block_on},
        failure::Failure,
        input,
        output::{Output, note},
        work::is_database_name,
    },
    import::{ImportError, Moved, Rows, Table, Target},
};

subcommands! { |args, global|
    #[command(name = "pg_task")]
    PgTask(Args) => pg_task(&args, global),
}

/// Move planned tasks of pg_task to the broker, as jobs for the SQL worker
///
/// Tasks in state PLAN (QUEUE in versions of 2019) become jobs for `howdah work --sql`; repeating tasks become schedules. Other
/// tasks are counted and stay. One transaction locks, enqueues and marks the rows (state DONE, output "moved to Howdah as job
/// 17"), so that pg_task does not run them too. After an interruption, run the command again: no task is enqueued twice. If the
/// table is still in use, run it again for new tasks. docs/operate/pg_task.md explains each column.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah import pg_task env:APP_DSN --dry-run
  howdah import pg_task env:APP_DSN --table jobs.task --remote 'host=far user=me=reports'")]
pub(super) struct Args {
    /// Database of pg_task: a connection string, or env:NAME or file:PATH
    #[arg(value_name = "DSN")]
    dsn: String,
    /// Table of pg_task, as written in SQL
    #[arg(long, value_name = "SCHEMA.TABLE", default_value = "public.task")]
    table: String,
    /// Task type of the jobs
    #[arg(long = "type", value_name = "TYPE", default_value = "sql")]
    task_type: String,
    /// Map a value of the column remote to a database name of the SQL worker (its --name); repeatable
    #[arg(long, value_name = "CONN=NAME", value_parser = remote)]
    remote: Vec<(String, String)>,
    /// Prefix of the schedule names; the id of the task follows
    #[arg(long, value_name = "PREFIX", default_value = "pg_task.")]
    schedule_prefix: String,
    /// Delete the rows of moved tasks instead of marking them
    #[arg(long)]
    delete: bool,
    /// Print what would be moved, without moving it
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object per task, and a summary object at the end
    #[arg(long)]
    json: bool,
}

/// Parses `CONN=NAME`. The connection string may contain `=`, and is not shown in errors.
fn remote(text: &str) -> Result<(String, String), String> {
    match text.rsplit_once('=') {
        Some((conn, name)) if is_database_name(name) => Ok((conn.to_owned(), name.to_owned())),
        _ => Err("write CONN=NAME, with a NAME of letters, digits and . _ -".into()),
    }
}

fn pg_task(args: &Args, global: &Global) -> Result<(), Failure> {
    let dsn = input::connection_string("DSN", &args.dsn)?;
    global.start_logging("warn")?;
    block_on(async {
        let broker = if args.dry_run { None } else { Some(global.connect().await?) };
        let table = Table::open(&dsn, &args.table).await?;
        let mut others = table.count().await?;
        let planned = ["PLAN", "QUEUE"].iter().filter_map(|state| others.remove(*state)).sum();
        let target = Target {
            task_type: args.task_type.clone(),
            remotes: args.remote.iter().cloned().collect(),
            schedule_prefix: args.schedule_prefix.clone(),
        };
        let rows = if args.delete { Rows::Deleted } else { Rows::Marked };
        let mut reporter = Reporter::new(args.json, planned);
        let moved = table.move_to(broker.as_ref(), &target, rows, |id, moved| reporter.report(id, moved)).await;
        reporter.finish(args, moved, &others)
    })
}

impl From<ImportError> for Failure {
    fn from(error: ImportError) -> Self {
        match error {
            ImportError::Database(_) | ImportError::Columns(_) => Self::failed(error.to_string()),
            ImportError::Broker(error) => error.into(),
        }
    }
}

/// Prints the result of each task, and counts the results.
struct Reporter {
    /// `None` after a write error: the output stops, but the import continues.
    output: Option<Output>,
    json: bool,
    bar: ProgressBar,
    jobs: u64,
    schedules: u64,
    kept: u64,
}

impl Reporter {
    fn new(json: bool, planned: i64) -> Self {
        let style = ProgressStyle::with_template("{bar:30} {human_pos} of {human_len} tasks, {elapsed}");
        let bar = match style {
            Ok(style) if stderr().is_terminal() => ProgressBar::new(planned.unsigned_abs()).with_style(style),
            _ => ProgressBar::hidden(),
        };
        Self { output: Some(Output::new()), json, bar, jobs: 0, schedules: 0, kept: 0 }
    }

    fn report(&mut self, task: i64, moved: &Moved) {
        self.bar.inc(1);
        let object = match moved {
            Moved::Job(job) => json!({"task": task, "job": job}),
            Moved::Schedule(name) => json!({"task": task, "schedule": name}),
            Moved::Not(reason) => json!({"task": task, "reason": reason}),
        };
        match moved {
            Moved::Job(_) => self.jobs += 1,
            Moved::Schedule(_) => self.schedules += 1,
            Moved::Not(_) => self.kept += 1,
        }
        let json = self.json;
        self.bar.suspend(|| {
            let Some(output) = &mut self.output else { return };
            let printed = match moved {
                _ if json => output.json(&object),
                Moved::Not(reason) => output.line(format_args!("task {task} is not moved: {reason}")),
                _ => Ok(()),
            };
            if printed.is_err() {
                self.output = None;
            }
        });
    }

    fn finish(
        self,
        args: &Args,
        moved: Result<BTreeSet<i64>, ImportError>,
        others: &BTreeMap<String, i64>,
    ) -> Result<(), Failure> {
        self.bar.finish_and_clear();
        let Self { jobs, schedules, kept, .. } = self;
        if let Some(mut output) = self.output {
            if args.json {
                let object = json!({"jobs": jobs, "schedules": schedules, "kept": kept, "not_planned": others,
                                    "dry_run": args.dry_run});
                output.json(&object)?;
            } else {
                let verb = if args.dry_run { "would be" } else { "were" };
                let others: Vec<String> = others.iter().map(|(state, count)| format!("{count} {state}")).collect();
                let others = if others.is_empty() { "none".to_owned() } else { others.join(", ") };
                output.line(format_args!(
                    "{jobs} tasks {verb} moved as jobs, {schedules} as schedules; {kept} not moved; not in state PLAN: {others}"
                ))?;
            }
            output.flush()?;
        }
        if let Some(hint) = limits(args, &moved?) {
            note(hint);
        }
        Ok(())
    }
}

/// Suggests a gap for the task type if tasks have a negative `max`, with which pg_task pauses between tasks of a group.
fn limits(args: &Args, limits: &BTreeSet<i64>) -> Option<String> {
    let (least, most) = (limits.first().filter(|max| **max < 0)?, limits.last()?);
    let mut hint = format!(
        "to pause between tasks of a group, as pg_task did: howdah type set {} --key-min-gap {}ms --key-gap-from-end true",
        args.task_type,
        least.unsigned_abs()
    );
    if least != most {
        hint.push_str("; this is the longest pause of all groups: move other groups to a separate task type (--type)");
    }
    Some(hint)
}
