//! An alarm that rings once, at the earliest of the times set.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

/// An alarm with one waiter; any number of tasks may set it.
pub struct Alarm {
    at: Mutex<Option<Instant>>,
    changed: Notify,
}

impl Alarm {
    pub(super) fn new() -> Self {
        Self { at: Mutex::new(None), changed: Notify::new() }
    }

    /// Sets the alarm to ring after `delay`. An earlier time stays.
    pub fn within(&self, delay: Duration) {
        // The sweep finds more distant work in time. The bound also prevents an overflow of Instant.
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
