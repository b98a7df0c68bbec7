//! `howdah archive forget`: deletes finished jobs for good, from the archive files and the database.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use howdah_engine::{
    archive::{Archiver, ForgetProgress, ForgetQuery, Forgotten, OnForget},
    store::{Actor, ForgetInHistory, Store},
};
use jiff::Timestamp;

use super::{Failure, Global, PROGRESS_INTERVAL, Where};
use crate::commands::{
    context::block_on,
    input,
    output::{Output, note},
    text, values,
};

/// Forget finished jobs: delete them from the archive and the database
///
/// Rewrites archive files that contain matching jobs, and deletes matching finished jobs in the database. Unfinished jobs stay:
/// cancel or discard them first. A job must match all given filters. Shows the number of jobs and asks first. This cannot be
/// undone. An interrupted command can be run again; brokers with an archive_url finish the day that the command was rewriting.
/// The exit status is 1 if the command skipped a day because another process was working on it: then run the command again
/// later.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("choice").args(["key", "task_type", "before"]).required(true).multiple(true))]
#[command(after_help = "\
Examples:
  howdah archive forget --key customer-4711 --reason 'requested by mail of 3 May'
  howdah archive forget --type order.ship --before 2020-01-01 --yes")]
pub(in crate::commands) struct Args {
    /// Forget jobs with this key
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Forget jobs of this task type
    #[arg(long = "type", value_name = "TYPE")]
    task_type: Option<String>,
    /// Forget jobs that ended before this time, such as 2027-01-01T03:00:00Z, or longer ago than this, such as 90d
    #[arg(long, value_name = "TIME", value_parser = values::time_or_ago)]
    before: Option<Timestamp>,
    /// Skip the confirmation
    #[arg(long)]
    yes: bool,
    /// Print one JSON object per line for each day: day (null: the database), jobs, files, busy (true: skipped)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    at: Where,
}

/// Selects the jobs to forget, in the database and in the archive.
struct Work {
    store: Store,
    archiver: Archiver,
    query: ForgetQuery,
    /// Filter for the database; `None` if the task type no longer exists there.
    live: Option<ForgetInHistory>,
}

impl Work {
    async fn new(args: &Args, store: Store, archiver: Archiver) -> Result<Self, Failure> {
        let query = ForgetQuery {
            key: args.key.clone(),
            task_type: args.task_type.clone(),
            before: args.before.map(Into::into),
        };
        let names = store.type_names().await?;
        let type_id = match &args.task_type {
            None => Some(None),
            Some(wanted) => names.iter().find(|(_, name)| name == wanted).map(|(id, _)| Some(*id)),
        };
        let live = type_id.map(|type_id| ForgetInHistory { key: query.key.clone(), type_id, before: query.before });
        Ok(Self { store, archiver, query, live })
    }

    /// Deletes the matching finished jobs in the database on behalf of `by`. If `by` is `None`, only counts them.
    async fn in_database(&self, by: Option<&Actor>) -> Result<i64, Failure> {
        let (Some(choice), mut jobs) = (&self.live, 0) else { return Ok(0) };
        for part in self.store.history_parts(choice.before).await? {
            jobs += self.store.forget_history(&part, choice, by).await?;
        }
        Ok(jobs)
    }
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    block_on(async {
        let (settings, store) = args.at.open(global, None)?;
        let database = store.database_id().await?;
        let who = format!("howdah archive forget, process {}", std::process::id());
        // The archiver needs no archive URL: the database records the URL of each archived day.
        let archiver = Archiver::new(store.clone(), "", settings.broker.archive_payloads, &who, &database)
            .on_forget(now_and_then());
        let work = Work::new(args, store, archiver).await?;
        if !args.yes {
            preview(&work).await?;
            input::needs_terminal("use --yes to forget the jobs without confirmation")?;
            if !input::is_confirmed().await? {
                return Err(Failure::failed("nothing was forgotten"));
            }
        }
        forget(&work, &global.actor("howdah archive forget"), args.json).await
    })
}

