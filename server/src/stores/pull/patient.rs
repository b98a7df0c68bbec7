//! For which stores a call waits long after its own wait is over.

use std::{collections::HashMap, sync::Arc};

use tokio::sync::OwnedMutexGuard;

use crate::session::SessionContext;

/// One call at a time waits for each store: what it will find needs memory, which calls for the jobs of other stores need, too. One is
/// enough for the jobs of a slow store to be taken in the end.
pub(super) struct Patient<'a> {
    contexts: &'a [Arc<SessionContext>],
    /// This call is the one.
    places: HashMap<usize, OwnedMutexGuard<()>>,
}

impl<'a> Patient<'a> {
    pub(super) fn new(contexts: &'a [Arc<SessionContext>]) -> Self {
        Self { contexts, places: HashMap::new() }
    }

    /// Whether this call waits for it: not if it is known to be away, and not if another call does already.
    pub(super) fn waits_for(&mut self, nth: usize) -> bool {
        let Some(context) = self.contexts.get(nth).filter(|context| !context.store.is_away()) else { return false };
        if let Some(place) = context.sessions.pulls.place() {
            self.places.insert(nth, place);
        }
        self.places.contains_key(&nth)
    }
}
