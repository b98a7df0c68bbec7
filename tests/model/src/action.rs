//! The steps of the model: what brokers, workers and Postgres can do in a state.

use crate::{
    Protocol,
    state::{Answer, Claim, Kind, Phase, State, Statement},
    tables::{Job, JobState, Number, Outcome},
};

/// A step of the model. `usize` fields are slots of brokers or workers, or positions in lists of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A broker sends a statement that claims a job.
    Claim(usize),
    /// A statement commits.
    Commit(usize),
    /// A broker reads the answer to a statement.
    Answer(usize),
    /// The connection to Postgres breaks, so the broker cannot know whether its statement committed. It repeats idempotent
    /// statements.
    Lose(usize),
    /// A statement whose answer was lost or no longer awaited never reached Postgres.
    Vanish(usize),
    /// A broker stops waiting for the statement that writes a worker's outcome, and answers UNAVAILABLE. The statement may
    /// still commit.
    GiveUp(usize),
    /// A broker whose claim got no answer looks up the lease in the database.
    LookUp(usize),
    /// A worker receives a job.
    Receive(usize),
    /// A worker sends an outcome.
    Settle(usize, Claim, Outcome),
    /// A worker opens a stream and lists the leases it holds.
    Connect(usize, usize),
    /// A stream breaks, and its worker notices.
    Break(usize),
    /// A worker learns that its stream has ended.
    Leave(usize),
    /// A broker notices that a stream has broken.
    Notice(usize, usize),
    /// The grace time of a session ends before its worker reconnects.
    GraceOver(usize, usize),
    /// The grace time of a lease ends whose adoption by this broker got no answer.
    Unsure(usize, Claim),
    /// `kill -9` of a worker; another worker takes its slot.
    KillWorker(usize),
    /// `kill -9` of a broker.
    KillBroker(usize),
    /// A new broker process starts in the slot of one that ended.
    Start(usize),
    /// A broker begins to drain.
    Stop(usize),
    /// A draining broker exits.
    Exit(usize),
    /// A broker's row expires without a renewal.
    Expire(Number),
    /// A broker finds its row expired and registers again.
    Renew(usize),
    /// A broker rescues a lease of an expired broker.
    Rescue(usize, Job),
    /// The deadline of an attempt passes.
    TimeOut(Job),
    /// A broker compares the leases in its memory with the tables.
    Compare(usize),
}

impl Action {
    /// Whether the step is a fault, which may never happen. All other possible steps happen eventually.
    pub fn is_fault(self, state: &State) -> bool {
        match self {
            Self::Lose(_)
            | Self::GiveUp(_)
            | Self::Break(_)
            | Self::KillWorker(_)
            | Self::KillBroker(_)
            | Self::Stop(_)
            | Self::TimeOut(_) => true,
            Self::Expire(number) => state.brokers.iter().any(|b| b.up && b.number == number),
            _ => false,
        }
    }
}

/// Formats a step for the printed run.
pub(crate) fn describe(state: &State, action: Action) -> String {
    let broker = |slot: usize| format!("broker {} (number {})", letter(slot), state.brokers[slot].number);
    match action {
        Action::Claim(b) => format!("{} sends a claim", broker(b)),
        Action::Commit(i) => format!("committed: {}", statement(&state.statements[i])),
        Action::Answer(i) => {
            let statement = &state.statements[i];
            format!("broker {} reads the answer to: {}", letter(statement.broker), self::statement(statement))
        }
        Action::Lose(i) => format!("the answer is lost to: {}", statement(&state.statements[i])),
        Action::Vanish(i) => format!("never arrived: {}", statement(&state.statements[i])),
        Action::GiveUp(i) => format!("given up by its broker: {}", statement(&state.statements[i])),
        Action::LookUp(i) => format!(
            "broker {} finds what this claim leased: {}",
            letter(state.statements[i].broker),
            statement(&state.statements[i])
        ),
        Action::Receive(i) => {
            let push = &state.pushed[i];
            format!("worker {} receives {}", push.worker + 1, claim(push.claim))
        }
        Action::Settle(w, c, outcome) => format!("worker {} sends {outcome:?} for {}", w + 1, claim(c)),
        Action::Connect(w, b) => {
            let holds: Vec<String> = state.workers[w].holds.iter().map(|h| claim(h.claim)).collect();
            format!("worker {} opens a stream at {}, holding [{}]", w + 1, broker(b), holds.join(", "))
        }
        Action::Break(w) => format!("the stream of worker {} breaks, and the worker notices", w + 1),
        Action::Leave(w) => format!("worker {} learns that its stream is over", w + 1),
        Action::Notice(b, s) => {
            format!("{} notices that a stream of worker {} is gone", broker(b), state.brokers[b].sessions[s].worker + 1)
        }
        Action::GraceOver(b, s) => {
            format!("{}: the grace time of worker {} is over", broker(b), state.brokers[b].sessions[s].worker + 1)
        }
        Action::Unsure(b, c) => format!("{}: no worker reconnected with {} in time", broker(b), claim(c)),
        Action::KillWorker(w) => format!("worker {} is killed; another one starts", w + 1),
        Action::KillBroker(b) => format!("{} is killed", broker(b)),
        Action::Start(b) => format!("broker {} starts, as number {}", letter(b), state.next_number),
        Action::Stop(b) => format!("{} starts to drain", broker(b)),
        Action::Exit(b) => format!("{} has stopped", broker(b)),
        Action::Expire(n) => format!("the row of number {n} expires"),
        Action::Renew(b) => {
            format!("{} finds that it has expired, and registers as number {}", broker(b), state.next_number)
        }
        Action::Rescue(b, job) => format!("{} rescues job {job}", broker(b)),
        Action::TimeOut(job) => format!("the attempt of job {job} times out"),
        Action::Compare(b) => format!("{} compares the leases of its sessions with the tables", broker(b)),
    }
}

