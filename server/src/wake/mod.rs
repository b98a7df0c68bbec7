//! Wakeups: alarms for work that becomes due in this broker, notifications to and from the others.
//!
//! At commit, NOTIFY takes a lock over the whole cluster, so it is never part of an enqueue. A broker announces jobs
//! afterwards, many together, and only those for which its own workers have no capacity. A notification is a hint: the
//! sweep (`maintain::sweep`) finds what was lost.

mod alarm;
mod announce;
mod listen;
mod message;

use std::{sync::Arc, time::Duration};

use crate::job::Ready;
pub use alarm::Alarm;
pub(crate) use announce::announce_all;
pub(crate) use listen::{Heard, listen_always};
pub use message::{Loss, LostLeases, Notice, SessionMark};

/// The alarms of this broker, and its announcements to others.
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
    /// `announcing`: whether other brokers are notified.
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

    /// Tells other brokers of these ready jobs.
    pub(crate) fn announce(&self, ready: &[Ready]) {
        self.inner.announcements.ready(ready);
    }

    /// A job is scheduled, this far from now.
    pub fn due_in(&self, delay: Duration) {
        self.inner.due.within(delay);
    }

    /// A lease has a deadline, this far from now.
    pub fn deadline_in(&self, delay: Duration) {
        self.inner.deadline.within(delay);
    }

    /// A limit key is to be checked, this far from now.
    pub fn limit_in(&self, delay: Duration) {
        self.inner.limit.within(delay);
    }

    /// A job expires, this far from now.
    pub fn expiry_in(&self, delay: Duration) {
        self.inner.expiry.within(delay);
    }

    /// A schedule is to be checked, this far from now.
    pub fn schedule_in(&self, delay: Duration) {
        self.inner.schedule.within(delay);
    }

    /// A bulk operation goes on, this far from now.
    pub fn bulk_in(&self, delay: Duration) {
        self.inner.bulk.within(delay);
    }

    /// Another broker does not have the leases of these jobs any more.
    pub fn lost_elsewhere(&self, broker_id: i32, ids: Vec<i64>, loss: Loss) {
        self.inner.announcements.lost(LostLeases { broker_id, loss, ids });
    }

    /// A worker went on here, with all that it has. Another broker may still think that it is there.
    pub(crate) fn went_on_here(&self, session: SessionMark) {
        self.inner.announcements.went_on(session);
    }

    /// Settings of a task type or of the cluster changed.
    pub fn settings_changed(&self) {
        self.inner.announcements.settings();
    }

    /// Rings when a scheduled job is due.
    pub(crate) fn due_alarm(&self) -> &Alarm {
        &self.inner.due
    }

    /// Rings when a deadline passes.
    pub(crate) fn deadline_alarm(&self) -> &Alarm {
        &self.inner.deadline
    }

    /// Rings when a limit key is to be checked.
    pub(crate) fn limit_alarm(&self) -> &Alarm {
        &self.inner.limit
    }

    /// Rings when a job expires.
    pub(crate) fn expiry_alarm(&self) -> &Alarm {
        &self.inner.expiry
    }

    /// Rings when a schedule is to be checked.
    pub(crate) fn schedule_alarm(&self) -> &Alarm {
        &self.inner.schedule
    }

    /// Rings when a bulk operation goes on.
    pub(crate) fn bulk_alarm(&self) -> &Alarm {
        &self.inner.bulk
    }

    pub(crate) fn announcements(&self) -> &announce::Announcements {
        &self.inner.announcements
    }
}
