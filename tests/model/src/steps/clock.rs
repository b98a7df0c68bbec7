//! Steps that time causes: rows expire, leases are rescued or time out, and brokers compare their memory with the
//! tables.

use crate::{
    Protocol,
    state::{Answer, Claim, Kind, Phase, State, Statement, Verdict},
    tables::{Ending, Job, JobState, Number},
};

impl Protocol {
    /// A broker's row expires without a renewal.
    pub(crate) fn expire(&self, state: &mut State, number: Number) {
        if state.brokers.iter().any(|b| b.up && b.number == number) {
            state.left.expiries -= 1;
        }
        state.tables.expire(number);
    }

    /// A broker rescues a lease of an expired broker.
    pub(crate) fn rescue(&self, state: &mut State, b: usize, job: Job) {
        let by = state.brokers[b].number;
        if let Some(ended) = state.tables.rescue(job, by, self.checks) {
            let history = state.lease_history_mut(ended.token);
            // A rescue is allowed only if the row of the lease's broker was live when that broker got the lease.
            history.wronged = !history.protected;
            history.ended = Some(Ending::Rescued);
        }
    }

    /// The deadline of an attempt passes.
    pub(crate) fn time_out(&self, state: &mut State, job: Job) {
        state.left.timeouts -= 1;
        let token = state.tables.rows().iter().find_map(|row| match row.state {
            JobState::Leased(token, _) if row.job == job => Some(token),
            _ => None,
        });
        if let Some(token) = token
            && state.tables.end(job, token, None, Ending::TimedOut, self.checks).is_some()
        {
            // Record a timeout like `settle_nack` with a deadline does: it is not the worker's outcome.
            state.lease_history_mut(token).ended = Some(Ending::TimedOut);
        }
    }

    /// Compares the broker's sessions with the tables, and returns the leases that have moved or ended.
    pub(crate) fn compared(&self, state: &State, b: usize) -> Vec<(Verdict, Claim, Option<u8>)> {
        let broker = &state.brokers[b];
        let mut found = Vec::new();
        for session in broker.sessions.iter().filter(|s| !s.ended) {
            for claim in session.unsettled() {
                let verdict = match state.tables.owner(claim.job, claim.token) {
                    Some(Some(number)) if broker.numbers().contains(&number) => continue,
                    Some(_) => Verdict::Moved,
                    None => Verdict::Over,
                };
                found.push((verdict, claim, session.begun));
            }
        }
        found
    }

    /// Compares the broker's sessions with the tables. The broker handles the result in a later step.
    pub(crate) fn compare(&self, state: &mut State, b: usize) {
        let found = self.compared(state, b);
        let life = state.brokers[b].life;
        let phase = Phase::Done(Answer::Compared(found));
        state.add(Statement { broker: b, life, kind: Kind::Compare, phase, lost: false });
    }
}
