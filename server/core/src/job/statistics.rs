//! Statistics of task types: attempts in groups, and percentiles from mergeable buckets.

use std::{collections::BTreeMap, f64::consts::LN_2, time::Duration};

use super::TypeId;

/// Number of histogram buckets per power of two. The middle of a bucket is at most 9.1 % away from any duration in it.
/// These are the exponential histograms of OpenTelemetry and Prometheus (scale 2).
const PER_OCTAVE: f64 = 4.0;

/// Bucket of a duration in µs, as in `howdah.duration_bucket`.
fn bucket(us: i64) -> i16 {
    (PER_OCTAVE * (us.max(1) as f64).ln() / LN_2).ceil() as i16
}

/// Start of an attempt, and how long its job waited before. In µs, by the clock of the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Started {
    /// Type of the job.
    pub type_id: TypeId,
    /// Time in µs after 1970.
    pub at_us: i64,
    /// Wait time of the job.
    pub waited_us: i64,
}

/// Attempts that end together, grouped by task type, start, and bucket of the wait time. Each field is an array
/// parameter of a statement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttemptGroups {
    /// Types.
    pub type_ids: Vec<TypeId>,
    /// Start times.
    pub starts_us: Vec<i64>,
    /// Buckets of the wait times.
    pub wait_buckets: Vec<i16>,
    /// Numbers of attempts per group.
    pub attempts: Vec<i64>,
    /// Sums of the wait times per group, in µs.
    pub waits_us: Vec<i64>,
}

impl AttemptGroups {
    /// Groups attempts. Returns `None` if a start is unknown. Jobs that were leased together mostly end together, so an
    /// attempt mostly belongs to the group of the previous one.
    pub fn from_attempts(attempts: impl Iterator<Item = Option<Started>>) -> Option<Self> {
        let mut groups = Self::default();
        let mut last: Option<(Started, usize)> = None;
        for started in attempts {
            let started = started?;
            let index = match last {
                Some((before, index)) if before == started => index,
                _ => groups.find(started),
            };
            groups.attempts[index] += 1;
            groups.waits_us[index] = groups.waits_us[index].saturating_add(started.waited_us);
            last = Some((started, index));
        }
        Some(groups)
    }

    /// Returns the index of the attempt's group, and creates the group if it is missing. Only the last groups are
    /// searched: a duplicate group does no harm.
    fn find(&mut self, started: Started) -> usize {
        const SEARCHED: usize = 16;
        let wait_bucket = bucket(started.waited_us);
        let is_it = |&i: &usize| {
            (self.type_ids[i], self.starts_us[i], self.wait_buckets[i]) == (started.type_id, started.at_us, wait_bucket)
        };
        let count = self.type_ids.len();
        (count.saturating_sub(SEARCHED)..count).rev().find(is_it).unwrap_or_else(|| {
            self.type_ids.push(started.type_id);
            self.starts_us.push(started.at_us);
            self.wait_buckets.push(wait_bucket);
            self.attempts.push(0);
            self.waits_us.push(0);
            count
        })
    }
}

/// Distribution of durations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DurationStats {
    /// Sum of all durations, in µs.
    pub sum_us: f64,
    /// Non-empty buckets in order, with their numbers of attempts.
    pub buckets: Vec<(i16, i64)>,
}

impl DurationStats {
    /// Number of attempts.
    pub fn count(&self) -> i64 {
        self.buckets.iter().map(|(_, attempts)| attempts).sum()
    }

    /// Adds the durations of another distribution.
    pub fn add(&mut self, other: &Self) {
        let mut buckets: BTreeMap<i16, i64> = self.buckets.iter().copied().collect();
        for (bucket, attempts) in &other.buckets {
            *buckets.entry(*bucket).or_default() += attempts;
        }
        self.buckets = buckets.into_iter().collect();
        self.sum_us += other.sum_us;
    }

    /// The mean; `None` without attempts.
    pub fn mean(&self) -> Option<Duration> {
        let count = self.count();
        (count > 0).then(|| from_us(self.sum_us / count as f64))
    }

    /// Percentile `part` (0 to 1): the middle of the bucket that contains it.
    pub fn percentile(&self, part: f64) -> Option<Duration> {
        let rank = (part * self.count() as f64).ceil().max(1.0) as i64;
        let mut seen = 0;
        self.buckets.iter().find_map(|&(bucket, attempts)| {
            seen += attempts;
            (seen >= rank).then(|| from_us(((f64::from(bucket) - 0.5) / PER_OCTAVE).exp2()))
        })
    }
}

