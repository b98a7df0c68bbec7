//! `howdah archive verify`: reads every file, and compares it with what was written.

use howdah_archive::{Layout, Manifest, Place};

use super::{Failure, Global, Where, url_of};
use crate::commands::{
    context::block_on,
    output::{Output, note},
};

/// Read the files of the archive, and compare them with what was written
///
/// Each file has to have the size, the hash, the number of jobs and the sums over ids and payload sizes that its manifest
/// says, and each manifest has to be the one that the database knows. Exit status 1: something differs.
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct Args {
    /// Verify this archive; unset: archive_url, or where brokers archive
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Verify this day only, such as 2026-11-22
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
        let place = Place::open(&url)?;
        let wanted = |day: &str| args.day.as_ref().is_none_or(|only| only == day);
        let mut output = Output::new();
        let (mut problems, mut files, mut jobs) = (0, 0, 0);
        let mut say = |file: &str, problem: &str| -> Result<(), Failure> {
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
            let layout = Layout::of(expected.as_ref().map_or(0, |manifest| manifest.store));
            let name = layout.manifest(&day.day);
            let found = match howdah_archive::manifest_of(&place, &layout, &day.day).await {
                Ok(found) => found,
                Err(error) => {
                    say(&name, &error.to_string())?;
                    continue;
                }
            };
            let (Some(expected), Some(found)) = (expected, found) else {
                say(&name, "is missing, or not what the database knows")?;
                continue;
            };
            if day.state != "publishing" && day.state != "rewriting" && expected != found {
                say(&name, "is another one than the database knows")?;
            }
            for part in &found.parts {
                files += 1;
                jobs += part.sums.rows;
                if let Err(error) = howdah_archive::check(&place, &part.path, part).await {
                    say(&part.path, &error.to_string())?;
                }
            }
        }
        match problems {
            0 => {
                note(format!("{files} files with {jobs} jobs are what was written"));
                Ok(())
            }
            1 => Err(Failure::failed("there is a problem")),
            problems => Err(Failure::failed(format!("there are {problems} problems"))),
        }
    })
}
