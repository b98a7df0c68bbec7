//! Task types that do not exist yet and to which workers are subscribed. A worker's stream over several stores waits
//! for such types.

use std::{collections::HashMap, sync::Arc};

use howdah_core::job::TaskTypeName;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Awaited task types, with the streams to notify.
#[derive(Default)]
pub(super) struct AwaitedTypes {
    waiting: Mutex<HashMap<TaskTypeName, Vec<Arc<Notify>>>>,
}

/// Waits for task types to be created. Dropping the value unregisters it.
pub struct Awaited {
    types: Arc<AwaitedTypes>,
    names: Vec<TaskTypeName>,
    notify: Arc<Notify>,
}

impl AwaitedTypes {
    pub(super) fn add(self: &Arc<Self>, names: Vec<TaskTypeName>) -> Awaited {
        let notify = Arc::new(Notify::new());
        let mut waiting = self.waiting.lock();
        for name in &names {
            waiting.entry(name.clone()).or_default().push(notify.clone());
        }
        Awaited { types: self.clone(), names, notify }
    }

    /// Returns the names of the awaited types.
    pub(super) fn names(&self) -> Vec<TaskTypeName> {
        let waiting = self.waiting.lock();
        if waiting.is_empty() { Vec::new() } else { waiting.keys().cloned().collect() }
    }

    /// Notifies the streams that wait for these types, which exist now.
    pub(super) fn exist<'a>(&self, names: impl Iterator<Item = &'a TaskTypeName>) {
        let waiting = self.waiting.lock();
        if !waiting.is_empty() {
            names.filter_map(|name| waiting.get(name)).flatten().for_each(|notify| notify.notify_one());
        }
    }
}

impl Awaited {
    /// Completes when one of the types exists. A notification that arrives between two calls is kept.
    pub async fn appeared(&self) {
        self.notify.notified().await;
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        let mut waiting = self.types.waiting.lock();
        for name in &self.names {
            if let Some(notifies) = waiting.get_mut(name) {
                notifies.retain(|notify| !Arc::ptr_eq(notify, &self.notify));
                if notifies.is_empty() {
                    waiting.remove(name);
                }
            }
        }
    }
}
