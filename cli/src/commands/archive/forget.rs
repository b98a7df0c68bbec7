//! `howdah archive forget`: finished jobs are forgotten before their time, in the files and in the database.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use howdah_server::{
    archive::{Archiver, ForgetProgress, ForgetQuery, Forgotten, OnForget},
    store::{Actor, ForgetInHistory, Store},
};
use jiff::Timestamp;

use super::{Failure, Global, SAY_EVERY, Where};
use crate::commands::{
    confirm,
    context::block_on,
    output::{Output, note},
    text, values,
};

/// Forget finished jobs: those of a key, of a task type, or before a time
///
/// Files of the archive that hold such jobs are written anew without them, and the old files are deleted. Finished jobs that are still
/// in the database are deleted, too. Jobs that are not finished stay: cancel or discard them first. What is given together must
/// all fit. Shows how many jobs there are, and asks. It cannot be undone. A command that was stopped can be given again; a
/// broker with an archive_url finishes the day that it had begun. The exit status is 1 if somebody else worked on a day: then
/// give the command again when that is over.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("choice").args(["key", "task_type", "before"]).required(true).multiple(true))]
#[command(after_help = "\
Examples:
  howdah archive forget --key customer-4711 --reason 'asked for by mail of 3 May'
  howdah archive forget --type order.ship --before 2020-01-01 --yes")]
pub(in crate::commands) struct Args {
    /// Forget jobs with this key
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Forget jobs of this task type
    #[arg(long = "type", value_name = "TYPE")]
    task_type: Option<String>,
    /// Forget jobs that ended before this time, such as 2027-01-01T03:00:00Z, or before so long ago, such as 90d
    #[arg(long, value_name = "TIME", value_parser = values::time_or_ago)]
    before: Option<Timestamp>,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// Print one JSON object per line for each day: day (null: the database), jobs, files, busy
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    at: Where,
}

/// What is forgotten, and where.
struct Work {
    store: Store,
    archiver: Archiver,
    query: ForgetQuery,
    /// `None`: the database has no such type any more.
    live: Option<ForgetInHistory>,
}

impl Work {
    async fn of(args: &Args, store: Store, archiver: Archiver) -> Result<Self, Failure> {
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

    /// Counts, or deletes, those of the database.
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
        // Each day stays where it lies.
        let archiver = Archiver::new(store.clone(), "", settings.broker.archive_payloads, &who, &database)
            .on_forget(now_and_then());
        let work = Work::of(args, store, archiver).await?;
        if !args.yes {
            preview(&work).await?;
            confirm::needs_terminal("give --yes to forget them")?;
            if !confirm::ask().await? {
                return Err(Failure::failed("nothing was forgotten"));
            }
        }
        let mut by = Actor::of_session("howdah archive forget");
        by.reason = global.reason.clone().unwrap_or_default();
        forget(&work, &by, args.json).await
    })
}

/// Says how far it is in a day, if that takes long.
fn now_and_then() -> OnForget {
    let (begun, said) = (Instant::now(), AtomicU64::new(0));
    Arc::new(move |progress| {
        let now = begun.elapsed().as_secs();
        if now >= said.load(Ordering::Relaxed) + SAY_EVERY.as_secs() {
            said.store(now, Ordering::Relaxed);
            note(describe(&progress));
        }
    })
}

fn describe(progress: &ForgetProgress) -> String {
    let ForgetProgress { day, is_writing, done, files, jobs } = progress;
    let jobs = text::jobs(*jobs);
    if *is_writing {
        format!("{day}: {done} of {files} files written anew so far, with {jobs} that stay")
    } else {
        format!("{day}: {done} of {files} files looked at so far, with {jobs} to be forgotten")
    }
}

/// Says how many jobs would be forgotten.
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
        "{} in {} files of {days} days of the archive, which are written anew; {} in the database, which may be the same",
        text::jobs(all.jobs),
        all.files,
        text::jobs(live)
    ));
    Ok(())
}

/// The database first: what is archived from then on has none of these jobs.
async fn forget(work: &Work, by: &Actor, json: bool) -> Result<(), Failure> {
    let mut output = Output::new();
    let live = work.in_database(Some(by)).await?;
    let mut say = |day: Option<&str>, done: Forgotten, busy: bool| {
        if json {
            let object = serde_json::json!({"day": day, "jobs": done.jobs, "files": done.files, "busy": busy});
            output.json(&object)?;
        } else if busy {
            note(format_args!("{}: somebody works on this day", day.unwrap_or_default()));
        } else if let Some(day) = day {
            output.line(format_args!(
                "{day}: forgot {}; {} files were written anew",
                text::jobs(done.jobs),
                done.files
            ))?;
        } else {
            output.line(format_args!("database: forgot {}", text::jobs(done.jobs)))?;
        }
        output.flush()
    };
    say(None, Forgotten { jobs: live, files: 0 }, false)?;
    let mut busy = 0;
    for day in work.archiver.days_to_forget(&work.query).await? {
        let done = if day.is_busy { None } else { forget_day(work, &day.day, day.is_rewritten, by).await? };
        match done {
            Some(done) if done.files > 0 => say(Some(&day.day), done, false)?,
            Some(_) => {}
            None => {
                busy += 1;
                say(Some(&day.day), Forgotten::default(), true)?;
            }
        }
    }
    match busy {
        0 => Ok(()),
        1 => Err(Failure::failed("jobs of one day may not be forgotten yet: give the command again when it is free")),
        busy => Err(Failure::failed(format!(
            "jobs of {busy} days may not be forgotten yet: give the command again when they are free"
        ))),
    }
}

/// Takes a day only if there is something to do, and others may want it.
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
        assert_eq!(describe(&looked), "2026-11-22: 3 of 85 files looked at so far, with 1 job to be forgotten");
        let written = ForgetProgress { is_writing: true, jobs: 7, ..looked };
        assert_eq!(describe(&written), "2026-11-22: 3 of 85 files written anew so far, with 7 jobs that stay");
    }
}
