//! The view of a session for operators: its client, its jobs and its settle rate. A session sets a flag when something
//! has changed, so a report over ten thousand idle sessions only checks that many flags.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use howdah_core::job::{TypeId, WorkerView, WorkerWindow, truncated};
use tokio::time::Instant;

use super::{Drain, Session, State};
use crate::{dispatch::Dispatch, registry::Registry};

/// Maximum total bytes of a worker's labels in `ListWorkers`. Further labels are left out.
const LABEL_BYTES: usize = 2 << 10;
/// Maximum bytes of a client's user agent in `ListWorkers`. A longer one is cut.
const USER_AGENT_BYTES: usize = 200;
/// Maximum number of job ids per task type in a worker report; the longest-held jobs are named.
const OLDEST: usize = 64;
/// Minimum time for which the worker has held a job before its report names the job. Most jobs are settled earlier.
const LONG: Duration = Duration::from_secs(5);
/// Number of time slots in which settled jobs are counted.
const SLOTS: usize = 6;
/// Length of a time slot for counting settled jobs. All slots together cover the last minute.
const SLOT: Duration = Duration::from_secs(10);

/// The client of a stream.
#[derive(Clone, Debug, Default)]
pub struct ClientInfo {
    /// Network address of the client.
    pub peer: String,
    /// User agent that the client sent.
    pub user_agent: String,
}

/// Kind of change of a session since its last report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Changed {
    /// No change.
    Nothing,
    /// The held or settled jobs of the session have changed.
    Figures,
    /// The connection or the windows of the session have changed.
    Windows,
}

/// Client of a session, its settle rate, and the time of its last activity.
pub(super) struct Activity {
    client: Arc<ClientInfo>,
    labels: Arc<BTreeMap<String, String>>,
    begun: Instant,
    connected: Instant,
    /// Time of the last settlement, extension or progress report; before the first one, the start of the stream.
    active: Instant,
    settled: HashMap<TypeId, Rate>,
}

impl Default for Activity {
    fn default() -> Self {
        let now = Instant::now();
        let (client, labels, settled) = (Arc::default(), Arc::default(), HashMap::new());
        Self { client, labels, begun: now, connected: now, active: now, settled }
    }
}

impl Activity {
    /// Records the start of a stream.
    pub(super) fn connect(&mut self, client: ClientInfo, labels: BTreeMap<String, String>) {
        let user_agent = truncated(&client.user_agent, USER_AGENT_BYTES);
        self.client = Arc::new(ClientInfo { user_agent, ..client });
        let mut bytes = 0;
        let fits = labels.into_iter().take_while(|(name, value)| {
            bytes += name.len() + value.len();
            bytes <= LABEL_BYTES
        });
        self.labels = Arc::new(fits.collect());
        self.connected = Instant::now();
        self.active = self.connected;
    }

    /// Records an extension or a progress report.
    pub(super) fn is_active(&mut self) {
        self.active = Instant::now();
    }

    /// Records that a job of this type was settled.
    pub(super) fn settled(&mut self, type_id: TypeId, now: Instant) {
        let slot = self.slot(now);
        self.settled.entry(type_id).or_default().add(slot);
        self.active = now;
    }

    fn slot(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.begun).as_secs() / SLOT.as_secs()
    }
}

/// Number of settled jobs in each of the latest time slots.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    slots: [u32; SLOTS],
    newest: u64,
}

impl Rate {
    fn add(&mut self, slot: u64) {
        self.pass(slot);
        self.slots[slot as usize % SLOTS] += 1;
    }

    /// Returns the number of jobs settled in the `SLOTS` time slots that end with this slot.
    fn sum(&mut self, slot: u64) -> u32 {
        self.pass(slot);
        self.slots.iter().sum()
    }

    fn pass(&mut self, slot: u64) {
        for passed in self.newest + 1..=slot.min(self.newest + SLOTS as u64) {
            self.slots[passed as usize % SLOTS] = 0;
        }
        self.newest = self.newest.max(slot);
    }
}

impl State {
    /// Returns the numbers of held and settled jobs by task type, with the ids of the longest-held jobs, oldest first.
    fn figures(&mut self, now: Instant) -> HashMap<TypeId, WorkerWindow> {
        let mut windows: HashMap<TypeId, WorkerWindow> = HashMap::new();
        let mut long: HashMap<TypeId, Vec<(Instant, i64)>> = HashMap::new();
        for (&id, held) in self.held.iter().filter(|(_, held)| !held.settling) {
            windows.entry(held.type_id).or_default().held += 1;
            if now.saturating_duration_since(held.since) >= LONG {
                long.entry(held.type_id).or_default().push((held.since, id));
            }
        }
        for (type_id, mut jobs) in long {
            jobs.sort_unstable();
            windows.entry(type_id).or_default().oldest = jobs.into_iter().take(OLDEST).map(|(_, id)| id).collect();
        }
        let slot = self.activity.slot(now);
        self.activity.settled.retain(|type_id, rate| {
            let settled = rate.sum(slot);
            if settled > 0 {
                windows.entry(*type_id).or_default().settled = settled;
            }
            settled > 0
        });
        windows
    }

