//! `howdah history`: finished jobs, those in the database and those in the archive in one.

mod csv; // a line for each job
mod sink; // the four forms of the output

use howdah_server::archive::{HistoryQuery, Reader};
use jiff::Timestamp;

use super::{
    archive::Where,
    context::{Global, block_on},
    failure::Failure,
    output::note,
    values,
};
use sink::Listing;

/// List finished jobs, those in the database and those in the archive in one
///
/// The newest day comes first, the jobs of a day in no particular order. Each end of a job is listed: one that came back after its
/// end has several. It uses the database and the files of the archive itself, without a broker, and holds few of the jobs in
/// memory. Stages and dependencies are not shown: `howdah job ID` shows them.
#[derive(Debug, clap::Args)]
#[allow(clippy::struct_excessive_bools)] // flags
#[command(group = clap::ArgGroup::new("form").multiple(false))]
#[command(after_help = "\
Examples:
  howdah history --since 7d --database-url postgres://howdah@db.internal/app
  howdah history order.ship --key order-4711
  howdah history order.ship --state cancelled --since 2026-01-01T00:00:00Z --all --csv > cancelled.csv
  howdah history --since 30d --all --payload --parquet jobs.parquet

In CSV and Parquet the columns are those of the archive's files. In CSV, headers, options and failures are JSON, and payloads
and results are in base64, and also as text if they are text.")]
pub(super) struct Args {
    /// List only jobs of this task type
    #[arg(value_name = "TYPE")]
    task_type: Option<String>,
    /// List only jobs with this key
    #[arg(long, value_name = "KEY", requires = "task_type")]
    key: Option<String>,
    /// List only jobs that ended like this: succeeded, cancelled, expired, discarded
    #[arg(long, value_name = "STATE", value_parser = ["succeeded", "cancelled", "expired", "discarded"])]
    state: Option<String>,
    /// List only jobs that ended at this time or later, such as 2027-01-01T03:00:00Z, or since so long ago, such as 90m or 7d
    #[arg(long, value_name = "TIME", value_parser = values::time_or_ago)]
    since: Option<Timestamp>,
    /// List only jobs that ended before this time, or before so long ago
    #[arg(long, value_name = "TIME", value_parser = values::time_or_ago)]
    until: Option<Timestamp>,
    /// List at most this many jobs
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// List every job
    #[arg(long, conflicts_with = "limit")]
    all: bool,
    /// Show payloads; with --json, --csv and --parquet also results
    #[arg(long)]
    payload: bool,
    /// Print one JSON object per line, as `howdah jobs` does
    #[arg(long, group = "form")]
    json: bool,
    /// Print comma-separated values, with a heading
    #[arg(long, group = "form")]
    csv: bool,
    /// Write them to this Parquet file, which is replaced when all of them are written
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
        // Whether there are more is not looked up: that may mean files that nobody wants.
        if listed == most {
            let what = if listed == 1 { "the first job".into() } else { format!("the first {listed} jobs") };
            note(format_args!("only {what}: --limit or --all lists more, if there are more"));
        }
        if listed == 0 && !args.json && !args.csv {
            note("no such jobs");
        }
        Ok(())
    })
}
