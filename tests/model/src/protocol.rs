//! The model for the checker: initial state, steps and properties.

use stateright::{Model, Property};

use crate::{
    Checks, Size,
    action::{self, Action},
    properties,
    state::{Broker, Session, State, Worker},
    tables::{JobState, Row, Tables},
};

/// The protocol of leases and settles as a model, with its size and the enabled checks.
#[derive(Clone, Debug)]
pub struct Protocol {
    pub size: Size,
    /// Enabled checks.
    pub checks: Checks,
}

impl Protocol {
    /// Returns the initial state: all brokers run, each worker is connected to a broker, and all jobs are ready.
    pub fn start(&self) -> State {
        let mut tables = Tables::default();
        for job in 1..=self.size.jobs {
            let max_attempts = self.size.max_attempts;
            tables.put(Row { job, state: JobState::Ready, attempt: 0, max_attempts, settled: None, lost: None });
        }
        let mut brokers = Vec::new();
        for number in 1..=self.size.brokers {
            tables.register(number);
            brokers.push(Broker { up: true, number, knows_former: self.checks.former, ..Broker::default() });
        }
        let mut workers = Vec::new();
        for worker in 0..self.size.workers {
            let at = worker % brokers.len();
            workers.push(Worker { stream: 1, at: Some(at), welcomed: true, ..Worker::default() });
            let (stream, begun) = (Some(1), Some(1));
            brokers[at].add_session(Session { worker, life: 0, stream, begun, held: Vec::new(), ended: false });
        }
        State {
            tables,
            next_number: self.size.brokers + 1,
            brokers,
            workers,
            statements: Vec::new(),
            pushed: Vec::new(),
            leases: Vec::new(),
            left: self.size.faults,
            false_ok: false,
        }
    }

    /// Returns the state after a possible step.
    pub fn after(&self, state: &State, action: Action) -> State {
        let mut next = state.clone();
        match action {
            Action::Claim(b) => self.claim(&mut next, b),
            Action::Commit(i) => self.commit(&mut next, i),
            Action::Answer(i) => self.answer(&mut next, i),
            Action::Lose(i) => self.lose(&mut next, i),
            Action::Vanish(i) => drop(next.statements.remove(i)),
            Action::GiveUp(i) => self.give_up(&mut next, i),
            Action::LookUp(i) => self.look_up(&mut next, i),
            Action::Receive(i) => self.receive(&mut next, i),
            Action::Settle(w, claim, outcome) => self.settle(&mut next, w, claim, outcome),
            Action::Connect(w, b) => self.connect(&mut next, w, b),
            Action::Break(w) => {
                next.left.breaks -= 1;
                self.leave(&mut next, w);
            }
            Action::Leave(w) => self.leave(&mut next, w),
            Action::Notice(b, s) => self.notice(&mut next, b, s),
            Action::GraceOver(b, s) => self.grace_over(&mut next, b, s),
            Action::Unsure(b, claim) => self.unsure(&mut next, b, claim),
            Action::KillWorker(w) => self.kill_worker(&mut next, w),
            Action::KillBroker(b) => {
                next.left.broker_kills -= 1;
                self.end_broker(&mut next, b);
            }
            Action::Start(b) => self.start_broker(&mut next, b),
            Action::Stop(b) => self.stop(&mut next, b),
            Action::Exit(b) => self.end_broker(&mut next, b),
            Action::Expire(number) => self.expire(&mut next, number),
            Action::Renew(b) => self.renew(&mut next, b),
            Action::Rescue(b, job) => self.rescue(&mut next, b, job),
            Action::TimeOut(job) => self.time_out(&mut next, job),
            Action::Compare(b) => self.compare(&mut next, b),
        }
        next
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.start()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // Stop exploring after a state that violates an invariant.
        if properties::holds(state) {
            actions.extend(self.possible(state));
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        Some(self.after(state, action))
    }

    fn format_action(&self, action: &Action) -> String {
        format!("{action:?}")
    }

    fn format_step(&self, state: &State, action: Action) -> Option<String> {
        Some(action::describe(state, action))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}
