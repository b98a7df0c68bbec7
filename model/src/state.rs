//! All that there is at one moment: the tables, what brokers and workers remember, statements and messages on their way,
//! and what happened to each lease.

use crate::tables::{Ending, Job, Number, Outcome, Tables, Token};

/// A state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// What is committed.
    pub tables: Tables,
    /// The next number of a broker.
    pub next_number: Number,
    /// The processes, each in its slot.
    pub brokers: Vec<Broker>,
    /// The workers, each in its slot.
    pub workers: Vec<Worker>,
    /// Statements that were sent, and answers that were not read. Sorted.
    pub statements: Vec<Statement>,
    /// Jobs written to a stream that their workers have not read. Sorted.
    pub pushed: Vec<Push>,
    /// What happened to each lease; the token is the index and one.
    pub leases: Vec<Story>,
    /// Faults and claims that may still happen.
    pub left: Faults,
    /// An outcome was answered OK that was not committed.
    pub false_ok: bool,
}

/// How often something may happen in one run. It bounds the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Faults {
    /// Claims.
    pub claims: u8,
    /// Brokers killed.
    pub broker_kills: u8,
    /// Brokers told to stop.
    pub stops: u8,
    /// Workers killed.
    pub worker_kills: u8,
    /// Streams that break.
    pub breaks: u8,
    /// Answers of Postgres lost, or given up.
    pub lost: u8,
    /// Rows of running brokers that expire, since these were stopped or cut off.
    pub expiries: u8,
    /// Attempts that take too long.
    pub timeouts: u8,
}

/// A process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[allow(clippy::struct_excessive_bools, reason = "these are independent facts")]
pub struct Broker {
    /// It runs.
    pub up: bool,
    /// It was told to stop.
    pub draining: bool,
    /// Which of the processes that had this slot: answers to others are nobody's.
    pub life: u8,
    /// Under which it has registered.
    pub number: Number,
    /// Numbers that it had before, in this life.
    pub former: Vec<Number>,
    /// It takes leases under those for its own.
    pub knows_former: bool,
    /// The workers it knows. Sorted.
    pub sessions: Vec<Session>,
    /// Leases whose adoption was not answered: they are failed after the grace time, unless a session has them.
    pub unsure: Vec<Claim>,
    /// It has a new number, and its leases do not have it yet.
    pub readopting: bool,
}

/// A worker as its broker knows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Session {
    /// The worker's slot.
    pub worker: usize,
    /// Which of the workers that had this slot.
    pub life: u8,
    /// Its stream, as far as the broker has noticed.
    pub stream: Option<u8>,
    /// The stream that it has begun on: the adoption was answered.
    pub begun: Option<u8>,
    /// Leases that it has, sorted.
    pub held: Vec<Held>,
    /// The grace time is over; only its outcomes are waited for.
    pub ended: bool,
}

/// A lease of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Held {
    /// The job and its token.
    pub claim: Claim,
    /// Its outcome is being written.
    pub settling: bool,
}

/// A job and a token, as they are passed around.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Claim {
    /// The job.
    pub job: Job,
    /// The token.
    pub token: Token,
}

/// A worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Worker {
    /// Which of the workers that had this slot.
    pub life: u8,
    /// The number of its last stream.
    pub stream: u8,
    /// The broker at the other end, as far as the worker has noticed.
    pub at: Option<usize>,
    /// The broker has welcomed it.
    pub welcomed: bool,
    /// Jobs in its hands, sorted.
    pub holds: Vec<Holding>,
}

/// A job in the hands of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Holding {
    /// The job and its token.
    pub claim: Claim,
    /// What the worker does with it.
    pub doing: Doing,
}

/// What a worker does with a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Doing {
    /// It runs.
    Runs,
    /// Its outcome was sent on this stream.
    Sent(Outcome),
    /// Its outcome was sent, and no answer can come any more.
    Unanswered,
}

/// A job on its way to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Push {
    /// The worker's slot.
    pub worker: usize,
    /// The stream.
    pub stream: u8,
    /// The job and its token.
    pub claim: Claim,
}

/// A statement. It takes effect when it is committed, which may be long after it was sent.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Statement {
    /// The slot of the broker that sent it.
    pub broker: usize,
    /// Which process in that slot.
    pub life: u8,
    /// What it says.
    pub kind: Kind,
    /// How far it is.
    pub phase: Phase,
    /// Nobody waits for its answer.
    pub lost: bool,
}

