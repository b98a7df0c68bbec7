//! `howdah bench`: measures throughput and latency, and compares them with Postgres alone.

use std::io::ErrorKind;

use howdah_bench::Error;
use howdah_client::Client;

use super::{
    context::{Global, block_on},
    failure::Failure,
    signals::Signals,
};
use crate::postgres::tied;

/// Measure throughput and latency, and compare them with Postgres alone
///
/// Starts brokers and a private Postgres (durable: fsync is on), and calls the brokers over gRPC. Before and between the
/// workloads it measures a yardstick: the three statements of a job, back to back on two connections, without a broker. The exit
/// status is 1 if a job was lost, duplicated or unexpected. --server uses running brokers, and --database-url uses a running
/// Postgres.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah bench                                    # cycle, drain, rates, single: about seven minutes
  howdah bench cycle --seconds 10
  howdah bench all --report bench.html
  howdah bench cycle --json | jq .of_yardstick
  howdah bench cycle --database-url postgres://howdah@db.internal/scratch   # starts brokers on it")]
pub(super) struct Args {
    #[command(flatten)]
    bench: howdah_bench::Args,
}

pub(super) fn run(args: Args, global: &Global) -> Result<(), Failure> {
    global.start_logging("warn")?;
    let given = global.server.split(',').map(str::trim).filter(|server| !server.is_empty());
    let servers: Vec<String> = if global.server_is_flag { given.map(str::to_owned).collect() } else { Vec::new() };
    // Brokers that this command starts serve without TLS.
    let client = if servers.is_empty() { Client::builder() } else { global.builder()? };
    block_on(async {
        let signals = Signals::<1>::catch()?;
        let done = Box::pin(howdah_bench::run(args.bench, servers, client, tied, signals.stages[0].cancelled())).await;
        done.map_err(|error| match error {
            Error::Usage(message) => Failure::usage(message),
            Error::Broker(error) => error.into(),
            Error::Output { error, .. } if error.kind() == ErrorKind::BrokenPipe => Failure::output_closed(),
            Error::Interrupted => Failure::interrupted(signals.exit_code(), None),
            error => Failure::failed(error.to_string()),
        })
    })
}
