//! What a broker needs of its database before it starts.

use std::time::Duration;

use super::{ReadyStore, StoresError};
use crate::{
    config::WakeMode,
    store::{Store, StoreError, unless_locked},
};

/// How long the test of LISTEN may take.
const LISTEN_PROBE: Duration = Duration::from_secs(15);

/// Says what the migration did, and makes what the first jobs need.
pub(super) async fn open(ready: &ReadyStore) -> Result<(), StoresError> {
    let (name, store) = (&ready.name, &ready.store);
    if let Some(facts) = &ready.facts {
        tracing::info!(store = %name, number = %facts.number, "store");
    }
    if let Some(report) = &ready.report {
        if report.created {
            tracing::info!(schema = store.schema(), "created");
        }
        for name in &report.applied {
            tracing::info!(migration = %name, "applied");
        }
        for part in &report.replaced {
            tracing::info!(part = %part, "replaced");
        }
        if let Some(release) = &report.newer {
            tracing::info!(%release, "the schema's functions are of a newer release; leaving them unchanged");
        }
    }
    let of = |error| StoresError::Store { name: name.clone(), error };
    // The first ack needs the partition of today.
    unless_locked("the partitions of today", || store.make_partitions(1)).await.map_err(of)?;
    if ready.config.wake == WakeMode::Listen && !hears_itself(store).await.map_err(of)? {
        return Err(StoresError::NoNotifications(name.clone()));
    }
    Ok(())
}

/// Notifies ourselves: behind a transaction pooler LISTEN succeeds, but no notification ever arrives.
async fn hears_itself(store: &Store) -> Result<bool, StoreError> {
    let channel = format!("{}_probe", store.schema());
    let payload = hex::encode(rand::random::<[u8; 8]>());
    let mut listener = store.listen(&channel).await?;
    unless_locked("a notification", || store.notify(&channel, &payload)).await?;
    let heard = async {
        while let Some(heard) = listener.next().await {
            if heard == payload {
                return true;
            }
        }
        false
    };
    Ok(tokio::time::timeout(LISTEN_PROBE, heard).await.unwrap_or(false))
}
