//! The late wait: after its requested wait is over, a pull call continues to wait for the answer of a slow store.

use std::{collections::HashMap, sync::Arc};

use howdah_engine::session::SessionContext;
use tokio::sync::OwnedMutexGuard;

/// Limits the late wait to one pull call per store, because waiting calls hold memory that calls for other stores need.
/// One call per store suffices to deliver the jobs of a slow store eventually.
pub(super) struct LateWait<'a> {
    contexts: &'a [Arc<SessionContext>],
    /// Late-wait permits that this call holds, by position of the store.
    permits: HashMap<usize, OwnedMutexGuard<()>>,
}

impl<'a> LateWait<'a> {
    pub(super) fn new(contexts: &'a [Arc<SessionContext>]) -> Self {
        Self { contexts, permits: HashMap::new() }
    }

    /// Whether this call waits late for the store. False if the store is unreachable, or if another call already waits
    /// for it.
    pub(super) fn waits_for(&mut self, nth: usize) -> bool {
        let Some(context) = self.contexts.get(nth).filter(|context| !context.store.is_unreachable()) else {
            return false;
        };
        if let Some(permit) = context.sessions.pulls.late_wait_permit() {
            self.permits.insert(nth, permit);
        }
        self.permits.contains_key(&nth)
    }
}
