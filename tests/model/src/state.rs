//! The state of the model: tables, memory of brokers and workers, statements and messages in flight, and the history of each
//! lease.

use crate::tables::{Ending, Job, Number, Outcome, Tables, Token};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// Committed rows.
    pub tables: Tables,
    /// Number that the next registered broker gets.
    pub next_number: Number,
    /// Broker processes, indexed by slot. A slot holds one process after another.
    pub brokers: Vec<Broker>,
    /// Workers, indexed by slot.
    pub workers: Vec<Worker>,
    /// Statements in flight, and statements whose answer the broker has not yet read. Sorted.
    pub statements: Vec<Statement>,
    /// Jobs written to a stream and not yet read by the worker. Sorted.
    pub pushed: Vec<Push>,
    /// History of each lease. Tokens count from 1, so the index of a lease is its token minus one.
    pub leases: Vec<LeaseHistory>,
    /// How many more faults and claims may occur in this run.
    pub left: Faults,
    /// Whether a broker has answered OK to an outcome that was not committed, which violates an invariant.
    pub false_ok: bool,
}

/// Limits for how often each event may occur in a run, to keep the model finite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Faults {
    pub claims: u8,
    pub broker_kills: u8,
    /// Drained brokers.
    pub stops: u8,
    pub worker_kills: u8,
    pub breaks: u8,
    /// Answers of Postgres that are lost, or that the broker no longer awaits.
    pub lost: u8,
    /// Running brokers whose row expires, because the process was paused or cut off.
    pub expiries: u8,
    /// Attempts that exceed their timeout.
    pub timeouts: u8,
}

/// A broker process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[allow(clippy::struct_excessive_bools, reason = "these flags are independent")]
pub struct Broker {
    pub up: bool,
    pub draining: bool,
    /// Incarnation of the broker's slot, incremented when a new process starts in the slot. The process ignores answers to
    /// statements of earlier incarnations.
    pub life: u8,
    /// Id of the broker's row in `howdah.broker`.
    pub number: Number,
    /// Numbers under which this process was registered before its current number.
    pub former: Vec<Number>,
    /// Whether the broker treats leases under its `former` numbers as its own.
    pub knows_former: bool,
    /// Sessions of the broker's workers. Sorted.
    pub sessions: Vec<Session>,
    /// Leases whose adoption got no answer. Such a lease fails after the grace time, unless a session holds it by then.
    pub unsure: Vec<Claim>,
    /// Whether the broker has registered again but has not yet moved its leases to the new number.
    pub readopting: bool,
}

/// A session: a worker as seen by its broker.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Session {
    /// Slot of the session's worker: an index in `State::workers`.
    pub worker: usize,
    /// Incarnation of the worker's slot to which the session belongs.
    pub life: u8,
    /// Number of the worker's stream; `None` once the broker has noticed that the stream broke.
    pub stream: Option<u8>,
    /// Latest stream on which the session has begun: Postgres has answered the adoption of the worker's leases for this stream.
    pub begun: Option<u8>,
    /// Leases of the session. Sorted.
    pub held: Vec<Held>,
    /// Whether the grace time of the session has ended. An ended session only waits for outcomes in flight.
    pub ended: bool,
}

/// A lease of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Held {
    /// Job and token.
    pub claim: Claim,
    /// Whether a statement is writing an outcome for this lease.
    pub settling: bool,
}

/// A job and the token of its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Claim {
    pub job: Job,
    pub token: Token,
}

/// A worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Worker {
    /// Incarnation of the worker's slot.
    pub life: u8,
    /// Number of the worker's latest stream.
    pub stream: u8,
    /// Slot of the broker to which the worker is connected; `None` once the worker has noticed that its stream ended.
    pub at: Option<usize>,
    /// Whether the broker has sent `Welcome` on the worker's current stream.
    pub welcomed: bool,
    /// Jobs that the worker holds. Sorted.
    pub holds: Vec<Holding>,
}

/// A job that a worker holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Holding {
    /// Job and token.
    pub claim: Claim,
    /// Progress of the job at the worker.
    pub doing: Doing,
}

/// Progress of a job that a worker holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Doing {
    Runs,
    /// The outcome was sent on the current stream.
    Sent(Outcome),
    /// The outcome was sent on a stream that has ended, so its answer can no longer arrive.
    Unanswered,
}

/// A job in flight to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Push {
    pub worker: usize,
    /// Number of the worker's stream on which the job was sent.
    pub stream: u8,
    /// Job and token.
    pub claim: Claim,
}

