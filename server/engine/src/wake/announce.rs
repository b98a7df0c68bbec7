//! Sends notifications (NOTIFY) to other brokers in a separate task: at once when idle, at most every few milliseconds
//! under load.

use std::{collections::HashMap, time::Duration};

use howdah_core::job::Ready;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{LostLeases, Notice, SessionMark, Wake};
use crate::store::Store;

/// Pause after sending notifications. Changes during the pause are sent together afterwards.
const PAUSE: Duration = Duration::from_millis(5);
/// Maximum number of pending lists of lost leases. Further lists are dropped, because they are only hints.
const MOST_LOST: usize = 1_000;
/// Maximum number of pending marks of resumed sessions. Further marks are dropped.
const MOST_SESSIONS: usize = 20_000;

/// Notifications to other brokers that are not sent yet.
pub(crate) struct Announcements {
    enabled: bool,
    pending: Mutex<Pending>,
    arrived: Notify,
}

#[derive(Default)]
struct Pending {
    // Lowest rank by task type. The number of task types bounds the size of the map.
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
            notices.push(Notice::SessionsMoved(pending.sessions));
        }
        if pending.settings {
            notices.push(Notice::Settings);
        }
        notices
    }
}

/// Sends pending notifications in an endless loop.
pub(crate) async fn announce_all(wake: Wake, store: Store, channel: String) {
    let announcements = wake.announcements();
    loop {
        announcements.arrived.notified().await;
        for payload in announcements.take().iter().flat_map(Notice::payloads) {
            // A failure is only logged: without the notification, other brokers notice the change at their next poll.
            if let Err(error) = store.notify(&channel, &payload).await {
                store.log_failure("notifying other brokers", &error);
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}
