//! Components of the broker that sessions use.

use std::sync::Arc;

use howdah_core::config::Config;
use tokio_util::sync::CancellationToken;

use super::Sessions;
use crate::{
    dispatch::Dispatch,
    progress::Progress,
    registry::Registry,
    settle::{Release, Settle},
    store::Store,
    wake::Wake,
};

/// Components of the broker that a worker's stream uses.
pub struct SessionContext {
    pub config: Arc<Config>,
    pub store: Store,
    pub registry: Arc<Registry>,
    pub dispatch: Arc<Dispatch>,
    pub settle: Settle,
    pub progress: Progress,
    pub release: Release,
    pub(crate) wake: Wake,
    pub sessions: Arc<Sessions>,
    /// Cancelled when the broker starts to stop.
    pub(crate) draining: CancellationToken,
}

impl SessionContext {
    /// Returns whether the broker is stopping.
    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }
}
