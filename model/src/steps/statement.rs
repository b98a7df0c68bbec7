//! Statements: they take effect, their answers are read or lost.

use crate::{
    Protocol,
    state::{Answer, Claim, Kind, Phase, State, Statement, Story},
    tables::{Ended, Ending, Number, Outcome, Place, Token},
};

impl Protocol {
    /// A statement takes effect.
    pub(crate) fn commit(&self, state: &mut State, i: usize) {
        let mut statement = state.statements.remove(i);
        let answer = match &statement.kind {
            Kind::Claim { number } => {
                let first = state.tables.rows().iter().find(|row| row.place == Place::Ready).map(|row| row.job);
                let token = state.leases.len() as Token + 1;
                let claimed = first.filter(|job| {
                    let protected = state.tables.is_live(*number);
                    let claimed = state.tables.claim(*job, token, Some(*number), self.checks);
                    if claimed {
                        state.leases.push(Story::new(*job, protected));
                    }
                    claimed
                });
                Answer::Claimed(claimed.map(|job| Claim { job, token }))
            }
            Kind::Settle { claim, outcome, .. } => Answer::Settled(self.write(state, *claim, *outcome)),
            Kind::End { claim, owners, ending, adoptions } => {
                let ended = state.tables.end(claim.job, claim.token, Some(owners), *ending, self.checks);
                if let Some(Ended { token, .. }) = ended {
                    let story = state.story_mut(token);
                    // It was decided about this lease, and before anybody came back with it.
                    story.wronged = token != claim.token || story.adoptions != *adoptions;
                    story.ended = Some(*ending);
                }
                Answer::Ended
            }
            Kind::Adopt { number, wanted, .. } => Answer::Adopted(self.adopt(state, *number, wanted, None, true)),
            Kind::Readopt { number, wanted, own } => {
                let from = self.checks.readopt_own.then_some(&own[..]);
                Answer::Adopted(self.adopt(state, *number, wanted, from, false))
            }
            Kind::Compare => Answer::Ended,
        };
        let broker = &state.brokers[statement.broker];
        let looks = broker.up && broker.life == statement.life && matches!(answer, Answer::Claimed(Some(_)));
        // Nothing follows from these answers, but a repeat if they are lost.
        let idle = matches!(answer, Answer::Claimed(None)) || answer == Answer::Ended && state.left.lost == 0;
        if !idle && !statement.lost || looks {
            statement.phase = Phase::Done(answer);
            state.add(statement);
        }
    }

    fn adopt(
        &self,
        state: &mut State,
        number: Number,
        wanted: &[Claim],
        from: Option<&[Number]>,
        from_session: bool,
    ) -> Vec<Claim> {
        let protected = state.tables.is_live(number);
        let mut adopted = wanted.to_vec();
        adopted.retain(|claim| state.tables.adopt(claim.job, claim.token, number, from, self.checks));
        for claim in &adopted {
            let story = state.story_mut(claim.token);
            story.protected = protected;
            // Not if the broker only has another number.
            story.adoptions += u8::from(from_session);
        }
        adopted
    }

    /// A worker's outcome is written, or found to have been written before.
    fn write(&self, state: &mut State, claim: Claim, outcome: Outcome) -> bool {
        let Some(Ended { token, .. }) = state.tables.settle(claim.job, claim.token, outcome, self.checks) else {
            return state.tables.settled_before(claim.job, claim.token, outcome);
        };
        state.story_mut(claim.token).committed.push(outcome);
        let story = state.story_mut(token);
        story.wronged = token != claim.token;
        story.ended = Some(Ending::Settled(outcome));
        true
    }

    /// A connection broke. Statements that can be repeated are; the first one may still be committed.
    pub(crate) fn lose(&self, state: &mut State, i: usize) {
        state.left.lost -= 1;
        let mut statement = state.statements.remove(i);
        let b = statement.broker;
        let was_sent = statement.phase == Phase::Sent;
        if was_sent {
            state.add(Statement { lost: true, ..statement.clone() });
        }
        match statement.kind.clone() {
            // It is looked for, once it is committed or gone.
            Kind::Claim { .. } if !was_sent => {
                let looks = matches!(statement.phase, Phase::Done(Answer::Claimed(Some(_))));
                if looks {
                    state.add(Statement { lost: true, ..statement });
                }
            }
            // `readopting` stays, so that is done again.
            Kind::Claim { .. } | Kind::Compare | Kind::Readopt { .. } => {}
            Kind::Settle { .. } => {
                statement.phase = Phase::Sent;
                state.add(statement);
            }
            Kind::End { claim, ending, adoptions, .. } => {
                let owners = state.brokers[b].numbers();
                state.send(b, Kind::End { claim, owners, ending, adoptions });
            }
            Kind::Adopt { by: (w, life, stream), wanted, .. } => self.refuse(state, b, (w, life, stream), &wanted),
        }
    }

    /// An adoption failed: the stream ends with an error. Perhaps the leases are this broker's now.
    fn refuse(&self, state: &mut State, b: usize, (w, life, stream): (usize, u8, u8), wanted: &[Claim]) {
        let broker = &mut state.brokers[b];
        broker.unsure.extend(wanted);
        broker.unsure.sort_unstable();
        broker.unsure.dedup();
        if let Some(s) = broker.session(w, life).filter(|s| broker.sessions[*s].stream == Some(stream)) {
            self.notice(state, b, s);
        }
    }

    /// The broker answers that it cannot write an outcome now. It may be written all the same.
    pub(crate) fn give_up(&self, state: &mut State, i: usize) {
        state.left.lost -= 1;
        let statement = state.statements.remove(i);
        let (b, kind) = (statement.broker, statement.kind.clone());
        state.add(Statement { lost: true, ..statement });
        if let Kind::Settle { from, claim, .. } = kind {
            self.settled(state, b, from, claim, None);
        }
    }

    /// A broker finds the lease of a claim whose answer was lost.
    pub(crate) fn look(&self, state: &mut State, i: usize) {
        let statement = state.statements.remove(i);
        if let (Kind::Claim { number }, Phase::Done(Answer::Claimed(Some(claim)))) = (statement.kind, statement.phase)
            && state.tables.owner(claim.job, claim.token) == Some(Some(number))
        {
            state.send_end(statement.broker, claim, Ending::Released);
        }
    }
}

impl Story {
    const fn new(job: i64, protected: bool) -> Self {
        Self { job, protected, adoptions: 0, received: false, ended: None, wronged: false, committed: Vec::new() }
    }
}