/// Reports the progress of a long run, at most every [`PROGRESS_INTERVAL`].
fn now_and_then() -> OnForget {
    let (begun, last_note) = (Instant::now(), AtomicU64::new(0));
    Arc::new(move |progress| {
        let now = begun.elapsed().as_secs();
        if now >= last_note.load(Ordering::Relaxed) + PROGRESS_INTERVAL.as_secs() {
            last_note.store(now, Ordering::Relaxed);
            note(describe(&progress));
        }
    })
}

fn describe(progress: &ForgetProgress) -> String {
    let ForgetProgress { day, is_writing, done, files, jobs } = progress;
    let jobs = text::jobs(*jobs);
    if *is_writing {
        format!("{day}: rewrote {done} of {files} files so far, kept {jobs}")
    } else {
        format!("{day}: scanned {done} of {files} files so far, found {jobs} to forget")
    }
}

/// Prints how many jobs would be forgotten.
async fn preview(work: &Work) -> Result<(), Failure> {
    let mut all = Forgotten::default();
    let mut days = 0;
    for day in work.archiver.days_to_forget(&work.query).await? {
        let found = work.archiver.count_forgettable(&day.day, &work.query).await?;
        days += usize::from(found.files > 0);
        all.jobs += found.jobs;
        all.files += found.files;
    }
    let live = work.in_database(None).await?;
    note(format_args!(
        "archive: {} in {} files of {days} days, which will be rewritten; database: {}; some jobs may be in both",
        text::jobs(all.jobs),
        all.files,
        text::jobs(live)
    ));
    Ok(())
}

/// Deletes the jobs. The database comes first, so that no later archive run writes these jobs to files again.
async fn forget(work: &Work, by: &Actor, json: bool) -> Result<(), Failure> {
    let mut output = Output::new();
    let live = work.in_database(Some(by)).await?;
    let mut print = |day: Option<&str>, done: Forgotten, busy: bool| {
        if json {
            let object = serde_json::json!({"day": day, "jobs": done.jobs, "files": done.files, "busy": busy});
            output.json(&object)?;
        } else if busy {
            note(format_args!("{}: skipped, because another process is working on this day", day.unwrap_or_default()));
        } else if let Some(day) = day {
            output.line(format_args!("{day}: forgot {}, rewrote {} files", text::jobs(done.jobs), done.files))?;
        } else {
            output.line(format_args!("database: forgot {}", text::jobs(done.jobs)))?;
        }
        output.flush()
    };
    print(None, Forgotten { jobs: live, files: 0 }, false)?;
    let mut busy = 0;
    for day in work.archiver.days_to_forget(&work.query).await? {
        let done = if day.is_busy { None } else { forget_day(work, &day.day, day.is_rewritten, by).await? };
        match done {
            Some(done) if done.files > 0 => print(Some(&day.day), done, false)?,
            Some(_) => {}
            None => {
                busy += 1;
                print(Some(&day.day), Forgotten::default(), true)?;
            }
        }
    }
    match busy {
        0 => Ok(()),
        1 => Err(Failure::failed("skipped one day in use by another process: run the command again")),
        busy => Err(Failure::failed(format!("skipped {busy} days in use by other processes: run the command again"))),
    }
}

/// Deletes the matching jobs of one archived day. Returns `None` if another process works on the day. A day without matching
/// jobs is not locked, so that other processes can use it.
async fn forget_day(work: &Work, day: &str, is_rewritten: bool, by: &Actor) -> Result<Option<Forgotten>, Failure> {
    if !is_rewritten && work.archiver.count_forgettable(day, &work.query).await?.files == 0 {
        return Ok(Some(Forgotten::default()));
    }
    Ok(work.archiver.forget(day, &work.query, by).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_says_how_many_files_and_jobs_it_is_done_with() {
        let looked = ForgetProgress { day: "2026-11-22".into(), is_writing: false, done: 3, files: 85, jobs: 1 };
        assert_eq!(describe(&looked), "2026-11-22: scanned 3 of 85 files so far, found 1 job to forget");
        let written = ForgetProgress { is_writing: true, jobs: 7, ..looked };
        assert_eq!(describe(&written), "2026-11-22: rewrote 3 of 85 files so far, kept 7 jobs");
    }
}
