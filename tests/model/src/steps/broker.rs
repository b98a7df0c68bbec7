//! Steps of brokers: claims, broken sessions, starts and ends of processes.

use crate::{
    Protocol,
    state::{Broker, Claim, Kind, Phase, Push, Session, State},
    tables::Ending,
};

impl Protocol {
    /// Whether a session can take another job.
    pub(crate) fn has_room(&self, session: &Session) -> bool {
        // A lease counts towards the window only until the worker's outcome arrives.
        session.stream.is_some() && session.begun == session.stream && session.unsettled().len() < self.size.window
    }

    /// A broker sends a statement that claims a job.
    pub(crate) fn claim(&self, state: &mut State, b: usize) {
        state.left.claims -= 1;
        let number = state.brokers[b].number;
        state.send(b, Kind::Claim { number });
    }

    /// Assigns a claimed job to the session with the fewest jobs, or releases the job if no session has room.
    pub(crate) fn assign(&self, state: &mut State, b: usize, claim: Claim) {
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
        // A job written to a broken stream never arrives.
        if arrives {
            state.pushed.push(Push { worker, stream, claim });
            state.pushed.sort_unstable();
        }
    }

    /// A broker notices a broken stream. The grace time of the worker starts.
    pub(crate) fn notice(&self, state: &mut State, b: usize, s: usize) {
        let mut session = state.brokers[b].sessions.remove(s);
        session.stream = None;
        if !session.held.is_empty() {
            state.brokers[b].add_session(session);
        }
    }

    /// The grace time of a session ends without a reconnect, so its leases fail and their attempts count.
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

    /// The grace time of a lease whose adoption got no answer ends.
    pub(crate) fn unsure(&self, state: &mut State, b: usize, claim: Claim) {
        state.brokers[b].unsure.retain(|other| *other != claim);
        self.fail(state, b, claim);
    }

    /// Fails a lease whose worker, as far as this broker knows, has not reconnected. Does nothing if a session holds the lease,
    /// or if its adoption is in flight: then the stream that requested the adoption decides about the lease.
    pub(crate) fn fail(&self, state: &mut State, b: usize, claim: Claim) {
        let mut sessions = state.brokers[b].sessions.iter().filter(|s| !s.ended);
        let held = sessions.any(|s| s.held.iter().any(|held| held.claim == claim));
        if !self.checks.ending || !held && !adopts(state, b, claim) {
            state.send_end(b, claim, Ending::Lost);
        }
    }

    /// A broker process ends. Its statements in flight may still commit.
    pub(crate) fn end_broker(&self, state: &mut State, b: usize) {
        let Broker { life, number, .. } = state.brokers[b];
        state.brokers[b] = Broker { up: false, life, number, ..Broker::default() };
        state.statements.retain(|s| s.broker != b || s.phase == Phase::Sent && !matches!(s.kind, Kind::Compare));
        state.statements.iter_mut().filter(|s| s.broker == b).for_each(|s| s.lost = true);
        state.statements.sort();
        // Streams to the ended broker end too, but jobs in flight on them may still arrive.
    }

    /// A broker process starts under a new number.
    pub(crate) fn start_broker(&self, state: &mut State, b: usize) {
        let number = register(state);
        let life = state.brokers[b].life + 1;
        let knows_former = self.checks.former;
        state.brokers[b] = Broker { up: true, life, number, knows_former, ..Broker::default() };
    }

    /// A broker drains: it stops claiming, and its workers connect elsewhere.
    pub(crate) fn stop(&self, state: &mut State, b: usize) {
        state.left.stops -= 1;
        state.brokers[b].draining = true;
    }

    /// A broker finds its row expired. It registers again and readopts the leases of its workers.
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
        // An earlier statement that moved the leases may have committed although its answer was lost. So leases may be under
        // the current number too.
        let (number, owners) = (broker.number, [&broker.former[..], &[broker.number]].concat());
        if !wanted.is_empty() {
            state.send(b, Kind::Readopt { number, owners, wanted });
        }
    }
}

/// Whether a stream of this broker waits until the broker has adopted the lease.
fn adopts(state: &State, b: usize, claim: Claim) -> bool {
    let life = state.brokers[b].life;
    let mut awaited = state.statements.iter().filter(|s| s.broker == b && s.life == life && !s.lost);
    awaited.any(|s| matches!(&s.kind, Kind::Adopt { wanted, .. } if wanted.contains(&claim)))
}

fn register(state: &mut State) -> i32 {
    let number = state.next_number;
    state.next_number += 1;
    state.tables.register(number);
    number
}
