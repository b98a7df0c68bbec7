//! An open loop: jobs are due at fixed times, independent of earlier ones.

use std::ops::Range;

/// When each job is due: the n-th at n / rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    per_second: f64,
    jobs: u64,
}

impl Schedule {
    /// `seconds` of jobs at a rate.
    pub(crate) fn new(per_second: f64, seconds: f64) -> Self {
        Self { per_second, jobs: (per_second * seconds).floor() as u64 }
    }

    /// How many jobs there will be.
    pub(crate) fn jobs(&self) -> u64 {
        self.jobs
    }

    /// When the n-th job is due, in nanoseconds.
    pub(crate) fn due(&self, number: u64) -> u64 {
        (number as f64 * 1e9 / self.per_second) as u64
    }

    /// The jobs that are due by now, of those from `next` on.
    pub(crate) fn due_by(&self, now: u64, next: u64) -> Range<u64> {
        // The division may be off by one job.
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
    fn every_job_is_due_once_however_seldom_one_looks() {
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
        // The sender looks every millisecond, but for 100 of them it was held up.
        let looks = (0..200).chain(300..=1_000).map(|ms| ms * MS);
        let (mut next, mut late) = (0, Vec::new());
        for now in looks {
            for number in schedule.due_by(now, next) {
                late.push(now - schedule.due(number));
                next = number + 1;
            }
        }
        assert_eq!(late.len(), 1_000);
        let delayed: Vec<u64> = late.into_iter().filter(|&late| late > 0).collect();
        // Not one slow job, but a hundred: the first 100 ms late, the last 1 ms.
        assert_eq!(delayed.len(), 100);
        assert_eq!((delayed[0], delayed[99]), (100 * MS, MS));
    }
}
