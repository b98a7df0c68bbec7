//! `howdah store list`: lists the stores with their states and numbers of jobs.

use howdah_client::proto::{Store, StoreState};
use howdah_core::logging::escaped;

use super::shown;
use crate::commands::{
    context::Global,
    failure::Failure,
    output::{Output, note},
    table::{Align, Table},
};

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
pub(in crate::commands) struct Args {
    /// Print one JSON object per store: the message Store
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| {
        let stores = client.list_stores(global.in_store.as_deref().unwrap_or_default()).await?;
        let mut output = Output::new();
        if args.json {
            output.messages("Store", &stores)?;
        } else {
            output.line(table(&stores))?;
        }
        output.flush()?;
        for store in stores.iter().filter(|store| store.state() == StoreState::Skipped && !args.json) {
            note(format!("skipped {}: {}", store.name, store.problem));
        }
        Ok(())
    })
}

fn table(stores: &[Store]) -> Table<10> {
    let right = |name| (name, Align::Right);
    let mut table = Table::new([
        ("STORE", Align::Left),
        right("NUMBER"),
        ("STATE", Align::Left),
        right("READY"),
        right("LEASED"),
        right("SCHEDULED"),
        right("WAITING"),
        right("DEAD"),
        ("READ REPLICA", Align::Left),
        ("CLOSED", Align::Left),
    ]);
    for store in stores {
        let counts = store.counts.filter(|_| store.state() != StoreState::Unreachable);
        let count = |count: Option<i64>| count.map_or_else(|| "-".into(), |count| count.to_string());
        table.row([
            escaped(&store.name).into_owned(),
            store.number.to_string(),
            shown::state(store).into(),
            count(counts.map(|counts| counts.ready)),
            count(counts.map(|counts| counts.leased)),
            count(counts.map(|counts| counts.scheduled)),
            count(counts.map(|counts| counts.waiting)),
            count(counts.map(|counts| counts.dead)),
            store.read_replica.as_ref().map_or_else(|| "-".into(), shown::replica),
            shown::closed(store),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use howdah_client::proto::{ReadReplica, TaskTypeCounts};

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
