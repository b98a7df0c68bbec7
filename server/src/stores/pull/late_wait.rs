//! The late wait: a pull call goes on waiting for the answer of a slow store after the wait that its caller asked for.

use std::{collections::HashMap, sync::Arc};

use tokio::sync::OwnedMutexGuard;

use crate::session::SessionContext;

/// Limits the late wait to one call per store, because a waiting call holds memory that calls for other stores need.
/// One call per store is enough to deliver the jobs of a slow store eventually.
pub(super) struct LateWait<'a> {
    contexts: &'a [Arc<SessionContext>],
    /// Permits of the stores for which this call does the late wait, by position of the store.
    permits: HashMap<usize, OwnedMutexGuard<()>>,
}

impl<'a> LateWait<'a> {
    pub(super) fn new(contexts: &'a [Arc<SessionContext>]) -> Self {
        Self { contexts, permits: HashMap::new() }
    }

    /// Whether this call does the late wait for a store. False if the store is unreachable, or another call already
    /// does it.
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
