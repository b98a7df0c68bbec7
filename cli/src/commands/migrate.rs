//! `howdah migrate`: migrates the schema.

use howdah_core::{
    config::{Config, DEFAULT_STORE},
    job::StoreNumber,
};
use howdah_engine::store::{Actor, MigrationReport};

use super::{
    broker_args::{ConfigArgs, DatabaseArgs, StoreArgs, with_database, with_databases},
    context::{Global, block_on, start_logging},
    failure::Failure,
    output::Output,
};
use howdah_server::stores::{self, ReadyStore};

/// Number of roles that `--roles` creates.
const ROLES: usize = 3;

/// Migrate the schema of a database to the current version
///
/// Safe to run at any time and concurrently, because a table lock serializes migrations. `howdah serve` also migrates at its
/// start, unless --no-migrate is given.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah migrate --database-url postgres://owner@db.internal/app
  howdah migrate --schema jobs --json
  howdah migrate --roles
  howdah migrate --store shop=postgres://owner@a.internal/shop --store mail=postgres://owner@b.internal/mail
  howdah migrate --new-identity                     # this database was copied from another")]
pub(super) struct Args {
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(flatten)]
    stores: StoreArgs,
    #[command(flatten)]
    config: ConfigArgs,
    /// Also create the roles howdah_producer, howdah_worker and howdah_reader, for clients that use SQL, and grant them
    /// their rights in the schema (docs/reference/sql.md); needs CREATEROLE unless they exist
    #[arg(long)]
    roles: bool,
    /// Set the number of this store, 0 to 89, which is the prefix of its job ids; only for a database without jobs and without
    /// running brokers. With several stores, new stores get a free number
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(..=i64::from(StoreNumber::MOST)))]
    store_number: Option<u16>,
    /// Give a copied database a new identity, so that clients do not confuse its brokers with brokers of the original. Stop the
    /// brokers of the copy first
    #[arg(long)]
    new_identity: bool,
    /// Print one JSON object per store: store, store_number, schema, version, created, applied, replaced, newer,
    /// rights_set, rights_left, roles, new_identity
    #[arg(long)]
    json: bool,
}

/// Result of the migration of one store.
struct Done {
    name: String,
    schema: String,
    number: StoreNumber,
    report: MigrationReport,
    roles: Vec<String>,
    identity: Option<String>,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let flags = [args.database.flags(), args.stores.flags()].concat();
    let settings = with_databases(args.config.load(global, flags)?)?;
    let settings = if args.new_identity || args.store_number.is_some() { with_database(settings)? } else { settings };
    start_logging(&settings.log, "warn")?;
    let config = configured(args, settings.broker);
    block_on(async {
        let ready = stores::prepare(&config, "howdah migrate").await.map_err(failure)?;
        let several = ready.len() > 1;
        let mut output = Output::new();
        let mut lacks_roles = false;
        for store in ready {
            let done = finish(args, store).await?;
            lacks_roles |= args.roles && done.roles.len() < ROLES;
            if args.json {
                print_json(&mut output, &done)?;
            } else {
                print(&mut output, &done, several || args.store_number.is_some())?;
            }
        }
        output.flush()?;
        if lacks_roles {
            return Err(Failure::usage(
                "some roles are missing, and this database user may not create them: create them as in docs/reference/sql.md; \
                 the log names them",
            ));
        }
        Ok(())
    })
}

/// Returns the configuration with migrations enabled, and with the value of `--store-number` for its only store.
fn configured(args: &Args, mut config: Config) -> Config {
    config.migrate = true;
    if let Some(number) = args.store_number {
        config.stores = config.each_store();
        config.stores.iter_mut().for_each(|store| store.number = StoreNumber::new(number));
    }
    config
}

fn failure(error: stores::StoresError) -> Failure {
    match error {
        stores::StoresError::Config(problem) => Failure::usage(problem),
        stores::StoresError::Store { name, error } if name == DEFAULT_STORE => error.into(),
        error @ stores::StoresError::NoNotifications(_) => Failure::usage(error.to_string()),
        stores::StoresError::Store { name, error } => Failure::from(error).within(&format!("store {name}")),
    }
}

/// Creates roles and a new identity, if requested.
async fn finish(args: &Args, ready: ReadyStore) -> Result<Done, Failure> {
    let ReadyStore { name, config, store, report, facts } = ready;
    let roles = if args.roles { store.create_roles().await? } else { Vec::new() };
    let identity = if args.new_identity {
        Some(store.new_identity(&Actor::of_session("howdah migrate --new-identity")).await?)
    } else {
        None
    };
    let report = report.unwrap_or_default();
    Ok(Done { name, schema: config.schema, number: facts.number, report, roles, identity })
}

fn print_json(output: &mut Output, done: &Done) -> Result<(), Failure> {
    let Done { name, schema, number, report, roles, identity } = done;
    output.json(&serde_json::json!({
        "store": name, "store_number": number.get(), "schema": schema, "version": report.version,
        "created": report.created, "applied": report.applied, "replaced": report.replaced, "newer": report.newer,
        "rights_set": report.rights_set, "rights_left": report.rights_left,
        "roles": roles, "new_identity": identity,
    }))
}

fn print(output: &mut Output, done: &Done, says_number: bool) -> Result<(), Failure> {
    let Done { name, schema, number, report, roles, identity } = done;
    if says_number {
        output.line(format_args!("store {name} has the number {number}"))?;
    }
    if report.created {
        output.line(format_args!("created schema {schema}"))?;
    }
    for name in &report.applied {
        output.line(format_args!("applied {name}"))?;
    }
    for part in &report.replaced {
        output.line(format_args!("replaced the {part} of schema {schema}"))?;
    }
    if report.rights_set > 0 {
        output.line(format_args!("set rights or owners of {} functions and tables", report.rights_set))?;
    }
    for left in &report.rights_left {
        output.line(format_args!("{left}; howdah doctor shows how to revoke them"))?;
    }
    if let Some(release) = &report.newer {
        output.line(format_args!("the functions are from the newer release {release} and were left unchanged"))?;
    }
    output.line(format_args!("schema {schema} is up to date, its tables at version {}", report.version))?;
    for name in roles {
        output.line(format_args!("role {name} has the required rights in schema {schema}"))?;
    }
    if let Some(identity) = identity {
        output.line(format_args!("the identity of the database is now {identity}"))?;
    }
    Ok(())
}
