//! Brokers: claims, sessions that break, processes that end and start.

use crate::{
    Protocol,
    state::{Broker, Claim, Kind, Phase, Push, Session, State},
    tables::Ending,
};

impl Protocol {
    /// Whether a session can take one more job.
    pub(crate) fn has_room(&self, session: &Session) -> bool {
        // Capacity is free as soon as an outcome arrives.
        session.stream.is_some() && session.begun == session.stream && session.unsettled().len() < self.size.window
    }

    /// A broker asks for a job.
    pub(crate) fn claim(&self, state: &mut State, b: usize) {
        state.left.claims -= 1;
        let number = state.brokers[b].number;
        state.send(b, Kind::Claim { number });
    }

    /// A claimed job goes to the session with the fewest, or back.
    pub(crate) fn deal(&self, state: &mut State, b: usize, claim: Claim) {
        let broker = &state.brokers[b];
        let free = broker.sessions.iter().enumerate().filter(|(_, s)| !s.ended && self.has_room(s));
        let least = free.min_by_key(|(_, s)| s.held.len()).map(|(s, _)| s).filter(|_| !broker.draining);
        let Some(s) = least else {
            state.send_end(b, claim, Ending::Released);
            return;
        };
        let mut session = state.brokers[b].sessions.remove(s);
        session.hold(claim);
        let (worker, stream) = (session.worker, session.stream.unwrap_or_default());
        let arrives = state.is_connected(b, &session);
        state.brokers[b].add_session(session);
        // What is written to a stream that is gone never arrives.
        if arrives {
            state.pushed.push(Push { worker, stream, claim });
            state.pushed.sort_unstable();
        }
    }

    /// A broker notices that a stream is gone. The worker has the grace time.
    pub(crate) fn notice(&self, state: &mut State, b: usize, s: usize) {
        let mut session = state.brokers[b].sessions.remove(s);
        session.stream = None;
        if !session.held.is_empty() {
            state.brokers[b].add_session(session);
        }
    }

    /// Nobody came back: the attempts count.
    pub(crate) fn grace_over(&self, state: &mut State, b: usize, s: usize) {
        let mut session = state.brokers[b].sessions.remove(s);
        let lost = session.unsettled();
        session.held.retain(|held| held.settling);
        session.ended = true;
        if !session.held.is_empty() {
            state.brokers[b].add_session(session);
        }
        for claim in lost {
            self.fail(state, b, claim);
        }
    }

    /// The same for a lease whose adoption was not answered.
    pub(crate) fn unsure(&self, state: &mut State, b: usize, claim: Claim) {
        state.brokers[b].unsure.retain(|other| *other != claim);
        self.fail(state, b, claim);
    }

    /// A lease that nobody came back with, as far as this broker knows. One that a session has is left alone, and so is one
    /// whose adoption is under way: the stream that asked for that answers for it.
    pub(crate) fn fail(&self, state: &mut State, b: usize, claim: Claim) {
        let mut sessions = state.brokers[b].sessions.iter().filter(|s| !s.ended);
        let held = sessions.any(|s| s.held.iter().any(|held| held.claim == claim));
        if !self.checks.ending || !held && !adopts(state, b, claim) {
            state.send_end(b, claim, Ending::Lost);
        }
    }

    /// A process ends. What it has sent may still be committed.
    pub(crate) fn end_broker(&self, state: &mut State, b: usize) {
        let Broker { life, number, .. } = state.brokers[b];
        state.brokers[b] = Broker { up: false, life, number, ..Broker::default() };
        state.statements.retain(|s| s.broker != b || s.phase == Phase::Sent && !matches!(s.kind, Kind::Compare));
        state.statements.iter_mut().filter(|s| s.broker == b).for_each(|s| s.lost = true);
        state.statements.sort();
        // Streams of its workers end with it; jobs on their way may still arrive.
    }

    /// A process starts, under a new number.
    pub(crate) fn start_broker(&self, state: &mut State, b: usize) {
        let number = register(state);
        let life = state.brokers[b].life + 1;
        let knows_former = self.checks.former;
        state.brokers[b] = Broker { up: true, life, number, knows_former, ..Broker::default() };
    }

    /// A broker is told to stop: no more claims, and its workers go elsewhere.
    pub(crate) fn stop(&self, state: &mut State, b: usize) {
        state.left.stops -= 1;
        state.brokers[b].draining = true;
    }

    /// A broker finds its row expired. It registers again, and takes along the leases that its workers have.
    pub(crate) fn renew(&self, state: &mut State, b: usize) {
        if !state.tables.is_live(state.brokers[b].number) {
            if !self.checks.renewal_expiry {
                state.tables.register(state.brokers[b].number);
                return;
            }
            let number = register(state);
            let broker = &mut state.brokers[b];
            broker.former.push(broker.number);
            broker.number = number;
        }
        let broker = &mut state.brokers[b];
        let mut wanted: Vec<Claim> = broker.sessions.iter().filter(|s| !s.ended).flat_map(Session::unsettled).collect();
        wanted.sort_unstable();
        wanted.dedup();
        broker.readopting = !wanted.is_empty();
        // An earlier try may have been committed.
        let (number, own) = (broker.number, [&broker.former[..], &[broker.number]].concat());
        if !wanted.is_empty() {
            state.send(b, Kind::Readopt { number, own, wanted });
        }
    }
}

/// Whether a stream waits for this broker's adoption of a lease.
fn adopts(state: &State, b: usize, claim: Claim) -> bool {
    let life = state.brokers[b].life;
    let mut own = state.statements.iter().filter(|s| s.broker == b && s.life == life && !s.lost);
    own.any(|s| matches!(&s.kind, Kind::Adopt { wanted, .. } if wanted.contains(&claim)))
}

fn register(state: &mut State) -> i32 {
    let number = state.next_number;
    state.next_number += 1;
    state.tables.register(number);
    number
}
