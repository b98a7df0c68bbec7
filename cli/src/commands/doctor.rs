//! `howdah doctor`: recommends changes to Postgres and to this machine.

use std::time::SystemTime;

use howdah_engine::{
    doctor::{Finding, Level, examine, examine_start},
    store::Store,
};
use howdah_server::tls;

use super::{
    broker_args::{BrokerArgs, ConfigArgs, DatabaseArgs, with_database},
    context::{Global, block_on, start_logging},
    failure::{Failure, problems},
    output::{Output, note},
};

/// Examine the database and this machine, and recommend changes
///
/// Checks the environment of a broker with the same flags: settings and statistics of Postgres, dead rows, held snapshots,
/// unused space, partitions, schedules, owners and rights, collations, sequences, connections, the clock, certificates, and
/// limits on open files. Also enqueues a job and rolls it back. A finding is a problem, which endangers or stops jobs, or
/// advice for an improvement. The exit status is 1 if there are problems.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah doctor --database-url postgres://howdah@db.internal/app
  howdah doctor --database-url 'postgres://howdah@/howdah?host=%2Ftmp%2F…'   # for `howdah dev`: the URL in its ready line
  howdah doctor --config /etc/howdah/howdah.toml --json | jq -r 'select(.level == \"problem\").change'")]
pub(super) struct Args {
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(flatten)]
    broker: BrokerArgs,
    #[command(flatten)]
    config: ConfigArgs,
    /// Print one JSON object per line for each finding: level, check, found, change
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let flags = [args.database.flags(), args.broker.flags()].concat();
    let settings = with_database(args.config.load(global, flags)?)?;
    start_logging(&settings.log, "off")?;
    block_on(async {
        let store = Store::for_command(&settings.broker).map_err(Failure::usage)?;
        let mut findings = examine(&store, &settings.broker).await?;
        findings.extend(examine_start(&store, &settings.broker).await);
        findings.extend(tls::examine(&settings.broker, SystemTime::now()));
        findings.sort_by_key(|finding| finding.level);
        print(&findings, args.json)
    })
}

fn print(findings: &[Finding], json: bool) -> Result<(), Failure> {
    let mut output = Output::new();
    for finding in findings {
        if json {
            output.json(finding)?;
        } else {
            output.line(finding.text())?;
        }
    }
    output.flush()?;
    if findings.is_empty() {
        note("nothing to change");
    }
    match findings.iter().filter(|finding| finding.level == Level::Problem).count() {
        0 => Ok(()),
        count => Err(problems(count)),
    }
}
