//! `howdah store reload`: makes the broker add and remove stores, as its configuration now says.

use howdah_client::proto::ReloadStoresResponse;

use crate::commands::{
    context::Global,
    failure::Failure,
    output::{Output, note},
};

/// Add and remove stores of the broker, as its configuration now says
///
/// The broker at --server reads its configuration again: its file, and the file that HOWDAH_STORES_FILE names. It migrates and
/// serves new stores. A store that is no longer configured must be closed (`howdah store drain`) or unreachable. Jobs that run are
/// not affected. The first store, and the settings of the other stores, change only with a restart. SIGHUP does the same.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah store reload
  howdah --server http://broker2.internal:7432 store reload")]
pub(in crate::commands) struct Args {
    /// Print the result as one JSON object: the message ReloadStoresResponse
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<ReloadStoresResponse, Failure> {
    global.with_client(async |client| {
        let reloaded = client.reload_stores().await?;
        if args.json {
            let mut output = Output::new();
            output.message("ReloadStoresResponse", &reloaded)?;
            output.flush()?;
            return Ok(reloaded);
        }
        for name in &reloaded.added {
            note(format!("added store {name}"));
        }
        for name in &reloaded.removed {
            note(format!("removed store {name}"));
        }
        for name in &reloaded.changed {
            note(format!("the settings of store {name} have changed; restart the broker to apply them"));
        }
        for name in &reloaded.skipped {
            note(format!("skipped {name}, which matches a pattern and cannot be served; `howdah store list` says why"));
        }
        if reloaded == ReloadStoresResponse::default() {
            note("the stores have not changed");
        }
        Ok(reloaded)
    })
}
