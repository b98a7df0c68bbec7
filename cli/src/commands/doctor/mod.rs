//! `howdah doctor`: recommends changes to Postgres and to this machine.

mod connections; // limits of the role, the database and the server
mod finding; // results of the checks
mod machine; // clock, certificate, files
mod postgres; // settings, statistics, replication slots
mod schema; // owner, rights, collation, sequences, replica identities
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

/// Examine the database and this machine, and recommend changes
///
/// Checks the environment of a broker with the same flags: settings and statistics of Postgres, dead rows, held snapshots, unused
/// space, partitions, schedules, owners and rights, collations, sequences, connections, the clock, certificates, and limits on
/// open files. Changes nothing. A problem endangers jobs or stops them. An advice recommends an improvement. The exit status is 1
/// if there are problems.
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
        1 => Err(Failure::failed("found 1 problem")),
        problems => Err(Failure::failed(format!("found {problems} problems"))),
    }
}

async fn examine(config: &Config) -> Result<Vec<Finding>, Failure> {
    let store = Store::new(config).map_err(Failure::usage)?;
    // The first statement opens the connection, so the duration of the second one is the response time.
    store.examine().await?;
    let (requested_at, began) = (SystemTime::now(), Instant::now());
    let facts = store.examine().await?;
    let took = began.elapsed();
    let mut findings = postgres::check(&facts);
    findings.extend(connections::check(&store.connection_limits().await?, config));
    if facts.has_schema {
        let schema = store.examine_schema().await?;
        findings.extend(schema::check(&facts, &schema, config));
        findings.extend(tables::check(&schema, &store.storage_health().await?, &store.upkeep(1).await?));
    } else {
        findings.push(Finding::advice(
            "schema",
            format!("the database has no schema {} yet", config.schema),
            "run howdah migrate, or start a broker: both create it",
        ));
    }
    findings.extend(machine::clock(facts.now_us, requested_at, took));
    findings.extend(machine::certificate(config, requested_at));
    findings.extend(machine::files(config));
    Ok(findings)
}
