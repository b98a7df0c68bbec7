//! `howdah archive off`: lets brokers drop days that are not archived.

use howdah_server::store::Actor;

use super::{Failure, Global, Where};
use crate::commands::{
    context::block_on,
    output::{Output, note},
};

/// Let brokers drop days that are not archived
///
/// Once a broker was started with an archive_url, no broker of this database drops a day that is not archived, whatever its
/// own settings are. This ends that. Do it after archive_url was taken from all brokers: one that still has it turns the
/// archive on again when it starts. Files stay where they are.
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct Args {
    #[command(flatten)]
    at: Where,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    block_on(async {
        let (_, store) = args.at.open(global, None)?;
        let mut output = Output::new();
        let mut by = Actor::of_session("howdah archive off");
        by.reason = global.reason.clone().unwrap_or_default();
        match store.clear_archive_target(&by).await? {
            Some(url) => output.line(format_args!("days are dropped whether they are archived in {url} or not"))?,
            None => note("there was no archive"),
        }
        output.flush()
    })
}
