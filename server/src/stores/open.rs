//! Checks of a store before its broker starts.

use std::time::Duration;

use howdah_core::config::WakeMode;
use howdah_engine::store::{Store, StoreError, retry_while_locked};

use super::{ReadyStore, StoresError};

/// Maximum time that the LISTEN test waits for its notification.
const LISTEN_PROBE: Duration = Duration::from_secs(15);

/// Logs what the migration changed. Unless `wake` is `poll`, tests whether notifications arrive.
pub(super) async fn open(ready: &ReadyStore) -> Result<(), StoresError> {
    let (name, store) = (&ready.name, &ready.store);
    if let Some(report) = &ready.report {
        if report.created {
            tracing::info!(schema = store.schema(), "created the schema");
        }
        for name in &report.applied {
            tracing::info!(migration = %name, "applied a migration of the tables");
        }
        for part in &report.replaced {
            tracing::info!(part = %part, "replaced a part of the schema");
        }
        if report.rights_set > 0 {
            tracing::warn!(objects = report.rights_set, "corrected rights and owners of database objects");
        }
        for left in &report.rights_left {
            tracing::warn!(rights = %left, "unintended rights remain; howdah doctor shows how to revoke them");
        }
        if let Some(release) = &report.newer {
            tracing::info!(%release, "functions or view of the schema are of a newer release; leaving them unchanged");
        }
    }
    let of = |error| StoresError::Store { name: name.clone(), error };
    if ready.config.wake == WakeMode::Poll {
        return Ok(());
    }
    match test_listen(store).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(StoresError::NoNotifications(name.clone())),
        // A permanent error means that the connection string for LISTEN is wrong. Falling back to polling would hide
        // the mistake.
        Err(error) if error.is_permanent() => Err(of(error)),
        Err(error) => {
            tracing::warn!(
                store = %name, %error,
                "LISTEN or NOTIFY failed; polling every {:?} until it works. With wake = \"poll\" no LISTEN is needed",
                ready.config.poll_interval
            );
            Ok(())
        }
    }
}

/// Tests LISTEN: sends a notification and waits for it. Behind a transaction pooler, LISTEN succeeds and yet no
/// notification arrives, so only a received notification proves that LISTEN works.
async fn test_listen(store: &Store) -> Result<bool, StoreError> {
    let channel = format!("{}_probe", store.schema());
    let payload = hex::encode(rand::random::<[u8; 8]>());
    let mut listener = store.listen(&channel, None).await?;
    retry_while_locked("a notification", || store.notify(&channel, &payload)).await?;
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
