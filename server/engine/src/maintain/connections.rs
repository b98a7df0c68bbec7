//! Maintenance task: warns if Postgres refuses connections to this broker because of a connection limit, and logs the
//! limits. The broker continues with fewer connections.

use std::{sync::Arc, time::Duration};

use super::Context;
use crate::store::Store;

/// Minimum pause between two log lines about refused connections.
const AGAIN: Duration = Duration::from_secs(60);

pub(super) async fn run(context: Arc<Context>) {
    loop {
        context.store.until_out_of_connections().await;
        if let Ok(limits) = context.store.connection_limits().await {
            let wanted = Store::most_connections(context.config.pool_size);
            tracing::warn!(
                "Postgres refuses more connections (SQLSTATE 53300): {limits}; this broker opens up to {wanted} for a store, and \
                 goes on with fewer. Raise the limit that is reached, or lower pool_size"
            );
        }
        tokio::time::sleep(AGAIN).await;
    }
}
