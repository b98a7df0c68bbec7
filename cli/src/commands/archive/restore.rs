//! `howdah archive restore`: archived jobs come back as new ones.

use std::{collections::BTreeSet, ops::ControlFlow, time::Instant};

use howdah_archive::Job;
use howdah_server::{
    archive::{ArchiveError, HistoryQuery, Reader, Restore, RestoreEvent, Take},
    store::{Actor, RestoreOutcome, RestoredJob},
};
use jiff::Timestamp;

use super::{Failure, Global, SAY_EVERY, Where};
use crate::commands::{
    confirm,
    context::block_on,
    output::{Output, note},
    text, values,
};

/// Enqueue archived jobs again, as new jobs
///
/// The new job has the type, payload, headers, keys, tags, priority, attempts and stages of the old one, and its id as the header
/// howdah-restored-from. It is ready at once. Only jobs in the files of the archive are looked for, and they need their payloads
/// (archive_payloads = full). Shows how many there are, and asks. A command that was stopped can be given again: within 24 hours
/// no job is restored twice. A job whose key another job holds is left out, and so is one that has come back and is not finished.
/// Prints the ids of the new jobs, one per line. The exit status is 1 if a job was left out.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("choice").args(["id", "task_type", "key", "since", "until", "state"]).required(true).multiple(true))]
#[command(after_help = "\
Examples:
  howdah archive restore --id 17 --id 18 --yes
  howdah archive restore --type order.ship --key order-4711
  howdah archive restore --type order.ship --state cancelled --since 2026-01-01 --until 2026-02-01 --reason 'cancelled by mistake'")]
pub(in crate::commands) struct Args {
    /// Restore the job with this id; give it several times for several jobs
    #[arg(long, value_name = "ID", conflicts_with_all = ["task_type", "key", "since", "until", "state", "limit"], value_parser = values::id)]
    id: Vec<i64>,
    /// Restore jobs of this task type
    #[arg(long = "type", value_name = "TYPE")]
    task_type: Option<String>,
    /// Restore jobs with this key
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Restore jobs that ended like this: succeeded, cancelled, expired, discarded
    #[arg(long, value_name = "STATE", value_parser = ["succeeded", "cancelled", "expired", "discarded"])]
    state: Option<String>,
    /// Restore jobs that ended at this time or later, such as 2027-01-01T03:00:00Z, or since so long ago, such as 90m or 7d
    #[arg(long, value_name = "TIME", value_parser = values::time_or_ago)]
    since: Option<Timestamp>,
    /// Restore jobs that ended before this time, or before so long ago
    #[arg(long, value_name = "TIME", value_parser = values::time_or_ago)]
    until: Option<Timestamp>,
    /// Restore at most this many jobs, those of the newest days first. Jobs that were restored by an earlier run count
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// Print one JSON object per line for each job: id, outcome, job (the new job, or the one in its way), problem
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
            confirm::needs_terminal("give --yes to restore them")?;
            if !confirm::ask().await? {
                return Err(Failure::failed("nothing was restored"));
            }
        }
        let mut by = Actor::of_session("howdah archive restore");
        by.reason = global.reason.clone().unwrap_or_default();
        let mut report = Report::new(args.json);
        let restore = Restore::new(&reader, &by, args.limit, |event| report.tell(&event));
        let done = if args.id.is_empty() {
            restore.chosen(&reader, &args.query()).await
        } else {
            restore.of_ids(&reader, &args.ids()).await
        };
        report.finish(done, args.limit)
    })
}

/// Says how many jobs would be restored.
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
    let bound = if more.is_empty() { String::new() } else { format!("; --limit {} restores only these", args.limit) };
    note(format_args!("{more}{jobs} in the archive{bound}"));
    Ok(())
}

/// Counts to one more than are wanted.
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

/// What is told while jobs are restored.
struct Report {
    json: bool,
    output: Output,
    /// The first line that could not be written.
    problem: Result<(), Failure>,
    restored: u64,
    earlier: u64,
    left_out: u64,
    said: Instant,
}

impl Report {
    fn new(json: bool) -> Self {
        let said = Instant::now();
        Self { json, output: Output::new(), problem: Ok(()), restored: 0, earlier: 0, left_out: 0, said }
    }

    fn tell(&mut self, event: &RestoreEvent) {
        let written = match event {
            RestoreEvent::Done(done) => self.done(*done),
            RestoreEvent::Refused { old_id, problem } => self.left_out(*old_id, "refused", None, problem),
            RestoreEvent::Missing(id) => self.left_out(*id, "missing", None, "it is not in the archive"),
        };
        // What is restored is restored, whether somebody reads the ids or not.
        if self.problem.is_ok() {
            self.problem = written;
        }
        if self.said.elapsed() > SAY_EVERY {
            self.said = Instant::now();
            note(format_args!("{} restored so far", text::jobs(self.restored as i64)));
        }
    }

    fn done(&mut self, done: RestoredJob) -> Result<(), Failure> {
        let RestoredJob { old_id, id, outcome } = done;
        match outcome {
            RestoreOutcome::KeyHeld => self.left_out(old_id, "key_held", Some(id), &format!("job {id} holds its key")),
            RestoreOutcome::Unfinished => {
                self.left_out(old_id, "unfinished", Some(id), "it has come back, and is not finished")
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

    fn left_out(&mut self, id: i64, outcome: &str, job: Option<i64>, problem: &str) -> Result<(), Failure> {
        self.left_out += 1;
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
            earlier => format!(", {} before, which were left as they are", text::jobs(earlier as i64)),
        };
        note(format_args!("restored {}{earlier}", text::jobs(self.restored as i64)));
        let chosen = done.map_err(|error| match error {
            ArchiveError::Store(_) => Failure::from(error),
            error => Failure::failed(format!("{error}; give the command again to go on")),
        })?;
        self.problem.and(flushed)?;
        if chosen == limit {
            note(format_args!("--limit {limit} was reached: there may be more"));
        }
        match self.left_out {
            0 => Ok(()),
            left_out => Err(Failure::failed(format!("{} not restored", text::jobs(left_out as i64)))),
        }
    }
}
