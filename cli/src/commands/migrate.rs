//! `howdah migrate`: brings the schema up to date.

use super::{
    broker_args::{ConfigArgs, DatabaseArgs, with_database},
    context::{Global, block_on, start_logging},
    failure::Failure,
    output::Output,
};
use howdah_server::store::{Actor, Store};

/// The number of roles.
const ROLES: usize = 3;

/// Bring the schema of a database up to date
///
/// Safe to run at any time and from several places at once: a lock on a table keeps them apart.
/// `howdah serve` does the same at its start, unless told not to.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah migrate --database-url postgres://owner@db.internal/app
  howdah migrate --schema jobs --json
  howdah migrate --roles
  howdah migrate --new-identity                     # this database was copied from another")]
pub(super) struct Args {
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(flatten)]
    config: ConfigArgs,
    /// Also create the roles howdah_producer, howdah_worker and howdah_reader, for clients that use SQL, and grant them
    /// their rights in the schema (docs/reference/sql.md); needs CREATEROLE unless they exist
    #[arg(long)]
    roles: bool,
    /// The database is a copy, and its brokers run beside those of the original: give it an identity of its own, so that
    /// clients notice when they are given brokers of both. For brokers that are stopped
    #[arg(long)]
    new_identity: bool,
    /// Print one JSON object: schema, version, created, applied, replaced, newer, roles, new_identity
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let settings = with_database(args.config.load(global, args.database.flags())?)?;
    start_logging(&settings.log, "warn")?;
    block_on(async {
        let schema = &settings.broker.schema;
        let store = Store::new(&settings.broker).map_err(Failure::usage)?;
        let report = store.migrate().await?;
        let roles = if args.roles { store.create_roles().await? } else { Vec::new() };
        let identity = if args.new_identity {
            Some(store.new_identity(&Actor::of_session("howdah migrate --new-identity")).await?)
        } else {
            None
        };
        let mut output = Output::new();
        if args.json {
            let object = serde_json::json!({
                "schema": schema, "version": report.version, "created": report.created, "applied": report.applied,
                "replaced": report.replaced, "newer": report.newer, "roles": roles,
                "new_identity": identity,
            });
            output.json(&object)?;
        } else {
            if report.created {
                output.line(format_args!("created schema {schema}"))?;
            }
            for name in &report.applied {
                output.line(format_args!("applied {name}"))?;
            }
            for part in &report.replaced {
                output.line(format_args!("replaced the {part} of schema {schema}"))?;
            }
            if let Some(release) = &report.newer {
                output.line(format_args!("the functions are those of the newer release {release}; left unchanged"))?;
            }
            output.line(format_args!("schema {schema} is up to date, its tables at version {}", report.version))?;
            for name in &roles {
                output.line(format_args!("role {name} has its rights in {schema}"))?;
            }
        }
        if let (Some(identity), false) = (&identity, args.json) {
            output.line(format_args!("the identity of the database is now {identity}"))?;
        }
        output.flush()?;
        if args.roles && roles.len() < ROLES {
            return Err(Failure::usage(
                "not all roles exist, and this login may not create them: see the log, or docs/reference/sql.md",
            ));
        }
        Ok(())
    })
}
