//! Replanning of a schedule's next time after the rules of its time zone have changed, or the database's clock has gone back.

use super::{Drift, Plan, Schedule};

/// Fixed times of the day do not fire again if the clock is set back by at most this time, in µs. Vixie cron has the
/// same rule.
const REPEATED: i64 = 3 * 3_600 * 1_000_000;
/// Tolerance in µs for clock differences between transactions: a clock that is behind by less does not count as set
/// back.
const SLACK: i64 = 10_000_000;

impl Schedule {
    /// Offset of the schedule's time zone at the next planned time, in s, to be stored with that time.
    pub fn zone_offset(&self) -> Option<i32> {
        let next = self.state.next?;
        match self.state.zone_offset {
            Some((time, offset)) if time == next => Some(offset),
            _ => self.spec.plan.parse().ok()?.offset_at(next),
        }
    }

    /// Corrects the next planned time if the time zone's rules have changed or the clock was set back. Returns whether
    /// anything changed.
    pub fn replan(&mut self, plan: &Plan, now: i64) -> bool {
        let before = (self.state.anchor, self.state.next, self.state.zone_offset);
        self.follow_zone(plan, now);
        self.pull_back(plan, now.saturating_add(SLACK));
        (self.state.anchor, self.state.next, self.state.zone_offset) != before
    }

    /// Applies the current rules of the time zone, if the next planned time was computed by other rules. The corrected
    /// time stands for the same planned time, so that no time fires twice or is skipped.
    pub fn follow_zone(&mut self, plan: &Plan, now: i64) {
        let state = &mut self.state;
        let (Some(next), Some((time, offset))) = (state.next, state.zone_offset) else { return };
        if time != next || plan.offset_at(next) == Some(offset) {
            return;
        }
        let Some(anew) = plan.planned_anew(state.anchor, next, offset, now) else { return };
        // By the new rules, the corrected time may be before an earlier firing.
        let fired = state.last_planned.filter(|fired| (anew..=now).contains(fired));
        let anew = fired.map_or(Some(anew), |fired| self.spec.next_after(plan, state.anchor, fired));
        state.next = anew.filter(|anew| self.spec.end.is_none_or(|end| *anew < end));
        state.zone_offset = None;
    }

    /// Moves the next planned time back if it is later than any time that could be planned now, because the database's
    /// clock was then ahead when the time was planned.
    fn pull_back(&mut self, plan: &Plan, now: i64) {
        let Some(next) = self.state.next.filter(|next| *next > now) else { return };
        if self.spec.start.is_some_and(|start| start > now) {
            return;
        }
        // A period without a start time, or a period counted from the end of jobs, may start at any time.
        let floats = self.spec.start.is_none() || self.spec.drift == Drift::End;
        let anchor = self.state.anchor.min(now);
        let after = |time| self.spec.next_after(plan, anchor, time);
        // Latest time that can be planned now, and the new planned time.
        let (latest, anew) = match plan {
            Plan::Period(period) if floats => (Some(now.saturating_add(*period)), Some(now.saturating_add(*period))),
            Plan::Period(period) => (after(now.saturating_add(*period - 1)), after(now.saturating_add(*period - 1))),
            Plan::Cron(_) if plan.has_fixed_times() => (after(now.saturating_add(REPEATED)), after(now)),
            Plan::Cron(_) => (after(now), after(now)),
        };
        if let (Some(latest), Some(anew)) = (latest, anew)
            && next > latest
        {
            self.state.anchor = if floats && matches!(plan, Plan::Period(_)) { anew } else { anchor };
            self.state.next = Some(anew);
        }
    }
}

#[cfg(test)]
#[path = "replan_tests.rs"]
mod tests;
