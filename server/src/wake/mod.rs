//! Step 2, tell who can run it: own workers in memory, other brokers by NOTIFY.
//!
//! NOTIFY takes a lock over the whole cluster at commit, so it is never part of an enqueue: a broker
//! announces afterwards, coalesced, and only what its own workers have no room for. It is a hint; what
//! is lost is found by the sweep (`maintain::sweep`).

mod alarm;
mod announce;
mod listen;
mod message;

use std::{sync::Arc, time::Duration};

use crate::{dispatch::Dispatch, job::Lease, store::Wakeups};
pub use alarm::Alarm;
pub(crate) use announce::announce_all;
pub(crate) use listen::{Heard, jittered, listen_always};
pub use message::{CancelNotice, Notice};

/// Jobs of a type that became ready.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    /// The type.
    pub type_id: i32,
    /// The lowest rank among them.
    pub lowest_rank: i64,
    /// How many.
    pub jobs: u64,
}

/// Tells whoever is concerned.
#[derive(Clone)]
pub struct Wake {
    inner: Arc<Inner>,
}

struct Inner {
    dispatch: Arc<Dispatch>,
    announcements: announce::Announcements,
    due: Alarm,
    deadline: Alarm,
    gate: Alarm,
    expiry: Alarm,
    schedule: Alarm,
}

impl Wake {
    /// Wakes this dispatch; `announcing`: other brokers too.
    pub fn new(dispatch: Arc<Dispatch>, announcing: bool) -> Self {
        let inner = Inner {
            dispatch,
            announcements: announce::Announcements::new(announcing),
            due: Alarm::new(),
            deadline: Alarm::new(),
            gate: Alarm::new(),
            expiry: Alarm::new(),
            schedule: Alarm::new(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// These are committed in ready.
    pub fn ready(&self, ready: impl Iterator<Item = Ready>) {
        let unserved = self.inner.dispatch.wake(ready);
        if !unserved.is_empty() {
            self.inner.announcements.ready(&unserved);
        }
    }

    /// These are ready, and not for the workers here.
    pub(crate) fn announce(&self, ready: &[Ready]) {
        self.inner.announcements.ready(ready);
    }

    /// A job is scheduled so far from now.
    pub fn due_in(&self, delay: Duration) {
        self.inner.due.within(delay);
    }

    /// A lease has a deadline so far from now.
    pub fn deadline_in(&self, delay: Duration) {
        self.inner.deadline.within(delay);
    }

    /// What a function of the schema did.
    pub fn woken(&self, woken: &Wakeups) {
        self.ready(woken.ready.iter().map(|moved| Ready {
            type_id: moved.type_id,
            lowest_rank: moved.lowest_rank,
            jobs: moved.jobs.max(0) as u64,
        }));
        if let Some(us) = woken.due_in_us {
            self.due_in(Duration::from_micros(us.max(0) as u64));
        }
        if woken.limits {
            self.gate_in(Duration::ZERO);
        }
    }

    /// A limit key is to be looked at so far from now.
    pub fn gate_in(&self, delay: Duration) {
        self.inner.gate.within(delay);
    }

    /// A job expires so far from now.
    pub fn expiry_in(&self, delay: Duration) {
        self.inner.expiry.within(delay);
    }

    /// A schedule is to be looked at so far from now.
    pub fn schedule_in(&self, delay: Duration) {
        self.inner.schedule.within(delay);
    }

    /// Leases of another broker's workers are over.
    pub fn cancelled_elsewhere(&self, broker_id: i32, leases: Vec<Lease>, timed_out: bool) {
        self.inner.announcements.cancelled(CancelNotice { broker_id, timed_out, leases });
    }

    /// A task type's settings changed.
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

    /// Rings when a limit key is to be looked at.
    pub(crate) fn gate_alarm(&self) -> &Alarm {
        &self.inner.gate
    }

    /// Rings when a job expires.
    pub(crate) fn expiry_alarm(&self) -> &Alarm {
        &self.inner.expiry
    }

    /// Rings when a schedule is to be looked at.
    pub(crate) fn schedule_alarm(&self) -> &Alarm {
        &self.inner.schedule
    }

    pub(crate) fn announcements(&self) -> &announce::Announcements {
        &self.inner.announcements
    }
}
