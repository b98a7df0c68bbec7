//! An ordered log of events of an adapter, or of messages on the wire.

use std::{future::Future, sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;

/// A growing list of entries. Callers can wait for new entries. Clones share the list.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    entries: Arc<Mutex<Vec<Value>>>,
    length: Arc<watch::Sender<usize>>,
}

impl Default for Log {
    fn default() -> Self {
        Self { entries: Arc::default(), length: Arc::new(watch::Sender::new(0)) }
    }
}

impl Log {
    pub(crate) fn push(&self, entry: Value) {
        let mut entries = self.entries.lock();
        entries.push(entry);
        self.length.send_replace(entries.len());
    }

    pub(crate) fn read<R>(&self, read: impl FnOnce(&[Value]) -> R) -> R {
        read(&self.entries.lock())
    }

    /// Waits until `find` returns a value for the entries of the log. Returns `None` after the timeout.
    pub(crate) async fn wait<R>(&self, within: Duration, mut find: impl FnMut(&[Value]) -> Option<R>) -> Option<R> {
        let mut length = self.length.subscribe();
        let search = async {
            loop {
                length.mark_unchanged();
                if let Some(found) = self.read(&mut find) {
                    return Some(found);
                }
                length.changed().await.ok()?;
            }
        };
        in_time(within, search).await
    }
}

async fn in_time<R>(within: Duration, work: impl Future<Output = Option<R>>) -> Option<R> {
    tokio::time::timeout(within, work).await.ok().flatten()
}
