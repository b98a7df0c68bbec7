//! Sends notifications (NOTIFY) to other brokers in a separate task: at once when idle, at most every few milliseconds
//! under load. Receives the notifications of other brokers (LISTEN): reconnects with backoff, and each new connection causes
//! a sweep, which finds the work of missed notifications.

use std::{collections::HashMap, sync::Arc, time::Duration};

use howdah_core::job::Ready;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};

use super::{LostLeases, Notice, SessionMark, Wake};
use crate::{backoff::Backoff, metrics::Metrics, store::Store};

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

/// An event that the LISTEN connection reports.
#[derive(Debug)]
pub(crate) enum Heard {
    /// LISTEN works, for the first time or again. Earlier notifications may have been missed.
    Connected,
    /// A notification.
    Notice(Notice),
}

/// The longest pause between attempts to connect.
const MOST_BACKOFF: Duration = Duration::from_secs(5);

/// Listens on the channel and passes notifications on to `heard`. Each connection is labelled with the broker's current
/// id, which may change.
pub(crate) async fn run_listen(
    store: Store,
    channel: String,
    broker_id: impl Fn() -> i32,
    metrics: Arc<Metrics>,
    heard: mpsc::Sender<Heard>,
) {
    let mut backoff = Backoff::new(Duration::from_millis(50), MOST_BACKOFF);
    while !heard.is_closed() {
        match store.listen(&channel, Some(broker_id())).await {
            Ok(mut listener) => {
                backoff.reset();
                metrics.listening.set(1);
                let _ = heard.send(Heard::Connected).await;
                while let Some(payload) = listener.next().await {
                    if let Some(notice) = Notice::parse(&payload) {
                        let _ = heard.send(Heard::Notice(notice)).await;
                    }
                }
                metrics.listening.set(0);
                tracing::info!("the LISTEN connection ended; polling until it is back");
            }
            Err(error) => store.log_failure("LISTEN", &error),
        }
        backoff.pause().await;
    }
}
