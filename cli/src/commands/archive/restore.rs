//! `howdah archive restore`: enqueues archived jobs again as new jobs.

use std::{collections::BTreeSet, ops::ControlFlow, time::Instant};

use howdah_archive::Job;
use howdah_engine::{
    archive::{ArchiveError, HistoryQuery, Reader, Restore, RestoreEvent, Take},
    store::{RestoreOutcome, RestoredJob},
};
use jiff::Timestamp;

use super::{Failure, Global, PROGRESS_INTERVAL, Where};
use crate::commands::{
    context::block_on,
    input,
    output::{Output, note},
    text, values,
};

/// Enqueue archived jobs again, as new jobs
///
/// A new job has the type, payload, headers, keys, tags, priority, attempts and stages of the old one, and the old id in the header
/// howdah-restored-from. It is ready immediately. Only archived jobs with payloads (archive_payloads = full) can be restored. Shows
/// the number of jobs and asks first. An interrupted command can be run again: within 24 hours no job is restored twice. A job is
/// skipped if another job holds its key, or if it was retried and is unfinished. Prints the ids of the new jobs, one per line. The
/// exit status is 1 if a job was skipped.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("choice").args(["id", "task_type", "key", "since", "until", "state"]).required(true).multiple(true))]
#[command(after_help = "\
Examples:
  howdah archive restore --id 17 --id 18 --yes
  howdah archive restore --type order.ship --key order-4711
  howdah archive restore --type order.ship --state cancelled --since 2026-01-01 --until 2026-02-01 --reason 'cancelled by mistake'")]
pub(in crate::commands) struct Args {
    /// Restore the job with this id; repeatable
    #[arg(long, value_name = "ID", conflicts_with_all = ["task_type", "key", "since", "until", "state", "limit"], value_parser = values::id)]
    id: Vec<i64>,
    /// Restore jobs of this task type
    #[arg(long = "type", value_name = "TYPE")]
    task_type: Option<String>,
    /// Restore jobs with this key
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Restore jobs with this outcome: succeeded, cancelled, expired, discarded
    #[arg(long, value_name = "STATE", value_parser = ["succeeded", "cancelled", "expired", "discarded"])]
    state: Option<String>,
    /// Restore jobs that ended at this time or later, such as 2027-01-01T03:00:00Z, or at most this long ago, such as 90m or 7d
    #[arg(long, value_name = "TIME", value_parser = values::time_or_ago)]
    since: Option<Timestamp>,
    /// Restore jobs that ended before this time, or longer ago than this
    #[arg(long, value_name = "TIME", value_parser = values::time_or_ago)]
    until: Option<Timestamp>,
    /// Restore at most this many jobs, newest days first. Jobs that an earlier run restored count too
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// Skip the confirmation
    #[arg(long)]
    yes: bool,
    /// Print one JSON object per line for each job: id, outcome, job (the new job, or the holder of the key), problem
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    at: Where,
}

impl Args {
    fn query(&self) -> HistoryQuery {
        HistoryQuery {
            task_type: self.task_type.clone(),
            key: self.key.clone(),
            outcome: self.state.clone(),
            since: self.since.map(Into::into),
            until: self.until.map(Into::into),
            payloads: false,
            archived_only: true,
        }
    }

    fn ids(&self) -> Vec<i64> {
        self.id.iter().copied().collect::<BTreeSet<_>>().into_iter().collect()
    }
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    block_on(async {
        let (_, store) = args.at.open(global, None)?;
        let reader = Reader::new(store);
        if !args.yes {
            preview(args, &reader).await?;
            input::needs_terminal("use --yes to restore the jobs without confirmation")?;
            if !input::is_confirmed().await? {
                return Err(Failure::failed("nothing was restored"));
            }
        }
        let by = global.actor("howdah archive restore");
        let mut report = Report::new(args.json);
        let restore = Restore::new(&reader, &by, args.limit, |event| report.add(&event));
        let done = if args.id.is_empty() {
            restore.chosen(&reader, &args.query()).await
        } else {
            restore.of_ids(&reader, &args.ids()).await
        };
        report.finish(done, args.limit)
    })
}

