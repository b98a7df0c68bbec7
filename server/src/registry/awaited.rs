//! Task types that do not exist yet, and somebody waits for: a worker that is subscribed to them in several stores.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::job::TaskTypeName;

/// Those that are waited for, and who waits.
#[derive(Default)]
pub(super) struct AwaitedTypes {
    waiting: Mutex<HashMap<TaskTypeName, Vec<Arc<Notify>>>>,
}

/// Waits for types, as long as it lives.
pub(crate) struct Awaited {
    types: Arc<AwaitedTypes>,
    names: Vec<TaskTypeName>,
    bell: Arc<Notify>,
}

impl AwaitedTypes {
    pub(super) fn add(self: &Arc<Self>, names: Vec<TaskTypeName>) -> Awaited {
        let bell = Arc::new(Notify::new());
        let mut waiting = self.waiting.lock();
        for name in &names {
            waiting.entry(name.clone()).or_default().push(bell.clone());
        }
        Awaited { types: self.clone(), names, bell }
    }

    /// The names that are waited for.
    pub(super) fn names(&self) -> Vec<TaskTypeName> {
        let waiting = self.waiting.lock();
        if waiting.is_empty() { Vec::new() } else { waiting.keys().cloned().collect() }
    }

    /// These types exist.
    pub(super) fn exist<'a>(&self, names: impl Iterator<Item = &'a TaskTypeName>) {
        let waiting = self.waiting.lock();
        if !waiting.is_empty() {
            names.filter_map(|name| waiting.get(name)).flatten().for_each(|bell| bell.notify_one());
        }
    }
}

impl Awaited {
    /// Ready when one of the types exists. A signal while nobody waited is remembered.
    pub(crate) async fn appeared(&self) {
        self.bell.notified().await;
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        let mut waiting = self.types.waiting.lock();
        for name in &self.names {
            if let Some(bells) = waiting.get_mut(name) {
                bells.retain(|bell| !Arc::ptr_eq(bell, &self.bell));
                if bells.is_empty() {
                    waiting.remove(name);
                }
            }
        }
    }
}
