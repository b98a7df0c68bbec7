//! NOTIFY, off the hot path: at once when idle, at most every few milliseconds under load.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{LostLeases, Notice, Wake};
use crate::{job::Ready, store::Store};

/// Pause after an announcement; what comes meanwhile goes with the next.
const PAUSE: Duration = Duration::from_millis(5);
/// Lists of lost leases that may wait to be announced; more are dropped: they are hints.
const MOST_LOST: usize = 1_000;

/// What is to be announced.
pub(crate) struct Announcements {
    enabled: bool,
    waiting: Mutex<Waiting>,
    arrived: Notify,
}

#[derive(Default)]
struct Waiting {
    // Bounded by the number of task types.
    ready: HashMap<i32, i64>,
    lost: Vec<LostLeases>,
    settings: bool,
}

impl Announcements {
    pub(super) fn new(enabled: bool) -> Self {
        Self { enabled, waiting: Mutex::default(), arrived: Notify::new() }
    }

    pub(super) fn ready(&self, ready: &[Ready]) {
        self.add(|waiting| {
            for r in ready {
                let rank = waiting.ready.entry(r.type_id).or_insert(r.lowest_rank);
                *rank = r.lowest_rank.min(*rank);
            }
        });
    }

    pub(super) fn lost(&self, lost: LostLeases) {
        self.add(|waiting| {
            if waiting.lost.len() < MOST_LOST {
                waiting.lost.push(lost);
            }
        });
    }

    pub(super) fn settings(&self) {
        self.add(|waiting| waiting.settings = true);
    }

    fn add(&self, change: impl FnOnce(&mut Waiting)) {
        if self.enabled {
            change(&mut self.waiting.lock());
            self.arrived.notify_one();
        }
    }

    fn take(&self) -> Vec<Notice> {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        let mut notices: Vec<Notice> = waiting.lost.into_iter().map(Notice::Lost).collect();
        if !waiting.ready.is_empty() {
            notices.push(Notice::Ready(waiting.ready.into_iter().collect()));
        }
        if waiting.settings {
            notices.push(Notice::Settings);
        }
        notices
    }
}

/// Announces for ever.
pub(crate) async fn announce_all(wake: Wake, store: Store, channel: String) {
    let announcements = wake.announcements();
    loop {
        announcements.arrived.notified().await;
        for payload in announcements.take().iter().flat_map(Notice::payloads) {
            // A lost hint costs others a poll interval; the log tells why.
            if let Err(error) = store.notify(&channel, &payload).await {
                tracing::warn!(%error, "an announcement to other brokers was lost");
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}