    /// Returns the time since which the session has held jobs without activity of the worker.
    fn quiet_since(&self) -> Option<Instant> {
        let first = self.held.values().filter(|held| !held.settling).map(|held| Reverse(held.since)).max();
        first.map(|Reverse(first)| first.max(self.activity.active))
    }
}

impl Session {
    /// Marks the session as changed, so that it is reported again for lists of workers.
    pub(super) fn note(&self, changed: Changed) {
        self.changed_since.fetch_max(changed as u8, Ordering::Release);
    }

    /// Returns the kind of change since the last report.
    pub(crate) fn changed_since_report(&self) -> Changed {
        match self.changed_since.load(Ordering::Acquire) {
            0 => Changed::Nothing,
            1 => Changed::Figures,
            _ => Changed::Windows,
        }
    }

    /// Returns the current view of the session and clears its change flag. Later changes are part of the next report.
    pub(crate) fn report(&self, dispatch: &Dispatch, registry: &Registry) -> WorkerView {
        self.changed_since.store(0, Ordering::Release);
        let view = self.view(dispatch, registry);
        // The settle rate and the list of long-held jobs also change as time passes, so the session needs another
        // report.
        let is_old = |window: &WorkerWindow| window.oldest.len() >= OLDEST.min(window.held as usize);
        if view.windows.iter().any(|window| window.settled > 0 || !is_old(window)) {
            self.note(Changed::Figures);
        }
        view
    }

    /// Marks the session as changed, because its report was not written.
    pub(crate) fn not_reported(&self) {
        self.note(Changed::Windows);
    }

    /// Returns what `ListWorkers` shows about the session.
    pub fn view(&self, dispatch: &Dispatch, registry: &Registry) -> WorkerView {
        let open = dispatch.windows(self.key);
        let principal = self.caller().principal().to_string();
        let now = Instant::now();
        let mut state = self.state.lock();
        let mut windows = state.figures(now);
        let quiet = state.quiet_since();
        let view = WorkerView {
            worker_id: self.public_id.clone(),
            principal,
            labels: (*state.activity.labels).clone(),
            user_agent: state.activity.client.user_agent.clone(),
            peer: state.activity.client.peer.clone(),
            is_connected: state.stream.is_some(),
            is_draining: state.drain != Drain::No,
            windows: Vec::new(),
            connected_ms: now.saturating_duration_since(state.activity.connected).as_millis() as u64,
            quiet_ms: quiet.map(|since| now.saturating_duration_since(since).as_millis() as u64),
            max_message_bytes: state.max_message_bytes,
        };
        drop(state);
        for (type_id, window) in open {
            let entry = windows.entry(type_id).or_default();
            (entry.jobs, entry.bytes) = (window.jobs, window.bytes);
        }
        let mut windows: Vec<WorkerWindow> = windows
            .into_iter()
            .filter_map(|(type_id, window)| {
                // The registry knows the name of a type as soon as it has seen a window or a job of the type.
                let task_type = registry.name(type_id)?.to_string();
                Some(WorkerWindow { task_type, ..window })
            })
            .collect();
        windows.sort_unstable_by(|a, b| a.task_type.cmp(&b.task_type));
        WorkerView { windows, ..view }
    }

    pub(crate) fn holds_job(&self, id: i64) -> bool {
        self.state.lock().held.contains_key(&id)
    }

    pub fn held_jobs(&self) -> Vec<i64> {
        self.state.lock().held.keys().copied().collect()
    }

    pub(crate) fn held_jobs_of(&self, type_id: Option<TypeId>) -> Vec<i64> {
        let state = self.state.lock();
        let of_type = state.held.iter().filter(|(_, held)| type_id.is_none_or(|type_id| held.type_id == type_id));
        of_type.map(|(id, _)| *id).collect()
    }

    /// Whether the worker's stream is open.
    pub(crate) fn is_connected(&self) -> bool {
        self.state.lock().stream.is_some()
    }

    /// Returns the worker id that lists and logs show.
    pub(crate) fn public_id(&self) -> &str {
        &self.public_id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_counts_the_last_six_slots() {
        let mut rate = Rate::default();
        for slot in [0, 0, 1, 5] {
            rate.add(slot);
        }
        assert_eq!(rate.sum(5), 4);
        assert_eq!(rate.sum(6), 2, "slot 0 is over");
        assert_eq!(rate.sum(7), 1);
        rate.add(9);
        assert_eq!(rate.sum(10), 2);
        assert_eq!(rate.sum(1_000_000), 0);
    }

    #[test]
    fn labels_and_user_agents_are_bounded() {
        let mut activity = Activity::default();
        let labels = (0..16).map(|n| (format!("{n:02}"), "x".repeat(200))).collect();
        activity.connect(ClientInfo { peer: "p".into(), user_agent: "u".repeat(1_000) }, labels);
        assert_eq!(activity.labels.len(), 10);
        assert!(activity.client.user_agent.len() <= USER_AGENT_BYTES);
    }
}
