//! Rank: one number that orders the ready jobs of a type: `priority * step + ready_time_in_µs`, lower first.

use super::TypeId;

/// Default priority step in µs: 2^45 µs, about 407 days. With it, priority is strict, and jobs of one priority run in the order in
/// which they became ready. With a smaller step jobs age: a job that has waited for one step longer runs before a job whose
/// priority is better by one.
pub const PRIORITY_STEP: i64 = 1 << 45;

/// Part of the rank that comes from the priority. The database adds the time at which the job becomes ready.
pub const fn rank_base(priority: i16, step_us: i64) -> i64 {
    priority as i64 * step_us
}

/// Jobs of one type that became ready.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    /// The type.
    pub type_id: TypeId,
    /// Lowest rank of the jobs.
    pub lowest_rank: i64,
    /// Number of jobs.
    pub jobs: u64,
}

impl Ready {
    /// Reports at least one ready job of a type, if the number of jobs is unknown.
    pub fn some(type_id: TypeId, lowest_rank: i64) -> Self {
        Self { type_id, lowest_rank, jobs: 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::{PRIORITY_STEP, rank_base};

    #[test]
    fn a_lower_priority_number_goes_first_even_a_year_later() {
        let year_us = 365 * 24 * 3600 * 1_000_000_i64;
        let now_us = 1_800_000_000_000_000_i64;
        assert!(rank_base(-1, PRIORITY_STEP) + now_us + year_us < rank_base(0, PRIORITY_STEP) + now_us);
    }

    #[test]
    fn with_a_small_priority_step_a_job_that_has_waited_longer_goes_first() {
        let minute_us = 60_000_000;
        assert!(rank_base(10, minute_us) < rank_base(0, minute_us) + 11 * minute_us);
        assert!(rank_base(10, minute_us) > rank_base(0, minute_us) + 9 * minute_us);
    }

    #[test]
    fn the_ends_of_the_range_do_not_overflow() {
        let far_us = 4_000_000_000_000_000_i64;
        assert!(rank_base(1000, PRIORITY_STEP).checked_add(far_us).is_some());
        assert!(rank_base(-1000, PRIORITY_STEP) + far_us < 0);
    }
}