/// Formats the tables for the printed run.
pub(crate) fn tables(state: &State) -> String {
    let rows: Vec<String> = state
        .tables
        .rows()
        .iter()
        .map(|row| {
            let state = match row.state {
                JobState::Leased(token, Some(number)) => format!("leased by number {number}, token {token}"),
                state => format!("{state:?}").to_lowercase(),
            };
            format!("job {} {state}, attempt {} of {}", row.job, row.attempt, row.max_attempts)
        })
        .collect();
    rows.join("; ")
}

fn letter(slot: usize) -> char {
    char::from(b'A' + slot as u8)
}

fn claim(claim: Claim) -> String {
    format!("job {} token {}", claim.job, claim.token)
}

fn statement(it: &Statement) -> String {
    let text = match &it.kind {
        Kind::Claim { number } => format!("claim for number {number}"),
        Kind::Settle { claim: c, outcome, from } => format!("{outcome:?} of worker {} for {}", from.0 + 1, claim(*c)),
        Kind::End { claim: c, owners, ending, .. } => format!("end {} of numbers {owners:?} as {ending:?}", claim(*c)),
        Kind::Adopt { by, number, .. } => format!("adopt for worker {}, number {number}", by.0 + 1),
        Kind::Readopt { number, .. } => format!("put all leases under number {number}"),
        Kind::Compare => "compare".into(),
    };
    match &it.phase {
        Phase::Done(Answer::Claimed(Some(c))) => format!("{text}: {}", claim(*c)),
        Phase::Done(Answer::Settled(ok)) => format!("{text}: {}", if *ok { "OK" } else { "LEASE_LOST" }),
        _ => text,
    }
}

impl Protocol {
    /// Lists the steps that are possible in this state.
    pub fn possible(&self, state: &State) -> Vec<Action> {
        let mut actions = Vec::new();
        for b in 0..state.brokers.len() {
            self.broker_actions(state, b, &mut actions);
        }
        for w in 0..state.workers.len() {
            self.worker_actions(state, w, &mut actions);
        }
        statement_actions(state, &mut actions);
        actions.extend((0..state.pushed.len()).filter(|&i| may_receive(state, i)).map(Action::Receive));
        self.clock_actions(state, &mut actions);
        actions
    }

    fn broker_actions(&self, state: &State, b: usize, actions: &mut Vec<Action>) {
        let broker = &state.brokers[b];
        if !broker.up {
            actions.push(Action::Start(b));
            return;
        }
        let awaited = |s: &&Statement| s.broker == b && s.life == broker.life && !s.lost;
        let waits_for = |kind: fn(&Kind) -> bool| state.statements.iter().filter(awaited).any(|s| kind(&s.kind));
        let is_ready = state.tables.rows().iter().any(|row| row.state == JobState::Ready);
        let has_room = broker.sessions.iter().any(|s| self.has_room(s));
        if is_ready
            && has_room
            && !broker.draining
            && state.left.claims > 0
            && !waits_for(|k| matches!(k, Kind::Claim { .. }))
        {
            actions.push(Action::Claim(b));
        }
        if state.left.broker_kills > 0 {
            actions.push(Action::KillBroker(b));
        }
        if state.left.stops > 0 && !broker.draining {
            actions.push(Action::Stop(b));
        }
        if broker.draining
            && broker.sessions.iter().all(|s| s.stream.is_none())
            && !state.statements.iter().any(|s| awaited(&s))
        {
            actions.push(Action::Exit(b));
        }
        let readopts = waits_for(|k| matches!(k, Kind::Readopt { .. }));
        if !state.tables.is_live(broker.number) || (broker.readopting && !readopts) {
            actions.push(Action::Renew(b));
        }
        for (s, session) in broker.sessions.iter().enumerate() {
            // While an adoption for this stream awaits its answer, the session must begin on the stream first, even if the
            // stream has broken since.
            let begins = state.statements.iter().filter(awaited).any(|s| matches!(s.kind,
                Kind::Adopt { by, .. } if by.0 == session.worker && by.1 == session.life && Some(by.2) == session.stream));
            if session.stream.is_some() && !state.is_connected(b, session) && !begins {
                actions.push(Action::Notice(b, s));
            }
            let waits = session.held.iter().any(|held| may_still_adopt(state, b, held.claim));
            if session.stream.is_none() && !session.ended && !broker.draining && !waits {
                actions.push(Action::GraceOver(b, s));
            }
        }
        let unsure = broker.unsure.iter().filter(|claim| !may_still_adopt(state, b, **claim));
        actions.extend(unsure.map(|claim| Action::Unsure(b, *claim)));
        for row in state.tables.rows() {
            if let JobState::Leased(_, Some(number)) = row.state
                && !state.tables.is_live(number)
                && (state.tables.is_live(broker.number) || !self.checks.rescuer_expiry)
            {
                actions.push(Action::Rescue(b, row.job));
            }
        }
        if !broker.readopting && !waits_for(|k| matches!(k, Kind::Compare)) && !self.compared(state, b).is_empty() {
            actions.push(Action::Compare(b));
        }
    }

