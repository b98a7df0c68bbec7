//! Step 2, wake: alarms for work that becomes due in this broker, and notifications between brokers.
//!
//! At commit, NOTIFY takes a lock over the whole database cluster, so it is never part of an enqueue. A broker announces jobs
//! afterwards, in batches, and only jobs for which its own workers have no capacity. A notification is a hint: the sweep
//! (`maintain::sweep`) finds work whose notification was lost.

mod alarm;
mod announce;
mod listen;
mod message;

use std::{sync::Arc, time::Duration};

use crate::job::Ready;
pub use alarm::Alarm;
pub(crate) use announce::announce_all;
pub(crate) use listen::{Heard, run_listen};
pub use message::{Loss, LostLeases, Notice, SessionMark};

/// Alarms of this broker, and its announcements to other brokers.
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
    /// Creates the alarms. `announcing`: whether to notify other brokers.
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

    /// Announces these ready jobs to other brokers.
    pub(crate) fn announce(&self, ready: &[Ready]) {
        self.inner.announcements.ready(ready);
    }

    /// Sets the alarm for a scheduled job that is due after this delay.
    pub fn due_in(&self, delay: Duration) {
        self.inner.due.within(delay);
    }

    /// Sets the alarm for a lease deadline after this delay.
    pub fn deadline_in(&self, delay: Duration) {
        self.inner.deadline.within(delay);
    }

    /// Sets the alarm for a check of limit keys after this delay.
    pub fn limit_in(&self, delay: Duration) {
        self.inner.limit.within(delay);
    }

    /// Sets the alarm for the expiry of a job after this delay.
    pub fn expiry_in(&self, delay: Duration) {
        self.inner.expiry.within(delay);
    }

    /// Sets the alarm for a check of schedules after this delay.
    pub fn schedule_in(&self, delay: Duration) {
        self.inner.schedule.within(delay);
    }

    /// Sets the alarm for a bulk operation that continues after this delay.
    pub fn bulk_in(&self, delay: Duration) {
        self.inner.bulk.within(delay);
    }

    /// Announces that another broker has lost the leases of these jobs.
    pub fn lost_elsewhere(&self, broker_id: i32, ids: Vec<i64>, loss: Loss) {
        self.inner.announcements.lost(LostLeases { broker_id, loss, ids });
    }

    /// Announces that a worker has reattached here, with all of its leases. Another broker may still consider it attached there.
    pub(crate) fn resumed_here(&self, session: SessionMark) {
        self.inner.announcements.resumed_here(session);
    }

    /// Announces that settings of a task type or of the cluster have changed.
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
