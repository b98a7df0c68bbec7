//! `howdah archive now`, `list` and `verify`: archives complete days without a broker, lists the archived days, and checks their
//! files.

use howdah_archive::{Layout, Location, Manifest};
use howdah_engine::archive::Archiver;

use super::{Failure, Global, Where, url_of};
use crate::commands::{
    context::block_on,
    failure::problems,
    output::{Output, note},
    table::Table,
    text::{size, summary},
};

/// Archive all complete days now
///
/// Brokers with an archive_url do this automatically, some minutes after midnight (UTC). Days that another process is archiving are
/// skipped. Later archiving by brokers is not affected.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah archive now --database-url postgres://howdah@db.internal/app --url file:///var/lib/howdah/archive
  howdah archive now --url s3://bucket/howdah       # credentials: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION")]
pub(in crate::commands) struct NowArgs {
    /// Archive to this URL [default: archive_url, or else the URL that brokers use]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Also archive the jobs that finished today so far. Jobs that finish later are archived when the day is over; until then, each
    /// of them takes an additional row in the database
    #[arg(long)]
    include_today: bool,
    /// Limit the use of one processor to this fraction while the database is busy, like archive_share for brokers [default: no
    /// limit]
    #[arg(long, value_name = "PART", default_value_t = 1.0, hide_default_value = true, value_parser = share)]
    share: f64,
    /// Print one JSON object per line for each day: day, jobs, bytes, took_ms
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    at: Where,
}

/// List the archived days, newest first
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct ListArgs {
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

/// Check the files of the archive against their manifests
///
/// Each file must have the size, hash, number of jobs, and sums over ids and payload sizes of its manifest entry. Each manifest
/// must be equal to the copy in the database. The exit status is 1 if anything differs.
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct VerifyArgs {
    /// Verify the archive at this URL [default: archive_url, or else the URL that brokers use]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Verify only this day, such as 2026-11-22
    #[arg(long, value_name = "DAY")]
    day: Option<String>,
    /// Print one JSON object per line for each problem: file, problem
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    at: Where,
}

fn share(text: &str) -> Result<f64, &'static str> {
    text.parse().ok().filter(|share| (0.001..=1.0).contains(share)).ok_or("must be a number from 0.001 to 1")
}

pub(super) fn now(args: &NowArgs, global: &Global) -> Result<(), Failure> {
    block_on(async {
        let (settings, store) = args.at.open(global, args.url.as_ref())?;
        let url = url_of(&settings, &store).await?;
        let database = store.database_id().await?;
        let who = format!("howdah archive now, process {}", std::process::id());
        let archiver =
            Archiver::new(store, &url, settings.broker.archive_payloads, &who, &database).with_share(args.share);
        let days = archiver.days(args.include_today).await?;
        let mut output = Output::new();
        for day in &days {
            let Some(done) = archiver.archive(day).await? else {
                note(format!("{day} is being archived by another process"));
                continue;
            };
            if args.json {
                let took_ms = done.took.as_millis() as u64;
                let object =
                    serde_json::json!({ "day": day, "jobs": done.jobs, "bytes": done.bytes, "took_ms": took_ms });
                output.json(&object)?;
            } else {
                let bytes = size(done.bytes as usize);
                output.line(format_args!("{day}: archived {} jobs, {bytes}", done.jobs))?;
            }
            output.flush()?;
        }
        if days.is_empty() {
            note("no days to archive");
        }
        Ok(())
    })
}

pub(super) fn list(args: &ListArgs, global: &Global) -> Result<(), Failure> {
    block_on(async {
        let (_, store) = args.at.open(global, None)?;
        let days = store.archived_days(args.limit).await?;
        let mut output = Output::new();
        if args.files {
            for day in &days {
                let manifest: Option<Manifest> = serde_json::from_str(&day.manifest).ok();
                for part in manifest.into_iter().flat_map(|manifest| manifest.parts) {
                    output.line(format_args!("{}/{}", day.url.trim_end_matches('/'), part.path))?;
                }
            }
        } else if args.json {
            for day in &days {
                output.json(&serde_json::json!({
                    "day": day.day, "state": day.state, "jobs": day.jobs, "late": day.late, "files": day.files,
                    "bytes": day.bytes, "url": day.url, "archived_by": day.archived_by, "error": day.error,
                }))?;
            }
        } else if !days.is_empty() {
            let table = Table::new(&days)
                .left("DAY", |day| &day.day)
                .left("STATE", |day| &day.state)
                .right("JOBS", |day| day.jobs)
                .right("LATE", |day| day.late)
                .right("FILES", |day| day.files)
                .right("SIZE", |day| size(day.bytes.max(0) as usize))
                .left("ERROR", |day| summary(&day.error));
            output.line(table)?;
        }
        output.flush()?;
        if days.is_empty() {
            note("no archived days");
        }
        Ok(())
    })
}

pub(super) fn verify(args: &VerifyArgs, global: &Global) -> Result<(), Failure> {
    block_on(async {
        let (settings, store) = args.at.open(global, args.url.as_ref())?;
        let url = url_of(&settings, &store).await?;
        let place = Location::open(&url)?;
        let wanted = |day: &str| args.day.as_ref().is_none_or(|only| only == day);
        let mut output = Output::new();
        let (mut found_problems, mut files, mut jobs) = (0, 0, 0);
        let mut print = |file: &str, problem: &str| -> Result<(), Failure> {
            found_problems += 1;
            if args.json {
                output.json(&serde_json::json!({ "file": file, "problem": problem }))?;
            } else {
                output.line(format_args!("{file}: {problem}"))?;
            }
            output.flush()
        };
        let known = store.archived_days(i32::MAX).await?;
        for day in known.iter().filter(|day| wanted(&day.day) && day.url == url && !day.manifest.is_empty()) {
            let expected: Option<Manifest> = serde_json::from_str(&day.manifest).ok();
            let layout = Layout::new(expected.as_ref().map_or(0, |manifest| manifest.store));
            let name = layout.manifest(&day.day);
            let found = match howdah_archive::manifest_of(&place, &layout, &day.day).await {
                Ok(found) => found,
                Err(error) => {
                    print(&name, &error.to_string())?;
                    continue;
                }
            };
            let (Some(expected), Some(found)) = (expected, found) else {
                print(&name, "this manifest is missing, or its copy in the database is unreadable")?;
                continue;
            };
            if day.state != "publishing" && day.state != "rewriting" && expected != found {
                print(&name, "this manifest differs from its copy in the database")?;
            }
            for part in &found.parts {
                files += 1;
                jobs += part.sums.rows;
                if let Err(error) = howdah_archive::check(&place, &part.path, part).await {
                    print(&part.path, &error.to_string())?;
                }
            }
        }
        if found_problems > 0 {
            return Err(problems(found_problems));
        }
        note(format!("verified {files} files ({jobs} jobs)"));
        Ok(())
    })
}