    fn worker_actions(&self, state: &State, w: usize, actions: &mut Vec<Action>) {
        let worker = &state.workers[w];
        if state.left.worker_kills > 0 {
            actions.push(Action::KillWorker(w));
        }
        let Some(at) = worker.at else {
            let open = |b: &usize| state.brokers[*b].up && !state.brokers[*b].draining && !self.ends(state, *b, w);
            actions.extend((0..state.brokers.len()).filter(open).map(|b| Action::Connect(w, b)));
            return;
        };
        if state.left.breaks > 0 {
            actions.push(Action::Break(w));
        }
        let broker = &state.brokers[at];
        let knows = |s: &crate::state::Session| s.worker == w && state.is_connected(at, s);
        if !broker.up || broker.draining || !broker.sessions.iter().any(knows) {
            actions.push(Action::Leave(w));
        }
        if worker.welcomed && broker.up && broker.sessions.iter().any(knows) {
            let idle = worker.holds.iter().filter(|h| !matches!(h.doing, crate::state::Doing::Sent(_)));
            for holding in idle {
                actions.extend(self.size.outcomes.iter().map(|o| Action::Settle(w, holding.claim, *o)));
            }
        }
    }

    /// Whether broker `b` is about to end a lease that worker `w` holds, and therefore refuses the worker's stream. If the
    /// answer to this statement was lost, the statement commits before the worker reconnects, or never.
    fn ends(&self, state: &State, b: usize, w: usize) -> bool {
        let life = state.brokers[b].life;
        let mut sent = state.statements.iter().filter(|s| s.broker == b && s.life == life);
        let held = |claim: Claim| state.workers[w].holds.iter().any(|h| h.claim == claim);
        sent.any(|s| (s.lost || self.checks.ending) && matches!(s.kind, Kind::End { claim, .. } if held(claim)))
    }

    fn clock_actions(&self, state: &State, actions: &mut Vec<Action>) {
        for number in 1..state.next_number {
            // The expiry of an ended broker's row does not count as a fault.
            let runs = state.brokers.iter().any(|b| b.up && b.number == number);
            if state.tables.is_live(number) && (!runs || state.left.expiries > 0) {
                actions.push(Action::Expire(number));
            }
        }
        if state.left.timeouts > 0 {
            let leased = state.tables.rows().iter().filter(|row| matches!(row.state, JobState::Leased(..)));
            actions.extend(leased.map(|row| Action::TimeOut(row.job)));
        }
    }
}

/// Whether an unanswered adoption of this lease may still commit. The grace time is longer than any statement takes, so it ends
/// only after the adoption has committed or failed.
fn may_still_adopt(state: &State, b: usize, claim: Claim) -> bool {
    let mut lost = state.statements.iter().filter(|s| s.broker == b && s.lost);
    lost.any(|s| matches!(&s.kind, Kind::Adopt { wanted, .. } if wanted.contains(&claim)))
}

fn may_receive(state: &State, i: usize) -> bool {
    let push = &state.pushed[i];
    state.workers[push.worker].stream == push.stream && state.workers[push.worker].welcomed
}

fn statement_actions(state: &State, actions: &mut Vec<Action>) {
    for (i, statement) in state.statements.iter().enumerate() {
        let broker = &state.brokers[statement.broker];
        let awaited = !statement.lost && broker.up && broker.life == statement.life;
        match (&statement.phase, awaited) {
            (Phase::Sent, true) => {
                actions.push(Action::Commit(i));
                if state.left.lost > 0 && !matches!(statement.kind, Kind::Compare) {
                    actions.push(Action::Lose(i));
                    if matches!(statement.kind, Kind::Settle { .. }) {
                        actions.push(Action::GiveUp(i));
                    }
                }
            }
            (Phase::Sent, false) => actions.extend([Action::Commit(i), Action::Vanish(i)]),
            (Phase::Done(_), true) => {
                actions.push(Action::Answer(i));
                if state.left.lost > 0 && !matches!(statement.kind, Kind::Compare) {
                    actions.push(Action::Lose(i));
                }
            }
            (Phase::Done(_), false) => actions.push(Action::LookUp(i)),
        }
    }
}
