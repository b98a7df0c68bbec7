//! `howdah config`: prints the configuration in force.

use super::{
    broker_args::{BrokerArgs, ConfigArgs, DatabaseArgs, StoreArgs},
    context::Global,
    failure::Failure,
    output::Output,
};
use howdah_server::config::as_toml;

/// Print the configuration in force as a file, without passwords
///
/// Checks flags, variables and file, and prints every key with its meaning, its variable and its
/// value. Without any of them it prints the defaults, as a file to start from. Limits of the cluster are
/// not in it: `howdah settings` shows them.
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
    let mut flags = args.database.flags();
    flags.extend(args.stores.flags());
    flags.extend(args.broker.flags());
    let settings = args.config.load(global, flags)?;
    let mut output = Output::new();
    output.line(as_toml(&settings).trim_end())?;
    output.flush()
}
