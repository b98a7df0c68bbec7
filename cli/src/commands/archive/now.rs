//! `howdah archive now`: archives complete days without a broker.

use howdah_engine::archive::Archiver;

use super::{Failure, Global, Where, url_of};
use crate::commands::{
    context::block_on,
    output::{Output, note},
    text::size,
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
pub(in crate::commands) struct Args {
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

fn share(text: &str) -> Result<f64, &'static str> {
    text.parse().ok().filter(|share| (0.001..=1.0).contains(share)).ok_or("must be a number from 0.001 to 1")
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
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
