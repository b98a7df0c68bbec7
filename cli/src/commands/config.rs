//! `howdah config`: prints the effective configuration.

use howdah_core::config::as_toml;

use super::{
    broker_args::{BrokerArgs, ConfigArgs, DatabaseArgs, StoreArgs},
    context::Global,
    failure::Failure,
    output::Output,
};

/// Print the effective configuration as a file, without passwords
///
/// Checks flags, variables and the file. Prints every key with its meaning, variable and value. Without flags, variables and a
/// file it prints the defaults, as a template. `howdah settings` shows the limits of the cluster, which are not in the
/// configuration.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah config > howdah.toml                  # every key, with its default
  howdah config --config howdah.toml           # check a file and print the result
  HOWDAH_POOL_SIZE=20 howdah config | grep pool_size")]
pub(super) struct Args {
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(flatten)]
    stores: StoreArgs,
    #[command(flatten)]
    broker: BrokerArgs,
    #[command(flatten)]
    config: ConfigArgs,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let flags = [args.database.flags(), args.stores.flags(), args.broker.flags()].concat();
    let settings = args.config.load(global, flags)?;
    let mut output = Output::new();
    output.line(as_toml(&settings).trim_end())?;
    output.flush()
}
