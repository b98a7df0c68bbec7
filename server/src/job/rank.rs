//! One number orders the ready jobs of a type: `priority * 2^45 + ready_time_in_µs`, lower first.

/// What one priority weighs in rank: 2^45 µs, about 407 days. So priority is strict, and inside one
/// the order is that of becoming ready.
pub const PRIORITY_STEP: i64 = 1 << 45;

/// The part of rank that the priority gives; the database adds its clock.
pub const fn rank_base(priority: i16) -> i64 {
    priority as i64 * PRIORITY_STEP
}

#[cfg(test)]
mod tests {
    use super::rank_base;

    #[test]
    fn a_lower_priority_number_goes_first_even_a_year_later() {
        let year_us = 365 * 24 * 3600 * 1_000_000_i64;
        let now_us = 1_800_000_000_000_000_i64;
        assert!(rank_base(-1) + now_us + year_us < rank_base(0) + now_us);
    }

    #[test]
    fn the_ends_of_the_range_do_not_overflow() {
        let far_us = 4_000_000_000_000_000_i64;
        assert!(rank_base(1000).checked_add(far_us).is_some());
        assert!(rank_base(-1000) + far_us < 0);
    }
}
