//! Everything that can happen next.

use crate::{
    Protocol,
    state::{Answer, Claim, Kind, Phase, State, Statement},
    tables::{Job, Number, Outcome, Place},
};

/// A step. Indexes are slots of brokers and workers, or positions in the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A broker sends a claim.
    Claim(usize),
    /// A statement takes effect.
    Commit(usize),
    /// The broker reads an answer.
    Answer(usize),
    /// The connection breaks: the broker will not know whether the statement took effect. It repeats what it can repeat.
    Lose(usize),
    /// A statement that nobody waits for never reached Postgres.
    Vanish(usize),
    /// The broker waits no longer for an outcome to be written. It may be written all the same.
    GiveUp(usize),
    /// A broker finds what a claim has leased whose answer was lost.
    Look(usize),
    /// A worker reads a job.
    Receive(usize),
    /// A worker sends an outcome.
    Settle(usize, Claim, Outcome),
    /// A worker opens a stream, with what it holds.
    Connect(usize, usize),
    /// A stream breaks, and the worker notices.
    Break(usize),
    /// A worker is told that its stream is over.
    Leave(usize),
    /// A broker notices that a stream is gone.
    Notice(usize, usize),
    /// A session's worker did not come back in time.
    GraceOver(usize, usize),
    /// The same for leases whose adoption was not answered.
    Unsure(usize, Claim),
    /// `kill -9`; another worker starts.
    KillWorker(usize),
    /// `kill -9`.
    KillBroker(usize),
    /// A broker starts where one has ended.
    Start(usize),
    /// A broker is told to stop.
    Stop(usize),
    /// A broker that was told to stop ends.
    Exit(usize),
    /// A broker's row is not renewed in time.
    Expire(Number),
    /// A broker finds that its row has expired, and registers again.
    Renew(usize),
    /// A broker takes back a lease of one that is gone.
    Rescue(usize, Job),
    /// The deadline of an attempt passes.
    TimeOut(Job),
    /// A broker compares what its sessions have with the tables.
    Compare(usize),
}

