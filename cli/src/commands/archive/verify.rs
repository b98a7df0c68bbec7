//! `howdah archive verify`: checks every file against its manifest.

use howdah_archive::{Layout, Location, Manifest};

use super::{Failure, Global, Where, url_of};
use crate::commands::{
    context::block_on,
    output::{Output, note},
};

/// Check the files of the archive against their manifests
///
/// Each file must have the size, hash, number of jobs, and sums over ids and payload sizes of its manifest entry. Each manifest
/// must be equal to the copy in the database. The exit status is 1 if anything differs.
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct Args {
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

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    block_on(async {
        let (settings, store) = args.at.open(global, args.url.as_ref())?;
        let url = url_of(&settings, &store).await?;
        let place = Location::open(&url)?;
        let wanted = |day: &str| args.day.as_ref().is_none_or(|only| only == day);
        let mut output = Output::new();
        let (mut problems, mut files, mut jobs) = (0, 0, 0);
        let mut print = |file: &str, problem: &str| -> Result<(), Failure> {
            problems += 1;
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
        match problems {
            0 => {
                note(format!("verified {files} files ({jobs} jobs)"));
                Ok(())
            }
            1 => Err(Failure::failed("found 1 problem")),
            problems => Err(Failure::failed(format!("found {problems} problems"))),
        }
    })
}
