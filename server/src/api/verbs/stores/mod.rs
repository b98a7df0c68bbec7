//! Calls for operators about stores. The calls work in the same way with one store and with several.

mod close;
mod list;
mod reload;
pub(super) mod move_type;

pub(crate) use close::{DrainStore, OpenStore};
pub(crate) use list::ListStores;
pub(crate) use reload::ReloadStores;

use std::{sync::Arc, time::Duration};

use howdah_core::error::Error;
use howdah_engine::{operate::stores::StoreView, store::ReplicaState};
use howdah_proto::v1;

use super::Call;
use crate::{
    api::render::{counts, duration, time},
    stores::{ConfiguredStore, SkippedStore},
};

/// Time limit for a store to report its state.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the store with this name. An empty name means the only store.
fn named<'a>(call: &'a Call, name: &str) -> Result<&'a ConfiguredStore, Error> {
    match call.stores.all() {
        [only] if name.is_empty() => Ok(only),
        stores => stores.iter().map(Arc::as_ref).find(|store| store.name() == name).ok_or_else(|| {
            let names: Vec<&str> = stores.iter().map(|store| store.name()).collect();
            let names = names.join(", ");
            if name.is_empty() {
                Error::invalid("store", format!("is empty; name one of {names}"))
            } else {
                Error::NotFound(format!("there is no store {name:?}; this broker serves {names}"))
            }
        }),
    }
}

/// Returns the state of a store. A store that does not answer in time is reported as unreachable, with its number if known.
async fn state(store: &ConfiguredStore) -> v1::Store {
    let looked = async { store.reachable()?.reachable()?.operator.store_view().await };
    let view: Option<StoreView> = tokio::time::timeout(TIMEOUT, looked).await.ok().and_then(Result::ok);
    let name = store.name().to_owned();
    let Some(view) = view else {
        return v1::Store {
            name,
            number: store.number().map(|number| number.get().into()).unwrap_or_default(),
            state: v1::StoreState::Unreachable as i32,
            ..v1::Store::default()
        };
    };
    let state = if view.closed.is_some() { v1::StoreState::Closed } else { v1::StoreState::Ready };
    v1::Store {
        name,
        number: view.number.get().into(),
        state: state as i32,
        close_time: view.closed.as_ref().map(|closed| time(closed.since)),
        closed_by: view.closed.map(|closed| closed.by).unwrap_or_default(),
        counts: view.counted.map(|(all, _)| counts(all)),
        counts_age: view.counted.map(|(_, age)| duration(age)),
        has_unfinished_jobs: view.has_unfinished,
        read_replica: view.replica.map(replica),
        problem: String::new(),
    }
}

/// Returns the state of a database that matches a pattern and cannot be served.
fn skipped(store: SkippedStore) -> v1::Store {
    let SkippedStore { name, problem } = store;
    v1::Store { name, problem, state: v1::StoreState::Skipped as i32, ..v1::Store::default() }
}

fn replica(state: ReplicaState) -> v1::ReadReplica {
    v1::ReadReplica { used: state.is_read, lag: state.lag.map(duration) }
}
