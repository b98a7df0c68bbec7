//! Steps of workers: streams, received jobs and sent outcomes.

use crate::{
    Protocol,
    state::{Claim, Doing, Holding, Kind, Session, State, Worker},
    tables::{Ending, Outcome},
};

impl Protocol {
    /// A worker receives a job from its stream.
    pub(crate) fn receive(&self, state: &mut State, i: usize) {
        let push = state.pushed.remove(i);
        state.lease_history_mut(push.claim.token).received = true;
        let holds = &mut state.workers[push.worker].holds;
        holds.push(Holding { claim: push.claim, doing: Doing::Runs });
        holds.sort_unstable();
    }

    /// A worker sends an outcome. Its broker immediately sends the statement that writes the outcome.
    pub(crate) fn settle(&self, state: &mut State, w: usize, claim: Claim, outcome: Outcome) {
        let worker = &mut state.workers[w];
        for holding in worker.holds.iter_mut().filter(|holding| holding.claim == claim) {
            holding.doing = Doing::Sent(outcome);
        }
        let (Some(at), life) = (worker.at, worker.life) else { return };
        if let Some(s) = state.brokers[at].session(w, life) {
            let held = &mut state.brokers[at].sessions[s].held;
            held.iter_mut().filter(|held| held.claim == claim).for_each(|held| held.settling = true);
        }
        state.send(at, Kind::Settle { from: (w, life), claim, outcome });
    }

    /// A worker opens a stream and lists its leases. The broker adopts these leases before it sends `Welcome`.
    pub(crate) fn connect(&self, state: &mut State, w: usize, b: usize) {
        let worker = &mut state.workers[w];
        worker.stream += 1;
        worker.at = Some(b);
        worker.welcomed = false;
        let (life, stream) = (worker.life, worker.stream);
        let wanted: Vec<Claim> = worker.holds.iter().map(|holding| holding.claim).collect();
        let mut session = match state.brokers[b].session(w, life) {
            Some(s) => state.brokers[b].sessions.remove(s),
            None => Session { worker: w, life, stream: None, begun: None, held: Vec::new(), ended: false },
        };
        session.stream = Some(stream);
        state.brokers[b].add_session(session);
        if wanted.is_empty() {
            self.begin(state, b, (w, life, stream), &[], &[]);
        } else {
            let number = state.brokers[b].number;
            state.send(b, Kind::Adopt { by: (w, life, stream), number, wanted });
        }
    }

    /// A session begins on a stream with the adopted leases. Leases of the session that the worker did not list are released,
    /// because their jobs were never delivered.
    pub(crate) fn begin(
        &self,
        state: &mut State,
        b: usize,
        (w, life, stream): (usize, u8, u8),
        wanted: &[Claim],
        adopted: &[Claim],
    ) {
        let Some(s) =
            state.brokers[b].session(w, life).filter(|s| state.brokers[b].sessions[*s].stream == Some(stream))
        else {
            // The session has a later stream or has ended, so this stream cannot begin. The grace time of the leases starts.
            state.brokers[b].unsure.extend(wanted);
            state.brokers[b].unsure.sort_unstable();
            state.brokers[b].unsure.dedup();
            return;
        };
        let mut session = state.brokers[b].sessions.remove(s);
        let had: Vec<Claim> = session.unsettled().into_iter().filter(|claim| !adopted.contains(claim)).collect();
        session.held.retain(|held| held.settling);
        session.begun = Some(stream);
        for claim in adopted {
            if !session.held.iter().any(|held| held.claim.job == claim.job) {
                session.hold(*claim);
            }
        }
        state.brokers[b].add_session(session);
        for claim in had {
            if wanted.contains(&claim) && self.checks.listed {
                self.fail(state, b, claim);
            } else {
                state.send_end(b, claim, Ending::Released);
            }
        }
        let worker = &mut state.workers[w];
        if worker.at == Some(b) && worker.life == life && worker.stream == stream {
            worker.welcomed = true;
            // The worker drops running jobs whose leases it lost. It sends unanswered outcomes again in any case.
            worker.holds.retain(|h| adopted.contains(&h.claim) || h.doing != Doing::Runs);
        }
    }

    /// A worker's stream ends.
    pub(crate) fn leave(&self, state: &mut State, w: usize) {
        let worker = &mut state.workers[w];
        worker.at = None;
        worker.welcomed = false;
        for holding in worker.holds.iter_mut().filter(|holding| holding.doing != Doing::Runs) {
            holding.doing = Doing::Unanswered;
        }
        state.pushed.retain(|push| push.worker != w);
    }

    /// `kill -9` of a worker. Another worker takes its slot with a new session.
    pub(crate) fn kill_worker(&self, state: &mut State, w: usize) {
        state.left.worker_kills -= 1;
        let Worker { life, stream, .. } = state.workers[w];
        state.workers[w] = Worker { life: life + 1, stream: stream + 1, ..Worker::default() };
        state.pushed.retain(|push| push.worker != w);
    }
}
