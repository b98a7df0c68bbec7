//! Step 2 of a job's path, wake: alarms (timers) for work that becomes due, and notifications between brokers.
//!
//! At commit, NOTIFY takes a lock over the whole database cluster, so an enqueue never contains it. A broker notifies
//! others afterwards, in batches, and only of jobs for which its own workers have no capacity. A notification is a
//! hint: the sweep (`maintain::sweep`) finds work whose notification was lost.

mod announce;
mod message;

use std::{sync::Arc, time::Duration};

use howdah_core::job::Ready;
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

pub(crate) use announce::{Heard, announce_all, run_listen};
pub use message::{Loss, LostLeases, Notice, SessionMark};

/// Alarms (timers) of this broker, and its notifications to other brokers.
#[derive(Clone)]
pub struct Wake {
    inner: Arc<Inner>,
}

struct Inner {
    announcements: announce::Announcements,
    due: Alarm,
    deadline: Alarm,
    limit: Alarm,
    expiry: Alarm,
    schedule: Alarm,
    bulk: Alarm,
}

impl Wake {
    /// Creates the alarms. `announcing` tells whether to notify other brokers.
    pub fn new(announcing: bool) -> Self {
        let inner = Inner {
            announcements: announce::Announcements::new(announcing),
            due: Alarm::new(),
            deadline: Alarm::new(),
            limit: Alarm::new(),
            expiry: Alarm::new(),
            schedule: Alarm::new(),
            bulk: Alarm::new(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Notifies other brokers of these ready jobs.
    pub(crate) fn announce(&self, ready: &[Ready]) {
        self.inner.announcements.ready(ready);
    }

    /// Sets the alarm for due jobs: the next scheduled job is due after this delay.
    pub fn due_in(&self, delay: Duration) {
        self.inner.due.within(delay);
    }

    /// Sets the alarm for lease deadlines: the next deadline passes after this delay.
    pub fn deadline_in(&self, delay: Duration) {
        self.inner.deadline.within(delay);
    }

    /// Sets the alarm for limit keys: the next check is due after this delay.
    pub fn limit_in(&self, delay: Duration) {
        self.inner.limit.within(delay);
    }

    /// Sets the alarm for the expiry of jobs: the next job expires after this delay.
    pub fn expiry_in(&self, delay: Duration) {
        self.inner.expiry.within(delay);
    }

    /// Sets the alarm for schedules: the next check is due after this delay.
    pub fn schedule_in(&self, delay: Duration) {
        self.inner.schedule.within(delay);
    }

    /// Sets the alarm for bulk operations: the next one continues after this delay.
    pub fn bulk_in(&self, delay: Duration) {
        self.inner.bulk.within(delay);
    }

    /// Notifies the broker `broker_id` that it has lost the leases of these jobs.
    pub fn lost_elsewhere(&self, broker_id: i32, ids: Vec<i64>, loss: Loss) {
        self.inner.announcements.lost(LostLeases { broker_id, loss, ids });
    }

    /// Notifies other brokers that a session has resumed here with all of its leases. Another broker may still consider
    /// the session its own.
    pub(crate) fn resumed_here(&self, session: SessionMark) {
        self.inner.announcements.resumed_here(session);
    }

    /// Notifies other brokers that settings of a task type or of the cluster have changed.
    pub fn settings_changed(&self) {
        self.inner.announcements.settings();
    }

    /// Alarm for due scheduled jobs.
    pub(crate) fn due_alarm(&self) -> &Alarm {
        &self.inner.due
    }

    /// Alarm for lease deadlines.
    pub(crate) fn deadline_alarm(&self) -> &Alarm {
        &self.inner.deadline
    }

    /// Alarm for checks of limit keys.
    pub(crate) fn limit_alarm(&self) -> &Alarm {
        &self.inner.limit
    }

    /// Alarm for the expiry of jobs.
    pub(crate) fn expiry_alarm(&self) -> &Alarm {
        &self.inner.expiry
    }

    /// Alarm for checks of schedules.
    pub(crate) fn schedule_alarm(&self) -> &Alarm {
        &self.inner.schedule
    }

    /// Alarm for bulk operations.
    pub(crate) fn bulk_alarm(&self) -> &Alarm {
        &self.inner.bulk
    }

    pub(crate) fn announcements(&self) -> &announce::Announcements {
        &self.inner.announcements
    }
}

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
