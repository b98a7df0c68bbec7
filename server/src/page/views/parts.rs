//! Table rows that several views share.

use howdah_proto::v1;

use crate::page::words::{State, When, first_line, wire_span};

/// Table row of a task type, with its job counts.
#[derive(Clone)]
pub(super) struct TypeRow {
    pub(super) name: String,
    pub(super) paused: bool,
    /// Whether the type has ready jobs, but no worker.
    pub(super) no_worker: bool,
    /// Store of the task type; empty if there is only one store.
    pub(super) store: String,
    /// Job counts by state.
    pub(super) counts: [(&'static str, i64); 5],
    pub(super) oldest: String,
    /// Age of the oldest ready job in seconds, by which rows are sorted; -1 without a ready job.
    pub(super) oldest_s: i64,
}

impl TypeRow {
    pub(super) fn new(view: v1::TaskType) -> Self {
        let counts = counts(view.counts.unwrap_or_default());
        Self {
            paused: view.settings.is_some_and(|settings| settings.paused),
            counts,
            no_worker: false,
            oldest_s: view.oldest_ready_age.map_or(-1, |age| age.seconds),
            oldest: view.oldest_ready_age.map(wire_span).unwrap_or_default(),
            name: view.name,
            store: view.store,
        }
    }

    /// Number of jobs in all states.
    pub(super) fn total(&self) -> i64 {
        self.counts.iter().map(|(_, count)| count).sum()
    }
}

/// Returns job counts with the names of the states.
pub(super) fn counts(counts: v1::TaskTypeCounts) -> [(&'static str, i64); 5] {
    let v1::TaskTypeCounts { ready, leased, scheduled, waiting, dead } = counts;
    [("ready", ready), ("leased", leased), ("scheduled", scheduled), ("waiting", waiting), ("dead", dead)]
}

/// Table row of a job.
pub(super) struct JobRow {
    pub(super) job: v1::Job,
    pub(super) state: State,
    /// Time of the job's last event, or of its planned start.
    pub(super) at: Option<When>,
    pub(super) error: String,
}

impl JobRow {
    pub(super) fn new(job: v1::Job) -> Self {
        let at = if job.state() == v1::JobState::Scheduled { job.run_time } else { job.update_time };
        let error = job.failures.last().map(|failure| first_line(&failure.error, 140)).unwrap_or_default();
        Self { state: State::new(job.state()), at: When::new(at), error, job }
    }
}