/// A SQL statement of a broker. It takes effect at its commit, possibly long after it was sent.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Statement {
    /// Slot of the broker that sent the statement: an index in `State::brokers`.
    pub broker: usize,
    /// Incarnation of the broker's slot when it sent the statement.
    pub life: u8,
    pub kind: Kind,
    pub phase: Phase,
    /// Whether the broker no longer awaits the answer.
    pub lost: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Claims the first ready job.
    Claim {
        /// Number (id in `howdah.broker`) of the broker when it sent the statement.
        number: Number,
    },
    /// Writes a worker's outcome.
    Settle {
        /// Session of the worker: the worker's slot and incarnation.
        from: (usize, u8),
        claim: Claim,
        outcome: Outcome,
    },
    /// Ends a lease for a reason other than a worker's outcome.
    End {
        claim: Claim,
        /// Numbers (ids in `howdah.broker`) of the broker when it sent the statement. The lease must be under one of
        /// them.
        owners: Vec<Number>,
        /// `Released` or `Lost`.
        ending: Ending,
        /// How often the lease had been adopted when the broker decided to end it.
        adoptions: u8,
    },
    /// Adopts the leases of a worker that reconnected.
    Adopt {
        /// Session that adopts the leases: the worker's slot, its incarnation and its stream.
        by: (usize, u8, u8),
        number: Number,
        /// Leases that the worker listed when it reconnected.
        wanted: Vec<Claim>,
    },
    /// Moves the leases of all sessions to the broker's new number.
    Readopt {
        number: Number,
        /// The broker's new number and its former numbers.
        owners: Vec<Number>,
        /// Leases of all sessions of the broker.
        wanted: Vec<Claim>,
    },
    /// Compares the leases of the broker's sessions with the tables.
    Compare,
}

/// Whether a statement has committed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// The statement is on its way to Postgres, or waits for a lock.
    Sent,
    /// The statement has committed. The broker has not yet read the answer.
    Done(Answer),
}

/// Postgres's answer to a statement.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Answer {
    /// Lease of the claimed job; `None` if no job was ready.
    Claimed(Option<Claim>),
    /// Whether the outcome is committed with this token.
    Settled(bool),
    /// Answer without content, for example to [`Kind::End`].
    Ended,
    /// Leases that the broker now owns.
    Adopted(Vec<Claim>),
    /// Leases of the broker's sessions that have moved or ended, each with the stream on which its session had begun.
    Compared(Vec<(Verdict, Claim, Option<u8>)>),
}

/// Fate of a lease that a session still holds in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verdict {
    /// Another broker has adopted the lease.
    Moved,
    /// The lease has ended.
    Over,
}

/// Events in the life of one lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseHistory {
    pub job: Job,
    /// Whether the row of the lease's current or last broker had not expired when that broker got the lease.
    pub protected: bool,
    pub adoptions: u8,
    /// Whether a worker has received the job with this lease.
    pub received: bool,
    /// How the lease ended; `None` while it is live.
    pub ended: Option<Ending>,
    /// Whether the lease ended against the rules.
    pub wronged: bool,
    /// Outcomes that statements committed with the lease's token.
    pub committed: Vec<Outcome>,
}

impl State {
    /// Returns the history of the lease with this token.
    pub fn lease_history(&self, token: Token) -> &LeaseHistory {
        &self.leases[token as usize - 1]
    }

    pub fn lease_history_mut(&mut self, token: Token) -> &mut LeaseHistory {
        &mut self.leases[token as usize - 1]
    }

    pub fn send(&mut self, broker: usize, kind: Kind) {
        let life = self.brokers[broker].life;
        self.add(Statement { broker, life, kind, phase: Phase::Sent, lost: false });
    }

    /// Adds a statement and keeps the list sorted.
    pub fn add(&mut self, statement: Statement) {
        let at = self.statements.partition_point(|other| *other < statement);
        self.statements.insert(at, statement);
    }

    /// Sends the statement with which a broker ends a lease.
    pub fn send_end(&mut self, broker: usize, claim: Claim, ending: Ending) {
        let adoptions = self.lease_history(claim.token).adoptions;
        let owners = self.brokers[broker].numbers();
        self.send(broker, Kind::End { claim, owners, ending, adoptions });
    }

    /// Whether a session's stream is still the current stream of its worker.
    pub fn is_connected(&self, broker: usize, session: &Session) -> bool {
        let worker = &self.workers[session.worker];
        worker.at == Some(broker) && worker.life == session.life && session.stream == Some(worker.stream)
    }
}

impl Broker {
    /// Returns the broker's number, and also its former numbers if the broker recognizes them.
    pub fn numbers(&self) -> Vec<Number> {
        let former = self.former.iter().filter(|_| self.knows_former);
        former.copied().chain([self.number]).collect()
    }

    /// Index of the worker's session, if the session has not ended.
    pub fn session(&self, worker: usize, life: u8) -> Option<usize> {
        self.sessions.iter().position(|s| s.worker == worker && s.life == life && !s.ended)
    }

    /// Adds a session and keeps the list sorted. Returns the session's index.
    pub fn add_session(&mut self, session: Session) -> usize {
        let at = self.sessions.partition_point(|other| *other < session);
        self.sessions.insert(at, session);
        at
    }
}

impl Session {
    /// Leases of the session for which no outcome is being written.
    pub fn unsettled(&self) -> Vec<Claim> {
        self.held.iter().filter(|held| !held.settling).map(|held| held.claim).collect()
    }

    /// Adds a lease to the session. It replaces an earlier lease of the same job, even one with an outcome in flight.
    pub fn hold(&mut self, claim: Claim) {
        self.held.retain(|held| held.claim.job != claim.job);
        self.held.push(Held { claim, settling: false });
        self.held.sort_unstable();
    }
}