/// Prints how many jobs would be restored.
async fn preview(args: &Args, reader: &Reader) -> Result<(), Failure> {
    let mut count = Count { jobs: 0, most: args.limit };
    if args.id.is_empty() {
        reader.history(&args.query(), &mut count).await?;
    } else {
        for id in args.ids() {
            count.jobs += u64::from(reader.find(id).await?.is_some());
        }
    }
    let more = if count.jobs > args.limit { "more than " } else { "" };
    let jobs = text::jobs(count.jobs.min(args.limit).try_into().unwrap_or(i64::MAX));
    let bound =
        if more.is_empty() { String::new() } else { format!("; --limit restores only the first {}", args.limit) };
    note(format_args!("{more}{jobs} in the archive{bound}"));
    Ok(())
}

/// Counts the matching archived jobs. Stops at one job above the limit, which shows that there are more.
struct Count {
    jobs: u64,
    most: u64,
}

impl Take for Count {
    type Error = ArchiveError;

    fn take(&mut self, _: &Job<'_>) -> Result<ControlFlow<()>, ArchiveError> {
        self.jobs += 1;
        Ok(if self.jobs > self.most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }
}

/// Prints the progress and results of a restore.
struct Report {
    json: bool,
    output: Output,
    /// First error from a write to stdout.
    problem: Result<(), Failure>,
    restored: u64,
    earlier: u64,
    not_restored: u64,
    last_note: Instant,
}

impl Report {
    fn new(json: bool) -> Self {
        let last_note = Instant::now();
        Self { json, output: Output::new(), problem: Ok(()), restored: 0, earlier: 0, not_restored: 0, last_note }
    }

    fn add(&mut self, event: &RestoreEvent) {
        let written = match event {
            RestoreEvent::Done(done) => self.done(*done),
            RestoreEvent::Refused { old_id, problem } => self.not_restored(*old_id, "refused", None, problem),
            RestoreEvent::Missing(id) => self.not_restored(*id, "missing", None, "it is not in the archive"),
        };
        // A closed stdout does not stop the restore. `finish` returns the first write error.
        if self.problem.is_ok() {
            self.problem = written;
        }
        if self.last_note.elapsed() > PROGRESS_INTERVAL {
            self.last_note = Instant::now();
            note(format_args!("{} restored so far", text::jobs(self.restored as i64)));
        }
    }

    fn done(&mut self, done: RestoredJob) -> Result<(), Failure> {
        let RestoredJob { old_id, id, outcome } = done;
        match outcome {
            RestoreOutcome::KeyHeld => {
                self.not_restored(old_id, "key_held", Some(id), &format!("job {id} holds its key"))
            }
            RestoreOutcome::Unfinished => {
                self.not_restored(old_id, "unfinished", Some(id), "it was retried and is unfinished")
            }
            RestoreOutcome::Restored | RestoreOutcome::Earlier => {
                let is_new = outcome == RestoreOutcome::Restored;
                *(if is_new { &mut self.restored } else { &mut self.earlier }) += 1;
                let name = if is_new { "restored" } else { "restored_before" };
                match (self.json, is_new) {
                    (true, _) => self.output.json(&serde_json::json!({"id": old_id, "outcome": name, "job": id})),
                    (false, true) => self.output.line(id),
                    (false, false) => Ok(()),
                }
            }
        }
    }

    fn not_restored(&mut self, id: i64, outcome: &str, job: Option<i64>, problem: &str) -> Result<(), Failure> {
        self.not_restored += 1;
        if self.json {
            return self
                .output
                .json(&serde_json::json!({"id": id, "outcome": outcome, "job": job, "problem": problem}));
        }
        note(format_args!("job {id} was not restored: {problem}"));
        Ok(())
    }

    fn finish(mut self, done: Result<u64, ArchiveError>, limit: u64) -> Result<(), Failure> {
        let flushed = self.output.flush();
        let earlier = match self.earlier {
            0 => String::new(),
            earlier => format!(", and {} already restored earlier", text::jobs(earlier as i64)),
        };
        note(format_args!("restored {}{earlier}", text::jobs(self.restored as i64)));
        let chosen = done.map_err(|error| match error {
            ArchiveError::Store(_) => Failure::from(error),
            error => Failure::failed(format!("{error}; run the command again to continue")),
        })?;
        self.problem.and(flushed)?;
        if chosen == limit {
            note(format_args!("reached --limit {limit}: there may be more jobs"));
        }
        match self.not_restored {
            0 => Ok(()),
            not_restored => Err(Failure::failed(format!("{} not restored", text::jobs(not_restored as i64)))),
        }
    }
}
