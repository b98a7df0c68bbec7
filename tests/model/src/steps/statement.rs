//! Steps of SQL statements: commits, and answers read or lost.

use crate::{
    Protocol,
    state::{Answer, Claim, Kind, LeaseHistory, Phase, State, Statement},
    tables::{Ended, Ending, JobState, Number, Outcome, Token},
};

impl Protocol {
    /// A statement commits.
    pub(crate) fn commit(&self, state: &mut State, i: usize) {
        let mut statement = state.statements.remove(i);
        let answer = match &statement.kind {
            Kind::Claim { number } => {
                let first = state.tables.rows().iter().find(|row| row.state == JobState::Ready).map(|row| row.job);
                let token = state.leases.len() as Token + 1;
                let claimed = first.filter(|job| {
                    let protected = state.tables.is_live(*number);
                    let claimed = state.tables.claim(*job, token, Some(*number), self.checks);
                    if claimed {
                        state.leases.push(LeaseHistory::new(*job, protected));
                    }
                    claimed
                });
                Answer::Claimed(claimed.map(|job| Claim { job, token }))
            }
            Kind::Settle { claim, outcome, .. } => Answer::Settled(self.write(state, *claim, *outcome)),
            Kind::End { claim, owners, ending, adoptions } => {
                let ended = state.tables.end(claim.job, claim.token, Some(owners), *ending, self.checks);
                if let Some(Ended { token, .. }) = ended {
                    let history = state.lease_history_mut(token);
                    // The statement must not end another lease of the job, nor a lease that a reconnected worker brought back
                    // after the decision.
                    history.wronged = token != claim.token || history.adoptions != *adoptions;
                    history.ended = Some(*ending);
                }
                Answer::Ended
            }
            Kind::Adopt { number, wanted, .. } => Answer::Adopted(self.adopt(state, *number, wanted, None, true)),
            Kind::Readopt { number, wanted, owners } => {
                let from = self.checks.readopt_own.then_some(&owners[..]);
                Answer::Adopted(self.adopt(state, *number, wanted, from, false))
            }
            Kind::Compare => Answer::Ended,
        };
        let broker = &state.brokers[statement.broker];
        let looks_up = broker.up && broker.life == statement.life && matches!(answer, Answer::Claimed(Some(_)));
        // Drop answers that have no effect on the broker. Keep `Ended` while answers can still be lost, because the broker
        // repeats a statement whose answer is lost.
        let idle = matches!(answer, Answer::Claimed(None)) || answer == Answer::Ended && state.left.lost == 0;
        if !idle && !statement.lost || looks_up {
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
            let history = state.lease_history_mut(claim.token);
            history.protected = protected;
            // Moving a lease to a new number of the same broker does not count as an adoption by another session.
            history.adoptions += u8::from(from_session);
        }
        adopted
    }

    /// Writes a worker's outcome. Returns true also if the outcome was already written.
    fn write(&self, state: &mut State, claim: Claim, outcome: Outcome) -> bool {
        let Some(Ended { token, .. }) = state.tables.settle(claim.job, claim.token, outcome, self.checks) else {
            return state.tables.settled_before(claim.job, claim.token, outcome);
        };
        state.lease_history_mut(claim.token).committed.push(outcome);
        let history = state.lease_history_mut(token);
        history.wronged = token != claim.token;
        history.ended = Some(Ending::Settled(outcome));
        true
    }

    /// A broker's connection to Postgres breaks. The broker repeats idempotent statements; the first copy may still
    /// commit.
    pub(crate) fn lose(&self, state: &mut State, i: usize) {
        state.left.lost -= 1;
        let mut statement = state.statements.remove(i);
        let b = statement.broker;
        let was_sent = statement.phase == Phase::Sent;
        if was_sent {
            state.add(Statement { lost: true, ..statement.clone() });
        }
        match statement.kind.clone() {
            // The claim has committed, so the broker will look up the lease.
            Kind::Claim { .. } if !was_sent => {
                let looks_up = matches!(statement.phase, Phase::Done(Answer::Claimed(Some(_))));
                if looks_up {
                    state.add(Statement { lost: true, ..statement });
                }
            }
            // `readopting` stays set, so the broker repeats a readoption whose answer was lost.
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

    /// An adoption got no answer, so the stream ends with an error. The leases may now be under this broker's number.
    fn refuse(&self, state: &mut State, b: usize, (w, life, stream): (usize, u8, u8), wanted: &[Claim]) {
        let broker = &mut state.brokers[b];
        broker.unsure.extend(wanted);
        broker.unsure.sort_unstable();
        broker.unsure.dedup();
        if let Some(s) = broker.session(w, life).filter(|s| broker.sessions[*s].stream == Some(stream)) {
            self.notice(state, b, s);
        }
    }

    /// The broker answers UNAVAILABLE to an outcome, although the statement may still commit.
    pub(crate) fn give_up(&self, state: &mut State, i: usize) {
        state.left.lost -= 1;
        let statement = state.statements.remove(i);
        let (b, kind) = (statement.broker, statement.kind.clone());
        state.add(Statement { lost: true, ..statement });
        if let Kind::Settle { from, claim, .. } = kind {
            self.settled(state, b, from, claim, None);
        }
    }

    /// A broker whose claim got no answer looks up the lease in the database.
    pub(crate) fn look_up(&self, state: &mut State, i: usize) {
        let statement = state.statements.remove(i);
        if let (Kind::Claim { number }, Phase::Done(Answer::Claimed(Some(claim)))) = (statement.kind, statement.phase)
            && state.tables.owner(claim.job, claim.token) == Some(Some(number))
        {
            state.send_end(statement.broker, claim, Ending::Released);
        }
    }
}

impl LeaseHistory {
    const fn new(job: i64, protected: bool) -> Self {
        Self { job, protected, adoptions: 0, received: false, ended: None, wronged: false, committed: Vec::new() }
    }
}
