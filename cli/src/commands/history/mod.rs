//! `howdah history`: finished jobs from the database and the archive.

mod sink; // output formats

use howdah_engine::archive::{HistoryQuery, Reader};
use jiff::Timestamp;

use super::{
    archive::Where,
    context::{Global, block_on},
    failure::Failure,
    output::note,
    text, values,
};
use sink::Listing;

/// List finished jobs from the database and the archive
///
/// The newest day comes first; the jobs of a day are in no particular order. A job that was retried after its end is listed once
/// per end. The command reads the database and the archive files directly, without a broker, and needs little memory. Stages and
/// dependencies are not shown: use `howdah job ID`.
#[derive(Debug, clap::Args)]
#[allow(clippy::struct_excessive_bools)] // flags
#[command(group = clap::ArgGroup::new("form").multiple(false))]
#[command(after_help = "\
Examples:
  howdah history --since 7d --database-url postgres://howdah@db.internal/app
  howdah history order.ship --key order-4711
  howdah history order.ship --state cancelled --since 2026-01-01T00:00:00Z --all --csv > cancelled.csv
  howdah history --since 30d --all --payload --parquet jobs.parquet

CSV and Parquet have the columns of the archive files. In CSV, headers, options and failures are JSON. Payloads
and results are in base64, and also as text if they are valid text.")]
pub(super) struct Args {
    /// List only jobs of this task type
    #[arg(value_name = "TYPE")]
    task_type: Option<String>,
    /// List only jobs with this key
    #[arg(long, value_name = "KEY", requires = "task_type")]
    key: Option<String>,
    /// List only jobs with this outcome: succeeded, cancelled, expired, discarded
    #[arg(long, value_name = "STATE", value_parser = ["succeeded", "cancelled", "expired", "discarded"])]
    state: Option<String>,
    /// List only jobs that ended at this time or later, such as 2027-01-01T03:00:00Z, or at most this long ago, such as 90m or 7d
    #[arg(long, value_name = "TIME", value_parser = values::time_or_ago)]
    since: Option<Timestamp>,
    /// List only jobs that ended before this time, or longer ago than this
    #[arg(long, value_name = "TIME", value_parser = values::time_or_ago)]
    until: Option<Timestamp>,
    /// List at most this many jobs
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// List all jobs
    #[arg(long, conflicts_with = "limit")]
    all: bool,
    /// Show payloads; with --json, --csv and --parquet also results
    #[arg(long)]
    payload: bool,
    /// Print one JSON object per job, as `howdah job`
    #[arg(long, group = "form")]
    json: bool,
    /// Print comma-separated values with a heading
    #[arg(long, group = "form")]
    csv: bool,
    /// Write a Parquet file; an existing file is replaced at the end
    #[arg(long, value_name = "FILE", group = "form")]
    parquet: Option<std::path::PathBuf>,
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
            payloads: self.payload,
            archived_only: false,
        }
    }
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    block_on(async {
        let (_, store) = args.at.open(global, None)?;
        let most = if args.all { u64::MAX } else { args.limit };
        let mut listing = Listing::new(args, most)?;
        let read = Reader::new(store).history(&args.query(), &mut listing).await;
        let listed = listing.finish(read)?;
        // Does not check whether more jobs exist, because the check may read archive files for nothing.
        if listed == most {
            note(format_args!("listed only {}: use --limit or --all to list more", text::first_jobs(listed)));
        }
        if listed == 0 && !args.json && !args.csv {
            note("no such jobs");
        }
        Ok(())
    })
}
