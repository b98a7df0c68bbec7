//! How brokers handle the answers to their statements.

use std::collections::BTreeSet;

use crate::{
    Protocol,
    state::{Answer, Claim, Doing, Kind, Phase, State, Verdict},
    tables::{Ending, Outcome},
};

impl Protocol {
    /// The broker reads the answer to a statement.
    pub(crate) fn answer(&self, state: &mut State, i: usize) {
        let statement = state.statements.remove(i);
        let b = statement.broker;
        let Phase::Done(answer) = statement.phase else { return };
        match (statement.kind, answer) {
            (Kind::Claim { .. }, Answer::Claimed(Some(claim))) => self.assign(state, b, claim),
            (Kind::Settle { from, claim, outcome }, Answer::Settled(ok)) => {
                if ok && !state.lease_history(claim.token).committed.contains(&outcome) {
                    state.false_ok = true;
                }
                self.settled(state, b, from, claim, Some(outcome));
            }
            (Kind::Adopt { by, wanted, .. }, Answer::Adopted(adopted)) => self.begin(state, b, by, &wanted, &adopted),
            (Kind::Readopt { wanted, .. }, Answer::Adopted(adopted)) => {
                state.brokers[b].readopting = false;
                for claim in wanted.iter().filter(|claim| !adopted.contains(claim)) {
                    self.cancel(state, b, *claim);
                }
            }
            (Kind::Compare, Answer::Compared(found)) => self.apply_comparison(state, b, &found),
            _ => {}
        }
    }

    /// The broker answers a worker's outcome. `None` stands for UNAVAILABLE.
    pub(crate) fn settled(
        &self,
        state: &mut State,
        b: usize,
        (w, life): (usize, u8),
        claim: Claim,
        outcome: Option<Outcome>,
    ) {
        let of_worker = |s: &crate::state::Session| s.worker == w && s.life == life;
        let has_it = |s: &crate::state::Session| of_worker(s) && s.held.iter().any(|held| held.claim == claim);
        if let Some(s) = state.brokers[b].sessions.iter().position(has_it) {
            let mut session = state.brokers[b].sessions.remove(s);
            if outcome.is_some() {
                session.held.retain(|held| held.claim != claim);
            } else {
                session.held.iter_mut().filter(|held| held.claim == claim).for_each(|held| held.settling = false);
            }
            if session.ended {
                // The session has ended and the outcome was not written, so no session holds the lease: fail it.
                let orphan = session.held.iter().any(|held| held.claim == claim);
                session.held.retain(|held| held.claim != claim);
                if orphan {
                    self.fail(state, b, claim);
                }
            }
            if !(session.held.is_empty() && session.stream.is_none()) {
                state.brokers[b].add_session(session);
            }
        }
        let is_connected =
            state.brokers[b].sessions.iter().any(|s| of_worker(s) && !s.ended && state.is_connected(b, s));
        let worker = &mut state.workers[w];
        if is_connected && worker.welcomed {
            if outcome.is_some() {
                worker.holds.retain(|holding| holding.claim != claim);
            } else {
                let it = worker.holds.iter_mut().filter(|holding| holding.claim == claim);
                it.for_each(|holding| holding.doing = Doing::Unanswered);
            }
        }
    }

    /// Removes an ended lease from all sessions of the broker, and cancels its job at the workers.
    fn cancel(&self, state: &mut State, b: usize, claim: Claim) {
        for session in &mut state.brokers[b].sessions {
            session.held.retain(|held| held.claim != claim || held.settling);
        }
        state.brokers[b].sessions.retain(|s| s.stream.is_some() || !s.held.is_empty());
        let connected: BTreeSet<usize> = state.brokers[b]
            .sessions
            .iter()
            .filter(|s| !s.ended && state.is_connected(b, s))
            .map(|s| s.worker)
            .collect();
        for w in connected {
            state.workers[w].holds.retain(|holding| holding.claim != claim || holding.doing != Doing::Runs);
            // Drop the job if it is still on its way to the worker.
            state.pushed.retain(|push| push.worker != w || push.claim != claim);
        }
        state.brokers[b].sessions.sort();
    }

    /// Applies the result of a comparison with the tables. Skips sessions that have changed since the comparison.
    fn apply_comparison(&self, state: &mut State, b: usize, found: &[(Verdict, Claim, Option<u8>)]) {
        if state.brokers[b].readopting {
            return;
        }
        let still = |state: &State, claim: &Claim, begun: &Option<u8>| {
            let has_it = |s: &&crate::state::Session| !s.ended && s.unsettled().contains(claim);
            state.brokers[b].sessions.iter().find(has_it).is_some_and(|s| s.begun == *begun)
        };
        let mut moved = Vec::new();
        for (verdict, claim, begun) in
            found.iter().filter(|(_, claim, begun)| still(state, claim, begun)).copied().collect::<Vec<_>>()
        {
            match verdict {
                Verdict::Over => self.cancel(state, b, claim),
                Verdict::Moved => moved.push((claim, begun)),
            }
        }
        // A moved lease means that the worker reconnected to another broker, so its session at this broker ends. Leases of the
        // session that the worker did not list at the other broker were never delivered.
        let is_gone =
            |s: &crate::state::Session| !s.ended && moved.iter().any(|(claim, _)| s.unsettled().contains(claim));
        while let Some(s) = state.brokers[b].sessions.iter().position(is_gone) {
            let mut session = state.brokers[b].sessions.remove(s);
            let left = session.unsettled().into_iter().filter(|claim| !moved.iter().any(|(m, _)| m == claim));
            let left: Vec<Claim> = left.collect();
            session.held.retain(|held| held.settling);
            session.stream = None;
            if !session.held.is_empty() {
                state.brokers[b].add_session(session);
            }
            for claim in left {
                state.send_end(b, claim, Ending::Released);
            }
        }
    }
}