fn from_us(us: f64) -> Duration {
    Duration::try_from_secs_f64(us / 1e6).unwrap_or_default()
}

/// Statistics of a period.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Jobs added to the type: enqueued, or moved to it as a stage or a fallback.
    pub enqueued: i64,
    /// Attempts that succeeded.
    pub succeeded: i64,
    /// Attempts that failed.
    pub failed: i64,
    /// Jobs that became dead.
    pub dead: i64,
    /// Jobs that were cancelled.
    pub cancelled: i64,
    /// Jobs that expired before they started.
    pub expired: i64,
    /// Wait times of jobs before their attempts.
    pub wait: DurationStats,
    /// Run times of attempts.
    pub run: DurationStats,
    /// Highest numbers of ready, leased, scheduled, waiting and dead jobs in a sample of the period; `None` without a sample.
    pub backlog: Option<[i64; 5]>,
}

impl Stats {
    /// Adds the events of other jobs or of another period. The backlog is not added, because it is a maximum.
    pub fn add_events(&mut self, other: &Self) {
        self.enqueued += other.enqueued;
        self.succeeded += other.succeeded;
        self.failed += other.failed;
        self.dead += other.dead;
        self.cancelled += other.cancelled;
        self.expired += other.expired;
        self.wait.add(&other.wait);
        self.run.add(&other.run);
    }
}

/// Length of the periods of statistics. Each starts at a whole minute, hour or day in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatsPeriod {
    /// A minute; such statistics are kept for two hours.
    Minute,
    /// An hour; such statistics are kept for 90 days.
    Hour,
    /// A day; such statistics are kept for 90 days.
    Day,
}

impl StatsPeriod {
    /// Length in minutes.
    pub const fn minutes(self) -> i16 {
        match self {
            Self::Minute => 1,
            Self::Hour => 60,
            Self::Day => 1440,
        }
    }

    /// Retention of the statistics with periods of this length.
    pub const fn kept(self) -> Duration {
        match self {
            Self::Minute => Duration::from_secs(2 * 3600),
            Self::Hour | Self::Day => Duration::from_secs(90 * 86_400),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_at_most_a_tenth_off() {
        for us in [1, 2, 3, 7, 100, 999, 1_000_000, 86_400_000_000] {
            let stats = DurationStats { sum_us: us as f64, buckets: vec![(bucket(us), 1)] };
            let shown = stats.percentile(0.5).unwrap().as_secs_f64() * 1e6;
            // Durations are stored in whole nanoseconds.
            assert!((shown / us as f64 - 1.0).abs() < 0.0911 + 0.001, "{us} is shown as {shown}");
        }
    }

    #[test]
    fn percentiles_of_many_attempts_are_in_order() {
        let buckets = vec![(bucket(1_000), 90), (bucket(10_000), 9), (bucket(100_000), 1)];
        let stats = DurationStats { sum_us: 280_000.0, buckets };
        let ms = |part| (stats.percentile(part).unwrap().as_secs_f64() * 1e3).round();
        assert_eq!((stats.count(), stats.mean()), (100, Some(Duration::from_micros(2_800))));
        assert!((ms(0.5), ms(0.9)) == (1.0, 1.0) && (9.0..=11.0).contains(&ms(0.99)), "{stats:?}");
        assert_eq!(DurationStats::default().percentile(0.5), None);
        assert_eq!(DurationStats::default().mean(), None);
    }

    #[test]
    fn distributions_are_added_bucket_by_bucket() {
        let mut all = DurationStats { sum_us: 5.0, buckets: vec![(1, 2), (7, 1)] };
        all.add(&DurationStats { sum_us: 4.0, buckets: vec![(-3, 1), (7, 4)] });
        assert_eq!(all, DurationStats { sum_us: 9.0, buckets: vec![(-3, 1), (1, 2), (7, 5)] });
    }

    #[test]
    fn attempts_that_started_together_are_one_group() {
        let started = |type_id, waited_us| Some(Started { type_id, at_us: 5, waited_us });
        let attempts = [started(1, 100), started(2, 100), started(1, 100), started(1, 101), started(1, 1_000_000)];
        let groups = AttemptGroups::from_attempts(attempts.into_iter()).unwrap();
        assert_eq!((groups.type_ids, groups.attempts), (vec![1, 2, 1], vec![3, 1, 1]));
        assert_eq!(groups.waits_us, [301, 100, 1_000_000]);
        assert_eq!(AttemptGroups::from_attempts([started(1, 1), None].into_iter()), None);
    }
}
