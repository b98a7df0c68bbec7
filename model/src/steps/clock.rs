//! What happens by the clock: rows expire, leases are rescued or time out, memory is compared with the tables.

use crate::{
    Protocol,
    state::{Answer, Claim, Kind, Phase, State, Statement, Verdict},
    tables::{Ending, Job, Number, Place},
};

impl Protocol {
    /// A broker's row is not renewed in time.
    pub(crate) fn expire(&self, state: &mut State, number: Number) {
        if state.brokers.iter().any(|b| b.up && b.number == number) {
            state.left.expiries -= 1;
        }
        state.tables.expire(number);
    }

    /// A broker takes back a lease of one that is gone.
    pub(crate) fn rescue(&self, state: &mut State, b: usize, job: Job) {
        let by = state.brokers[b].number;
        if let Some(ended) = state.tables.rescue(job, by, self.checks) {
            let story = state.story_mut(ended.token);
            // The rule ends leases of a broker that has expired since it got them.
            story.wronged = !story.protected;
            story.ended = Some(Ending::Rescued);
        }
    }

    /// The deadline of an attempt passes.
    pub(crate) fn time_out(&self, state: &mut State, job: Job) {
        state.left.timeouts -= 1;
        let token = state.tables.rows().iter().find_map(|row| match row.place {
            Place::Leased(token, _) if row.job == job => Some(token),
            _ => None,
        });
        if let Some(token) = token
            && state.tables.end(job, token, None, Ending::TimedOut, self.checks).is_some()
        {
            // As settle_nack does with a deadline: it is not the worker's outcome.
            state.story_mut(token).ended = Some(Ending::TimedOut);
        }
    }

    /// What a comparison would find now.
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

    /// The statement that looks; what it finds is handled later.
    pub(crate) fn compare(&self, state: &mut State, b: usize) {
        let found = self.compared(state, b);
        let life = state.brokers[b].life;
        let phase = Phase::Done(Answer::Compared(found));
        state.add(Statement { broker: b, life, kind: Kind::Compare, phase, lost: false });
    }
}
