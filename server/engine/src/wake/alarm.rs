//! An alarm: a timer that rings once, at the earliest of the times that tasks have set.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

/// A timer that rings at the earliest time set. One task waits for it; any number of tasks may set it.
pub struct Alarm {
    at: Mutex<Option<Instant>>,
    changed: Notify,
}

impl Alarm {
    pub(super) fn new() -> Self {
        Self { at: Mutex::new(None), changed: Notify::new() }
    }

    /// Sets the alarm to ring after `delay`, unless it is set to ring earlier.
    pub fn within(&self, delay: Duration) {
        // Limits the delay to an hour, because a later sweep sets the alarm again. The limit also prevents an overflow
        // of `Instant`.
        let at = Instant::now() + delay.min(Duration::from_secs(3600));
        let mut set = self.at.lock();
        if set.is_none_or(|earlier| at < earlier) {
            *set = Some(at);
            self.changed.notify_one();
        }
    }

    /// Waits until the alarm rings, and resets it.
    pub async fn rung(&self) {
        loop {
            let changed = self.changed.notified();
            let at = *self.at.lock();
            match at {
                None => changed.await,
                Some(at) if at <= Instant::now() => {
                    *self.at.lock() = None;
                    return;
                }
                Some(at) => {
                    tokio::select! {
                        () = changed => {}
                        () = tokio::time::sleep_until(at) => {}
                    }
                }
            }
        }
    }
}
