//! Components of the broker that sessions use.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::Sessions;
use crate::{
    config::Config,
    dispatch::Dispatch,
    progress::Progress,
    registry::Registry,
    settle::{Release, Settle},
    store::Store,
    wake::Wake,
};

/// Components of the broker that a worker's stream uses.
pub struct SessionContext {
    pub(crate) config: Arc<Config>,
    pub(crate) store: Store,
    pub(crate) registry: Arc<Registry>,
    pub(crate) dispatch: Arc<Dispatch>,
    pub(crate) settle: Settle,
    pub(crate) progress: Progress,
    pub(crate) release: Release,
    pub(crate) wake: Wake,
    pub(crate) sessions: Arc<Sessions>,
    /// Cancelled when the broker starts to stop.
    pub(crate) draining: CancellationToken,
}

impl SessionContext {
    /// Returns whether the broker is stopping.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }
}
