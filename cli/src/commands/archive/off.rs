//! `howdah archive off`: lets brokers drop days that are not archived.

use howdah_engine::store::Actor;

use super::{Failure, Global, Where};
use crate::commands::{
    context::block_on,
    output::{Output, note},
};

/// Let brokers drop days that are not archived
///
/// Once a broker has started with an archive_url, no broker of this database drops an unarchived day, whatever its own settings.
/// This command ends that. Remove archive_url from all brokers first: a broker that still has it turns the archive on again when it
/// starts. Existing files stay.
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
            Some(url) => output.line(format_args!("brokers may now drop days that are not archived in {url}"))?,
            None => note("the archive is already off"),
        }
        output.flush()
    })
}
