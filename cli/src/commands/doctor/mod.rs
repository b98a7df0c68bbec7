//! `howdah doctor`: says what to change on Postgres and on this machine.

mod finding; // what is found
mod machine; // clock, certificate, files
mod postgres; // settings, connections, rights
mod tables; // dead rows, snapshots, bloat, partitions, schedules

use std::time::{Instant, SystemTime};

use super::{
    broker_args::{BrokerArgs, ConfigArgs, DatabaseArgs, with_database},
    context::{Global, block_on, start_logging},
    failure::Failure,
    output::{Output, note},
};
use finding::{Finding, Level};
use howdah_server::{config::Config, store::Store};

/// Examine the database and this machine, and say what to change
///
/// It reads what a broker with the same flags would use: settings and statistics of Postgres, dead rows, held snapshots,
/// unused space, partitions, schedules, rights of the role, connections, the clock, certificates, limits on files. It
/// changes nothing. A problem endangers jobs or stops them; an advice makes things better. Exit status 1: there are
/// problems.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah doctor --database-url postgres://howdah@db.internal/app
  howdah doctor --database-url 'postgres://howdah@/howdah?host=%2Ftmp%2F…'   # of `howdah dev`: the URL in its ready line
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
    let mut flags = args.database.flags();
    flags.extend(args.broker.flags());
    let settings = with_database(args.config.load(global, flags)?)?;
    start_logging(&settings.log, "off")?;
    block_on(async {
        let mut findings = examine(&settings.broker).await?;
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
        1 => Err(Failure::failed("there is a problem")),
        problems => Err(Failure::failed(format!("there are {problems} problems"))),
    }
}

async fn examine(config: &Config) -> Result<Vec<Finding>, Failure> {
    let store = Store::new(config).map_err(Failure::usage)?;
    // The first statement connects; the second one shows how long an answer takes.
    store.examine().await.map_err(|error| {
        let missing = error.to_string().contains("does not exist");
        let failure = Failure::from(error);
        if missing { failure.followed_by("make the schema with `howdah migrate`, or start a broker") } else { failure }
    })?;
    let (asked, began) = (SystemTime::now(), Instant::now());
    let facts = store.examine().await?;
    let took = began.elapsed();
    let (health, upkeep) = (store.storage_health().await?, store.upkeep(1).await?);
    let mut findings = postgres::check(&facts, config);
    findings.extend(tables::check(&facts, &health, &upkeep));
    findings.extend(machine::clock(facts.now_us, asked, took));
    findings.extend(machine::certificate(config, asked));
    findings.extend(machine::files(config));
    Ok(findings)
}
