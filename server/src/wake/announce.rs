//! Sends NOTIFY outside the hot path: immediately when idle, at most every few milliseconds under load.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{LostLeases, Notice, SessionMark, Wake};
use crate::{job::Ready, store::Store};

/// Pause after an announcement. Changes during the pause go into the next one.
const PAUSE: Duration = Duration::from_millis(5);
/// Maximum number of pending lists of lost leases. Further ones are dropped, because they are hints.
const MOST_LOST: usize = 1_000;
/// Maximum number of pending session marks; further ones are dropped.
const MOST_SESSIONS: usize = 20_000;

/// Pending announcements to other brokers.
pub(crate) struct Announcements {
    enabled: bool,
    pending: Mutex<Pending>,
    arrived: Notify,
}

#[derive(Default)]
struct Pending {
    // Bounded by the number of task types.
    ready: HashMap<i32, i64>,
    lost: Vec<LostLeases>,
    sessions: Vec<SessionMark>,
    settings: bool,
}

impl Announcements {
    pub(super) fn new(enabled: bool) -> Self {
        Self { enabled, pending: Mutex::default(), arrived: Notify::new() }
    }

    pub(super) fn ready(&self, ready: &[Ready]) {
        self.add(|pending| {
            for r in ready {
                let rank = pending.ready.entry(r.type_id).or_insert(r.lowest_rank);
                *rank = r.lowest_rank.min(*rank);
            }
        });
    }

    pub(super) fn lost(&self, lost: LostLeases) {
        self.add(|pending| {
            if pending.lost.len() < MOST_LOST {
                pending.lost.push(lost);
            }
        });
    }

    pub(super) fn resumed_here(&self, session: SessionMark) {
        self.add(|pending| {
            if pending.sessions.len() < MOST_SESSIONS {
                pending.sessions.push(session);
            }
        });
    }

    pub(super) fn settings(&self) {
        self.add(|pending| pending.settings = true);
    }

    fn add(&self, change: impl FnOnce(&mut Pending)) {
        if self.enabled {
            change(&mut self.pending.lock());
            self.arrived.notify_one();
        }
    }

    fn take(&self) -> Vec<Notice> {
        let pending = std::mem::take(&mut *self.pending.lock());
        let mut notices: Vec<Notice> = pending.lost.into_iter().map(Notice::Lost).collect();
        if !pending.ready.is_empty() {
            notices.push(Notice::Ready(pending.ready.into_iter().collect()));
        }
        if !pending.sessions.is_empty() {
            notices.push(Notice::WentOn(pending.sessions));
        }
        if pending.settings {
            notices.push(Notice::Settings);
        }
        notices
    }
}

/// Sends pending announcements; never returns.
pub(crate) async fn announce_all(wake: Wake, store: Store, channel: String) {
    let announcements = wake.announcements();
    loop {
        announcements.arrived.notified().await;
        for payload in announcements.take().iter().flat_map(Notice::payloads) {
            // Without the notification, other brokers notice the change a poll interval later.
            if let Err(error) = store.notify(&channel, &payload).await {
                store.log_failure("notifying other brokers", &error);
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}
