//! `howdah store open`: opens a store to new jobs.

use crate::commands::{
    context::Global,
    failure::Failure,
    output::{Output, note},
};

/// Open a store to new jobs again
///
/// Schedules of the store fire again. Each schedule handles missed times as defined in its policy.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah store open mail")]
pub(in crate::commands) struct Args {
    /// Name of the store, as shown by `howdah store list`
    #[arg(value_name = "NAME")]
    name: String,
    /// Print the store as one JSON object: the message Store
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| {
        let store = client.open_store(&args.name).await?;
        if args.json {
            let mut output = Output::new();
            output.message("Store", &store)?;
            return output.flush();
        }
        note(format!("store {} is open to new jobs", args.name));
        Ok(())
    })
}
