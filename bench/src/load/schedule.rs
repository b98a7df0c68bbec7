//! The due times of an open loop, which do not depend on when earlier jobs are settled.

use std::ops::Range;

/// Due times of jobs at a fixed rate: the n-th job is due at n / rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    per_second: f64,
    jobs: u64,
}

impl Schedule {
    /// Creates a schedule of the jobs that are due within `seconds`.
    pub(crate) fn new(per_second: f64, seconds: f64) -> Self {
        Self { per_second, jobs: (per_second * seconds).floor() as u64 }
    }

    /// Total number of jobs.
    pub(crate) fn jobs(&self) -> u64 {
        self.jobs
    }

    /// Due time of the n-th job, in nanoseconds.
    pub(crate) fn due(&self, number: u64) -> u64 {
        (number as f64 * 1e9 / self.per_second) as u64
    }

    /// Returns the numbers of the jobs that are due at `now`, starting with job `next`.
    pub(crate) fn due_by(&self, now: u64, next: u64) -> Range<u64> {
        // The floating-point division may be off by one job, so correct it.
        let mut end = (now as f64 * self.per_second / 1e9) as u64;
        while self.due(end) <= now {
            end += 1;
        }
        while end > next && self.due(end - 1) > now {
            end -= 1;
        }
        next..end.min(self.jobs).max(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn every_job_is_due_once_however_seldom_the_schedule_is_read() {
        for rate in [3.0, 100.0, 1_000.0, 99_999.5] {
            let schedule = Schedule::new(rate, 2.0);
            let (mut next, mut now) = (0, 0);
            while next < schedule.jobs() {
                let due = schedule.due_by(now, next);
                assert_eq!(due.start, next);
                assert!(due.clone().all(|n| schedule.due(n) <= now));
                assert!(due.end == schedule.jobs() || schedule.due(due.end) > now);
                next = due.end;
                now += 7 * MS + now / 3;
            }
        }
    }

    #[test]
    fn a_stall_is_charged_to_every_job_that_it_delayed() {
        let schedule = Schedule::new(1_000.0, 1.0);
        // Simulates a sender that checks for due jobs every millisecond, except for a stall of 100 milliseconds.
        let times = (0..200).chain(300..=1_000).map(|ms| ms * MS);
        let (mut next, mut delays) = (0, Vec::new());
        for now in times {
            for number in schedule.due_by(now, next) {
                delays.push(now - schedule.due(number));
                next = number + 1;
            }
        }
        assert_eq!(delays.len(), 1_000);
        let delayed: Vec<u64> = delays.into_iter().filter(|&delay| delay > 0).collect();
        // At 1,000 jobs/s, a stall of 100 ms delays not one job but a hundred: the first by 100 ms, the last by 1 ms.
        assert_eq!(delayed.len(), 100);
        assert_eq!((delayed[0], delayed[99]), (100 * MS, MS));
    }
}
