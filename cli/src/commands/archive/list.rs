//! `howdah archive list`: the days of the archive.

use super::{Failure, Global, Where};
use crate::commands::{
    context::block_on,
    output::{Output, note},
    table::{Align, Table},
    text::{size, summary},
};

/// List the archived days, newest first
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct Args {
    /// List at most this many days
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(i32).range(1..=100_000))]
    limit: i32,
    /// Print the files of these days, one URL per line, and nothing else
    #[arg(long, conflicts_with = "json")]
    files: bool,
    /// Print one JSON object per line for each day: day, state, jobs, late, files, bytes, url, archived_by, error
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    at: Where,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    block_on(async {
        let (_, store) = args.at.open(global, None)?;
        let days = store.archived_days(args.limit).await?;
        let mut output = Output::new();
        let mut table = Table::new([
            ("DAY", Align::Left),
            ("STATE", Align::Left),
            ("JOBS", Align::Right),
            ("LATE", Align::Right),
            ("FILES", Align::Right),
            ("SIZE", Align::Right),
            ("ERROR", Align::Left),
        ]);
        for day in &days {
            if args.files {
                let manifest: Option<howdah_archive::Manifest> = serde_json::from_str(&day.manifest).ok();
                for part in manifest.into_iter().flat_map(|manifest| manifest.parts) {
                    output.line(format_args!("{}/{}", day.url.trim_end_matches('/'), part.path))?;
                }
            } else if args.json {
                output.json(&serde_json::json!({
                    "day": day.day, "state": day.state, "jobs": day.jobs, "late": day.late, "files": day.files,
                    "bytes": day.bytes, "url": day.url, "archived_by": day.archived_by, "error": day.error,
                }))?;
            } else {
                table.row([
                    day.day.clone(),
                    day.state.clone(),
                    day.jobs.to_string(),
                    day.late.to_string(),
                    day.files.to_string(),
                    size(day.bytes.max(0) as usize),
                    summary(&day.error),
                ]);
            }
        }
        if !args.files && !args.json && !days.is_empty() {
            output.line(table)?;
        }
        output.flush()?;
        if days.is_empty() {
            note("no archived days");
        }
        Ok(())
    })
}