impl Action {
    /// What a run may be spared. Everything else happens sooner or later.
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

/// The step in words.
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
        Action::Look(i) => format!(
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
        Action::Break(w) => format!("the stream of worker {} breaks; it notices", w + 1),
        Action::Leave(w) => format!("worker {} learns that its stream is over", w + 1),
        Action::Notice(b, s) => {
            format!("{} notices that a stream of worker {} is gone", broker(b), state.brokers[b].sessions[s].worker + 1)
        }
        Action::GraceOver(b, s) => {
            format!("{}: the grace time of worker {} is over", broker(b), state.brokers[b].sessions[s].worker + 1)
        }
        Action::Unsure(b, c) => format!("{}: nobody came back with {} in time", broker(b), claim(c)),
        Action::KillWorker(w) => format!("worker {} is killed; another one starts", w + 1),
        Action::KillBroker(b) => format!("{} is killed", broker(b)),
        Action::Start(b) => format!("broker {} starts, as number {}", letter(b), state.next_number),
        Action::Stop(b) => format!("{} is told to stop", broker(b)),
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

/// The tables in words.
pub(crate) fn tables(state: &State) -> String {
    let rows: Vec<String> = state
        .tables
        .rows()
        .iter()
        .map(|row| {
            let place = match row.place {
                Place::Leased(token, Some(number)) => format!("leased by number {number}, token {token}"),
                place => format!("{place:?}").to_lowercase(),
            };
            format!("job {} {place}, attempt {} of {}", row.job, row.attempt, row.max_attempts)
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
    let says = match &it.kind {
        Kind::Claim { number } => format!("claim for number {number}"),
        Kind::Settle { claim: c, outcome, from } => format!("{outcome:?} of worker {} for {}", from.0 + 1, claim(*c)),
        Kind::End { claim: c, owners, ending, .. } => format!("end {} of numbers {owners:?} as {ending:?}", claim(*c)),
        Kind::Adopt { by, number, .. } => format!("adopt for worker {}, number {number}", by.0 + 1),
        Kind::Readopt { number, .. } => format!("put all leases under number {number}"),
        Kind::Compare => "compare".into(),
    };
    match &it.phase {
        Phase::Done(Answer::Claimed(Some(c))) => format!("{says}: {}", claim(*c)),
        Phase::Done(Answer::Settled(ok)) => format!("{says}: {}", if *ok { "OK" } else { "LEASE_LOST" }),
        _ => says,
    }
}

impl Protocol {
    /// What can happen in this state.
    pub fn possible(&self, state: &State) -> Vec<Action> {
        let mut actions = Vec::new();
        for b in 0..state.brokers.len() {
            self.of_broker(state, b, &mut actions);
        }
        for w in 0..state.workers.len() {
            self.of_worker(state, w, &mut actions);
        }
        of_statements(state, &mut actions);
        actions.extend((0..state.pushed.len()).filter(|&i| may_receive(state, i)).map(Action::Receive));
        self.of_clock(state, &mut actions);
        actions
    }

    fn of_broker(&self, state: &State, b: usize, actions: &mut Vec<Action>) {
        let broker = &state.brokers[b];
        if !broker.up {
            actions.push(Action::Start(b));
            return;
        }
        let mine = |s: &&Statement| s.broker == b && s.life == broker.life && !s.lost;
        let waits_for = |kind: fn(&Kind) -> bool| state.statements.iter().filter(mine).any(|s| kind(&s.kind));
        let is_ready = state.tables.rows().iter().any(|row| row.place == Place::Ready);
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
            && !state.statements.iter().any(|s| mine(&s))
        {
            actions.push(Action::Exit(b));
        }
        let readopts = waits_for(|k| matches!(k, Kind::Readopt { .. }));
        if !state.tables.is_live(broker.number) || (broker.readopting && !readopts) {
            actions.push(Action::Renew(b));
        }
        for (s, session) in broker.sessions.iter().enumerate() {
            // A session is put on its stream first, even if that is gone by now.
            let begins = state.statements.iter().filter(mine).any(|s| matches!(s.kind,
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
            if let Place::Leased(_, Some(number)) = row.place
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

    fn of_worker(&self, state: &State, w: usize, actions: &mut Vec<Action>) {
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

    /// Whether a broker is about to end what this worker holds: then it refuses the stream. An end that it does not wait for
    /// any more takes effect before the worker comes back, or never.
    fn ends(&self, state: &State, b: usize, w: usize) -> bool {
        let life = state.brokers[b].life;
        let mut own = state.statements.iter().filter(|s| s.broker == b && s.life == life);
        let held = |claim: Claim| state.workers[w].holds.iter().any(|h| h.claim == claim);
        own.any(|s| (s.lost || self.checks.ending) && matches!(s.kind, Kind::End { claim, .. } if held(claim)))
    }

    fn of_clock(&self, state: &State, actions: &mut Vec<Action>) {
        for number in 1..state.next_number {
            // A broker that is gone expires in any case.
            let runs = state.brokers.iter().any(|b| b.up && b.number == number);
            if state.tables.is_live(number) && (!runs || state.left.expiries > 0) {
                actions.push(Action::Expire(number));
            }
        }
        if state.left.timeouts > 0 {
            let leased = state.tables.rows().iter().filter(|row| matches!(row.place, Place::Leased(..)));
            actions.extend(leased.map(|row| Action::TimeOut(row.job)));
        }
    }
}

/// Whether an adoption that nobody waits for may still take effect. The grace time is not over before: a statement takes
/// effect within it, or never.
fn may_still_adopt(state: &State, b: usize, claim: Claim) -> bool {
    let mut lost = state.statements.iter().filter(|s| s.broker == b && s.lost);
    lost.any(|s| matches!(&s.kind, Kind::Adopt { wanted, .. } if wanted.contains(&claim)))
}

fn may_receive(state: &State, i: usize) -> bool {
    let push = &state.pushed[i];
    state.workers[push.worker].stream == push.stream && state.workers[push.worker].welcomed
}

fn of_statements(state: &State, actions: &mut Vec<Action>) {
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
            (Phase::Done(_), false) => actions.push(Action::Look(i)),
        }
    }
}
