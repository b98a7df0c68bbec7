//! Changes of a schedule: another definition, pause and resume.

use super::{Drift, Overlap, Plan, PlanText, Schedule, ScheduleSpec};

impl Schedule {
    /// Replaces the definition. An unchanged plan keeps its planned times. A changed period counts from the start of the current
    /// one. An error names the field.
    pub fn redefine(&mut self, spec: ScheduleSpec, now: i64) -> Result<(), (&'static str, String)> {
        let plan = spec.plan.parse()?;
        let began = self.period_began();
        let state = &mut self.state;
        let same = !state.unplanned
            && spec.plan == self.spec.plan
            && spec.drift == self.spec.drift
            && spec.start == self.spec.start;
        // The next time is unknown, because the period starts at the end of an unfinished job.
        let waits = state.watching && [self.spec.drift, spec.drift] == [Drift::End; 2] && spec.start == self.spec.start;
        if !same && !waits {
            let fresh = spec.planned_since(&plan, began, now)?;
            (state.anchor, state.next) = (fresh.anchor, fresh.next);
        } else if !waits {
            let kept = state.next.filter(|next| spec.end.is_none_or(|end| *next < end));
            let next = kept.or_else(|| spec.next_after(&plan, state.anchor, now));
            state.next = Some(next.ok_or_else(|| spec.never())?);
        }
        if spec.overlap != Overlap::OneWaiting && state.held.take().is_some() {
            state.skipped += 1;
        }
        state.watching = waits || state.held.is_some();
        state.unplanned = false;
        state.last_error = None;
        self.spec = spec;
        Ok(())
    }

    /// Start of the current period: the last planned time, or with `Drift::End` the end of the last job. `None` if the schedule
    /// has not fired yet.
    fn period_began(&self) -> Option<i64> {
        let planned = self.state.last_planned?;
        if self.state.unplanned {
            return Some(self.state.anchor);
        }
        match (self.spec.drift, &self.spec.plan, self.state.next) {
            (Drift::End, PlanText::Period(ms), Some(next)) => Some(next.saturating_sub(ms.saturating_mul(1000))),
            _ => Some(planned),
        }
    }

    /// Plans the schedule, if an SQL function has defined it. An error names the field.
    pub fn plan_defined(&mut self, plan: &Plan, now: i64) -> Result<(), (&'static str, String)> {
        if self.state.unplanned {
            let fresh = self.spec.planned_since(plan, self.period_began(), now)?;
            let state = &mut self.state;
            (state.anchor, state.next, state.unplanned) = (fresh.anchor, fresh.next, false);
        }
        Ok(())
    }

    /// Pauses the schedule.
    pub fn pause(&mut self) {
        self.state.paused = true;
        self.state.watching = false;
        if self.state.held.take().is_some() {
            self.state.skipped += 1;
        }
    }

    /// Resumes the schedule; planned times during the pause are skipped. A schedule that has not fired yet begins now.
    pub fn resume(&mut self, now: i64) -> Result<(), (&'static str, String)> {
        if !std::mem::take(&mut self.state.paused) {
            return Ok(());
        }
        let plan = self.spec.plan.parse()?;
        if self.state.unplanned || self.state.next.is_some_and(|next| next > now) {
            return Ok(());
        }
        let state = &mut self.state;
        if state.last_planned.is_none() {
            // A schedule whose end has passed has no next time.
            let fresh = self.spec.planned_from(&plan, now).unwrap_or_default();
            (state.anchor, state.next) = (fresh.anchor, fresh.next);
            return Ok(());
        }
        if let (Drift::End, Plan::Period(period)) = (self.spec.drift, &plan) {
            state.anchor = now.saturating_add(*period);
        }
        state.next = self.spec.next_after(&plan, state.anchor, now);
        Ok(())
    }
}
