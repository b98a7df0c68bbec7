//! Computes how many jobs must run concurrently so that waiting jobs start in time.

use std::time::Duration;

/// Job counts of a task type.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Backlog {
    /// Jobs that can run now, plus one if a scheduled job is due.
    pub(super) ready: u64,
    /// Jobs that workers hold.
    pub(super) running: u64,
    /// Limit of concurrently running jobs of the type, over all workers.
    pub(super) max_running: Option<u32>,
}

/// Recent activity of a task type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Mean run time of an attempt, in seconds.
    pub(super) run_seconds: f64,
    /// Jobs enqueued per second.
    pub(super) enqueued_per_second: f64,
}

impl Backlog {
    /// Adds the jobs of another type, or of the same type in another store, which has a separate limit.
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            ready: self.ready + other.ready,
            running: self.running + other.running,
            max_running: self.max_running.zip(other.max_running).map(|(a, b)| a.saturating_add(b)),
        }
    }

    /// Whether at least one replica is needed: a job runs, or more than `activation` jobs are ready.
    pub(super) fn is_active(&self, activation: u32) -> bool {
        self.running > 0 || self.ready > u64::from(activation)
    }

    /// Number of jobs that must run concurrently.
    ///
    /// A slot runs one job at a time, and each job occupies it for `run_seconds`. The result is the number of slots that lets
    /// all ready jobs, and the jobs enqueued meanwhile, start within `drain`. Without a pace, each job gets a slot. The result
    /// is at least the number of running jobs, and at most the type's limit.
    pub(super) fn places(&self, pace: Option<Pace>, drain: Duration) -> f64 {
        let (ready, running) = (self.ready as f64, self.running as f64);
        let places = match pace {
            Some(pace) => {
                let to_start = ready / drain.as_secs_f64() + pace.enqueued_per_second;
                // Caps the result at one slot per job.
                (to_start * pace.run_seconds).min(ready + running.max(pace.enqueued_per_second * pace.run_seconds))
            }
            None => ready + running,
        };
        let most = self.max_running.map_or(f64::MAX, f64::from);
        places.max(running).min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn backlog(ready: u64, running: u64) -> Backlog {
        Backlog { ready, running, max_running: None }
    }

    fn pace(run_seconds: f64, enqueued_per_second: f64) -> Option<Pace> {
        Some(Pace { run_seconds, enqueued_per_second })
    }

    fn is(places: f64, expected: f64) -> bool {
        (places - expected).abs() < 1e-9
    }

    #[test]
    fn the_needed_slots_start_all_jobs_within_the_drain_time() {
        // 600 jobs of 2 s in a minute: 10 jobs start each second, and each occupies a slot for 2 s.
        assert!(is(backlog(600, 0).places(pace(2.0, 0.0), MINUTE), 20.0));
        assert!(is(backlog(600, 0).places(pace(2.0, 0.0), MINUTE * 10), 2.0));
        // Three additional jobs are enqueued each second.
        assert!(is(backlog(600, 0).places(pace(2.0, 3.0), MINUTE), 26.0));
        // A job that arrives every 10 s and runs for 2 s occupies 0.2 slots.
        assert!(is(backlog(0, 0).places(pace(2.0, 0.1), MINUTE), 0.2));
    }

    #[test]
    fn without_a_known_pace_each_job_needs_a_slot() {
        assert!(is(backlog(600, 5).places(None, MINUTE), 605.0));
    }

    #[test]
    fn a_job_needs_at_most_one_slot_and_running_jobs_keep_their_slots() {
        assert!(is(backlog(3, 0).places(pace(3_600.0, 0.0), MINUTE), 3.0));
        assert!(is(backlog(0, 40).places(pace(1.0, 0.0), MINUTE), 40.0));
        assert!(is(Backlog { max_running: Some(7), ..backlog(600, 5) }.places(None, MINUTE), 7.0));
    }

    #[test]
    fn the_first_ready_job_starts_a_replica_and_the_last_that_runs_keeps_it() {
        assert!(!backlog(0, 0).is_active(0));
        assert!(backlog(1, 0).is_active(0));
        assert!(!backlog(5, 0).is_active(5));
        assert!(backlog(6, 0).is_active(5));
        assert!(backlog(0, 1).is_active(5));
    }
}
