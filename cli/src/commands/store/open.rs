//! `howdah store open`: a store takes new jobs again.

use super::shown;
use crate::commands::{
    context::Global,
    failure::Failure,
    output::{Output, note},
};

/// Open a store to new jobs again
///
/// Schedules that have rested go on. What they do about the times that they have missed is in their definitions.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah store open mail")]
pub(in crate::commands) struct Args {
    /// The store, as `howdah store list` shows it
    #[arg(value_name = "NAME")]
    name: String,
    /// Print the store as a JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| {
        let store = client.open_store(&args.name).await?;
        if args.json {
            let mut output = Output::new();
            output.json(&shown::json(&store))?;
            return output.flush();
        }
        note(format!("store {} is open to new jobs", args.name));
        Ok(())
    })
}
