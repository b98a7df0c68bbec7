//! Firing of schedules: which planned times fire, which are skipped, and when the schedule is checked next. Two checks
//! in a row fire the same planned times as one late check.

use super::{Drift, Missed, Overlap, Plan, ScheduleSpec, ScheduleState};

/// A planned time counts as missed if it is overdue by more than this, in µs.
pub const MISSED_AFTER: i64 = 60_000_000;
/// Maximum number of planned times of a calendar that one search step computes.
const MAX_TIMES: usize = 10_000;
/// Minimum length in µs of a search step backwards in time. A calendar has at most 60 planned times in it.
const SHORTEST_LOOK: i64 = 60_000_000;

/// Planned times to fire, and the state afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Firing {
    /// Planned times, oldest first; each gets a job.
    pub planned: Vec<i64>,
    /// State after firing. Its counters do not include the jobs of `planned` yet.
    pub state: ScheduleState,
}

impl ScheduleSpec {
    /// Determines which planned times to fire at `now`. `last_end`: end of the last watched job, once all have ended.
    /// `busy`: whether a job of the schedule is unfinished. `room`: maximum number of jobs to enqueue.
    pub fn fire(
        &self,
        plan: &Plan,
        state: &ScheduleState,
        now: i64,
        busy: bool,
        last_end: Option<i64>,
        room: usize,
    ) -> Firing {
        let mut step = Step { spec: self, state: state.clone(), busy, room, planned: Vec::new() };
        // An SQL function may have moved the end before the next planned time.
        step.state.next = step.state.next.filter(|next| self.end.is_none_or(|end| *next < end));
        if state.paused {
            return Firing { planned: step.planned, state: step.state };
        }
        match (self.drift, plan) {
            (Drift::End, Plan::Period(period)) => step.by_the_end(plan, *period, now, last_end),
            _ => step.by_the_plan(plan, now),
        }
        Firing { planned: step.planned, state: step.state }
    }

    /// Returns the newest `at_most` planned times from `first` to `last`, oldest first, and the number of omitted ones.
    fn newest(&self, plan: &Plan, anchor: i64, first: i64, last: i64, at_most: usize) -> (Vec<i64>, i64) {
        if let Plan::Period(period) = plan {
            let count = (last - first) / period + 1;
            let kept = count.min(at_most as i64);
            let times = (count - kept..count).map(|n| first + n * period).collect();
            return (times, count - kept);
        }
        // The newest times are wanted, but a calendar can only be searched forwards. So each round begins further in the past.
        let mut found: Vec<i64> = Vec::new();
        let (mut begin, mut look) = (last, SHORTEST_LOOK);
        while begin >= first && found.len() <= at_most.max(MAX_TIMES) {
            let from = (begin - look).max(first - 1);
            match self.between(plan, anchor, from, begin) {
                Some(mut times) => {
                    times.append(&mut found);
                    found = times;
                    begin = from;
                    look = look.saturating_mul(4);
                    if from < first {
                        break;
                    }
                }
                None => look = (look / 8).max(SHORTEST_LOOK),
            }
        }
        let besides = found.len().saturating_sub(at_most);
        (found.split_off(besides), besides as i64)
    }

    /// Planned times after `after` up to `last`; `None` if they are more than `MAX_TIMES`.
    fn between(&self, plan: &Plan, anchor: i64, after: i64, last: i64) -> Option<Vec<i64>> {
        let next = |time: &i64| self.next_after(plan, anchor, *time);
        let times: Vec<i64> =
            std::iter::successors(next(&after), next).take_while(|time| *time <= last).take(MAX_TIMES + 1).collect();
        (times.len() <= MAX_TIMES).then_some(times)
    }
}

struct Step<'a> {
    spec: &'a ScheduleSpec,
    state: ScheduleState,
    busy: bool,
    room: usize,
    planned: Vec<i64>,
}

impl Step<'_> {
    fn by_the_plan(&mut self, plan: &Plan, now: i64) {
        if let Some(held) = self.state.held
            && !self.busy
        {
            self.state.held = None;
            self.take(held);
        }
        self.planned_until(plan, now);
        self.state.watching = self.state.held.is_some();
    }

    fn planned_until(&mut self, plan: &Plan, now: i64) {
        let Some(next) = self.state.next else { return };
        let jitter = self.spec.jitter_ms.saturating_mul(1000);
        let missed_until = now.saturating_sub(MISSED_AFTER).saturating_sub(jitter);
        if next <= missed_until {
            let limit = self.spec.missed.limit() as usize;
            let (made_up, left_out) = self.spec.newest(plan, self.state.anchor, next, missed_until, limit);
            self.state.skipped += left_out;
            for time in made_up {
                if !self.offer(time) {
                    return;
                }
            }
            self.state.next = self.spec.next_after(plan, self.state.anchor, missed_until);
        }
        while let Some(next) = self.state.next {
            if next.saturating_add(self.spec.jitter_of(next)) > now || !self.offer(next) {
                return;
            }
            self.state.next = self.spec.next_after(plan, self.state.anchor, next);
        }
    }

    /// Fires a schedule whose period starts at the end of the last job, so that jobs never overlap.
    fn by_the_end(&mut self, plan: &Plan, period: i64, now: i64, last_end: Option<i64>) {
        if self.busy {
            // A job is unfinished, so the next planned time follows its end. This includes a job that was run manually
            // or belongs to an earlier plan.
            self.state.watching = true;
            self.state.next = None;
            return;
        }
        if self.state.watching {
            self.state.watching = false;
            let next = last_end.unwrap_or(now).saturating_add(period);
            self.state.anchor = next;
            self.state.next = Some(next).filter(|next| self.spec.end.is_none_or(|end| *next < end));
        }
        let Some(next) = self.state.next else { return };
        if next.saturating_add(self.spec.jitter_of(next)) > now {
            return;
        }
        let late = next <= now - MISSED_AFTER - self.spec.jitter_ms.saturating_mul(1000);
        if late && self.spec.missed == Missed::Skip {
            self.state.skipped += 1;
            self.state.next = self.spec.next_after(plan, self.state.anchor, now - MISSED_AFTER);
        } else if self.offer(next) {
            self.state.next = None;
            self.state.watching = true;
        }
    }

    /// Fires, holds or skips this planned time. Returns false if there is no room for another job; then the time
    /// remains the next planned time.
    fn offer(&mut self, time: i64) -> bool {
        match self.spec.overlap {
            Overlap::Skip if self.busy => self.state.skipped += 1,
            Overlap::OneWaiting if self.busy && self.state.held.is_some() => self.state.skipped += 1,
            Overlap::OneWaiting if self.busy => self.state.held = Some(time),
            _ if self.planned.len() >= self.room => {
                self.state.next = Some(time);
                return false;
            }
            _ => self.take(time),
        }
        true
    }

    fn take(&mut self, time: i64) {
        self.planned.push(time);
        // With `Overlap::Allow`, earlier jobs do not matter.
        self.busy = self.busy || self.spec.overlap != Overlap::Allow;
    }
}

#[cfg(test)]
#[path = "fire_tests.rs"]
mod tests;
