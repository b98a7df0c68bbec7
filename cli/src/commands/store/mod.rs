//! `howdah store …`: lists, adds, closes and opens the stores of a broker, which are its databases.

mod change; // open and drain
mod configured; // add and reload, which follow the broker's configuration

use howdah_client::proto::{ReadReplica, Store, StoreState, TaskTypeCounts};
use howdah_core::logging::escaped;

use super::{
    context::Global,
    failure::Failure,
    output::{self, note},
    table::Table,
    text,
};

subcommands! { |args, global|
    List(ListArgs) => list(&args, global),
    Add(configured::AddArgs) => configured::add(&args, global),
    Reload(configured::ReloadArgs) => configured::reload(&args, global).map(drop),
    Drain(change::DrainArgs) => change::drain(&args, global),
    Open(change::OpenArgs) => change::open(&args, global),
}

/// List the stores of the broker: state, number, jobs
///
/// A store is a database that the broker serves. A broker with one database has one store, named default unless configured
/// otherwise. The number of a store is the prefix of its job ids.
///
/// STATE is ready (accepts new jobs), closed (accepts no new jobs, see howdah store drain; existing jobs continue),
/// unreachable (the broker cannot reach the database) or skipped (the database matches a pattern, and the broker cannot serve it,
/// for the reason shown below). Numbers of jobs are from the broker's last count.
///
/// READ REPLICA is the lag of the replica that the broker uses for lists and searches. If the replica does not answer or lags too
/// far behind, the broker reads from the primary.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah store list
  howdah store list --json | jq 'select(.state == \"STORE_STATE_UNREACHABLE\").name'")]
pub(in crate::commands) struct ListArgs {
    /// Print one JSON object per store: the message Store
    #[arg(long)]
    json: bool,
}

fn list(args: &ListArgs, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| {
        let stores = client.list_stores(global.in_store.as_deref().unwrap_or_default()).await?;
        output::list(args.json, "Store", &stores, || table(&stores))?;
        for store in stores.iter().filter(|store| store.state() == StoreState::Skipped && !args.json) {
            note(format!("skipped {}: {}", store.name, store.problem));
        }
        Ok(())
    })
}

fn table(stores: &[Store]) -> Table<'_, Store> {
    let count = |store: &Store, count: fn(TaskTypeCounts) -> i64| {
        let counts = store.counts.filter(|_| store.state() != StoreState::Unreachable);
        counts.map_or_else(|| "-".into(), |counts| count(counts).to_string())
    };
    Table::new(stores)
        .left("STORE", |store| &store.name)
        .right("NUMBER", |store| store.number)
        .left("STATE", state)
        .right("READY", |store| count(store, |counts| counts.ready))
        .right("LEASED", |store| count(store, |counts| counts.leased))
        .right("SCHEDULED", |store| count(store, |counts| counts.scheduled))
        .right("WAITING", |store| count(store, |counts| counts.waiting))
        .right("DEAD", |store| count(store, |counts| counts.dead))
        .left("READ REPLICA", |store| store.read_replica.as_ref().map_or_else(|| "-".into(), replica))
        .left("CLOSED", closed)
}

/// State of a store in one word.
fn state(store: &Store) -> &'static str {
    match store.state() {
        StoreState::Unspecified => "unknown",
        StoreState::Ready => "ready",
        StoreState::Unreachable => "unreachable",
        StoreState::Closed => "closed",
        StoreState::Skipped => "skipped",
    }
}

/// Time of the close, and the principal that closed the store. Empty for an open store.
fn closed(store: &Store) -> String {
    let Some(time) = text::timestamp(store.close_time.as_ref()) else { return String::new() };
    let by = match escaped(&store.closed_by) {
        by if by.is_empty() => String::new(),
        by => format!(" by {by}"),
    };
    format!("since {}{by}", text::time(time))
}

/// Lag of the replica, and whether the broker reads from it.
fn replica(replica: &ReadReplica) -> String {
    let lag = text::duration(replica.lag.as_ref()).map(|lag| format!("{} behind", text::short(lag)));
    match (replica.used, lag) {
        (true, lag) => lag.unwrap_or_default(),
        (false, Some(lag)) => format!("not read: {lag}, or unreachable"),
        (false, None) => "not read: unreachable".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_are_listed_in_columns() {
        let counts = Some(TaskTypeCounts { ready: 12, dead: 1, ..TaskTypeCounts::default() });
        let lag = Some(prost_types::Duration { seconds: 0, nanos: 812_000_000 });
        let shop = Store {
            name: "shop".into(),
            state: StoreState::Ready as i32,
            counts,
            read_replica: Some(ReadReplica { used: true, lag }),
            ..Store::default()
        };
        let mail = Store { name: "mail".into(), number: 1, state: StoreState::Unreachable as i32, ..Store::default() };
        let expected = "\
STORE  NUMBER  STATE        READY  LEASED  SCHEDULED  WAITING  DEAD  READ REPLICA  CLOSED
shop        0  ready           12       0          0        0     1  812ms behind
mail        1  unreachable      -       -          -        -     -  -";
        assert_eq!(table(&[shop, mail]).to_string(), expected);
    }
}