/// What a statement says.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Lease the first ready job.
    Claim {
        /// The broker's number when it was sent.
        number: Number,
    },
    /// A worker's outcome.
    Settle {
        /// The session that it came from: the worker's slot and life.
        from: (usize, u8),
        /// The lease.
        claim: Claim,
        /// The outcome.
        outcome: Outcome,
    },
    /// The broker ends a lease.
    End {
        /// The lease.
        claim: Claim,
        /// The broker's numbers when it was sent.
        owners: Vec<Number>,
        /// `Released` or `Lost`.
        ending: Ending,
        /// How often the lease had been adopted when this was decided.
        adoptions: u8,
    },
    /// A session came back with leases.
    Adopt {
        /// The session: the worker's slot, life, and stream.
        by: (usize, u8, u8),
        /// The broker's number when it was sent.
        number: Number,
        /// What the worker says it holds.
        wanted: Vec<Claim>,
    },
    /// Puts the leases of all sessions under the broker's new number.
    Readopt {
        /// The new number.
        number: Number,
        /// This number, and those before.
        own: Vec<Number>,
        /// The leases that sessions had.
        wanted: Vec<Claim>,
    },
    /// Compares what sessions have with the tables.
    Compare,
}

/// How far a statement is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// Sent, or waiting for a lock.
    Sent,
    /// It has taken effect, and this is its answer.
    Done(Answer),
}

/// The answer to a statement.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Answer {
    /// A claim's job, if there was one.
    Claimed(Option<Claim>),
    /// Whether the outcome is committed.
    Settled(bool),
    /// There is nothing to say.
    Ended,
    /// These are this broker's.
    Adopted(Vec<Claim>),
    /// What became of leases that sessions have. The stream is the one that the session had begun on.
    Compared(Vec<(Verdict, Claim, Option<u8>)>),
}

/// What became of a lease that a session has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verdict {
    /// Its row is under another number.
    Moved,
    /// It is over.
    Over,
}

/// What happened to a lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Story {
    /// The job.
    pub job: Job,
    /// The row of the broker that has it, or had it last, had not expired when that got it.
    pub protected: bool,
    /// How often it was adopted.
    pub adoptions: u8,
    /// Its worker has read the job.
    pub received: bool,
    /// How it ended.
    pub ended: Option<Ending>,
    /// It was ended in a way that no rule allows.
    pub wronged: bool,
    /// The outcomes that were committed with its token.
    pub committed: Vec<Outcome>,
}

impl State {
    /// What happened to the lease with this token.
    pub fn story(&self, token: Token) -> &Story {
        &self.leases[token as usize - 1]
    }

    /// The same, to go on.
    pub fn story_mut(&mut self, token: Token) -> &mut Story {
        &mut self.leases[token as usize - 1]
    }

    /// Sends a statement.
    pub fn send(&mut self, broker: usize, kind: Kind) {
        let life = self.brokers[broker].life;
        self.add(Statement { broker, life, kind, phase: Phase::Sent, lost: false });
    }

    /// A statement is on its way.
    pub fn add(&mut self, statement: Statement) {
        let at = self.statements.partition_point(|other| *other < statement);
        self.statements.insert(at, statement);
    }

    /// The broker ends a lease by itself.
    pub fn send_end(&mut self, broker: usize, claim: Claim, ending: Ending) {
        let adoptions = self.story(claim.token).adoptions;
        let owners = self.brokers[broker].numbers();
        self.send(broker, Kind::End { claim, owners, ending, adoptions });
    }

    /// Whether a session's stream is the one that its worker is on.
    pub fn is_connected(&self, broker: usize, session: &Session) -> bool {
        let worker = &self.workers[session.worker];
        worker.at == Some(broker) && worker.life == session.life && session.stream == Some(worker.stream)
    }
}

impl Broker {
    /// The number that it has, and those that it had, as far as it knows them.
    pub fn numbers(&self) -> Vec<Number> {
        let former = self.former.iter().filter(|_| self.knows_former);
        former.copied().chain([self.number]).collect()
    }

    /// The session of that worker which is in the table, if there is one.
    pub fn session(&self, worker: usize, life: u8) -> Option<usize> {
        self.sessions.iter().position(|s| s.worker == worker && s.life == life && !s.ended)
    }

    /// Adds a session in its order; returns its index.
    pub fn add_session(&mut self, session: Session) -> usize {
        let at = self.sessions.partition_point(|other| *other < session);
        self.sessions.insert(at, session);
        at
    }
}

impl Session {
    /// Leases that are not being settled.
    pub fn unsettled(&self) -> Vec<Claim> {
        self.held.iter().filter(|held| !held.settling).map(|held| held.claim).collect()
    }

    /// Gets a lease. An earlier one of the same job is over, also if its outcome was not answered yet.
    pub fn hold(&mut self, claim: Claim) {
        self.held.retain(|held| held.claim.job != claim.job);
        self.held.push(Held { claim, settling: false });
        self.held.sort_unstable();
    }
}
