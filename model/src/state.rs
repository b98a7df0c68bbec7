//! The state of the model: tables, memory of brokers and workers, statements and messages in flight, and the history of each lease.

use crate::tables::{Ending, Job, Number, Outcome, Tables, Token};

/// A state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// Committed rows.
    pub tables: Tables,
    /// Number that the next registered broker gets.
    pub next_number: Number,
    /// Broker processes by slot.
    pub brokers: Vec<Broker>,
    /// Workers by slot.
    pub workers: Vec<Worker>,
    /// Statements in flight and answers not yet read. Sorted.
    pub statements: Vec<Statement>,
    /// Jobs written to a stream and not yet read by the worker. Sorted.
    pub pushed: Vec<Push>,
    /// History of each lease. The index of a lease is its token minus one.
    pub leases: Vec<LeaseHistory>,
    /// Faults and claims still allowed.
    pub left: Faults,
    /// Whether a broker has answered OK to an outcome that was not committed, which violates an invariant.
    pub false_ok: bool,
}

/// Limits for how often each event may occur in a run. They keep the model finite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Faults {
    /// Claims.
    pub claims: u8,
    /// Killed brokers.
    pub broker_kills: u8,
    /// Drained brokers.
    pub stops: u8,
    /// Killed workers.
    pub worker_kills: u8,
    /// Broken streams.
    pub breaks: u8,
    /// Answers of Postgres that are lost or no longer awaited.
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
    /// Whether the process runs.
    pub up: bool,
    /// Whether the broker drains.
    pub draining: bool,
    /// Incarnation of the slot: increases when a new process starts in it. Answers to statements of earlier incarnations are
    /// ignored.
    pub life: u8,
    /// Id of the broker's row in `howdah.broker`.
    pub number: Number,
    /// Numbers that this process had before.
    pub former: Vec<Number>,
    /// Whether the broker treats leases under its `former` numbers as its own.
    pub knows_former: bool,
    /// Sessions of its workers. Sorted.
    pub sessions: Vec<Session>,
    /// Leases whose adoption got no answer. They fail after the grace time unless a session holds them.
    pub unsure: Vec<Claim>,
    /// Whether the broker has registered again, and its leases are not yet under the new number.
    pub readopting: bool,
}

/// A session: a worker as seen by its broker.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Session {
    /// Slot of the worker.
    pub worker: usize,
    /// Incarnation of the worker's slot.
    pub life: u8,
    /// Number of the worker's stream. `None` after the broker has noticed that the stream broke.
    pub stream: Option<u8>,
    /// Latest stream on which the session has begun: the adoption of the worker's leases for this stream has been answered.
    pub begun: Option<u8>,
    /// Leases of the session. Sorted.
    pub held: Vec<Held>,
    /// Whether the grace time has ended. The session then only waits for outcomes in flight.
    pub ended: bool,
}

/// A lease of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Held {
    /// Job and token.
    pub claim: Claim,
    /// Whether an outcome for this lease is being written.
    pub settling: bool,
}

/// A job and its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Claim {
    /// Job id.
    pub job: Job,
    /// Token of the lease.
    pub token: Token,
}

/// A worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Worker {
    /// Incarnation of the slot.
    pub life: u8,
    /// Number of its latest stream.
    pub stream: u8,
    /// Slot of the broker at the other end of the stream. `None` after the worker has noticed that the stream ended.
    pub at: Option<usize>,
    /// Whether the broker has sent `Welcome`.
    pub welcomed: bool,
    /// Jobs that the worker holds. Sorted.
    pub holds: Vec<Holding>,
}

/// A job that a worker holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Holding {
    /// Job and token.
    pub claim: Claim,
    /// Progress of the job.
    pub doing: Doing,
}

/// Progress of a job at its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Doing {
    /// The job runs.
    Runs,
    /// The outcome was sent on the current stream.
    Sent(Outcome),
    /// The outcome was sent on a stream that has ended, so its answer can no longer arrive.
    Unanswered,
}

/// A job in flight to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Push {
    /// Slot of the worker.
    pub worker: usize,
    /// Stream of the worker.
    pub stream: u8,
    /// Job and token.
    pub claim: Claim,
}

/// A statement in flight. It takes effect at its commit, possibly long after it was sent.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Statement {
    /// Slot of the broker that sent the statement.
    pub broker: usize,
    /// Incarnation of the broker's slot.
    pub life: u8,
    /// Kind and parameters.
    pub kind: Kind,
    /// Progress.
    pub phase: Phase,
    /// Whether the broker no longer awaits the answer.
    pub lost: bool,
}

/// Kind of a statement.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Leases the first ready job.
    Claim {
        /// Number of the broker when it sent the statement.
        number: Number,
    },
    /// Writes a worker's outcome.
    Settle {
        /// Session of the worker: slot and incarnation.
        from: (usize, u8),
        /// The lease.
        claim: Claim,
        /// The outcome.
        outcome: Outcome,
    },
    /// Ends a lease on behalf of the broker.
    End {
        /// The lease.
        claim: Claim,
        /// Numbers of the broker when it sent the statement.
        owners: Vec<Number>,
        /// `Released` or `Lost`.
        ending: Ending,
        /// Number of adoptions of the lease when the broker decided to end it.
        adoptions: u8,
    },
    /// Adopts the leases of a session that reconnected.
    Adopt {
        /// The session: slot, incarnation and stream of the worker.
        by: (usize, u8, u8),
        /// Number of the broker when it sent the statement.
        number: Number,
        /// Leases that the worker lists.
        wanted: Vec<Claim>,
    },
    /// Moves the leases of all sessions to the broker's new number.
    Readopt {
        /// The new number.
        number: Number,
        /// The new number and the former ones.
        owners: Vec<Number>,
        /// Leases of the sessions.
        wanted: Vec<Claim>,
    },
    /// Compares the leases of the sessions with the tables.
    Compare,
}

/// Progress of a statement.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// The statement is on its way to Postgres, or waits for a lock.
    Sent,
    /// The statement has committed. The broker has not yet read the answer.
    Done(Answer),
}

/// Answer to a statement.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Answer {
    /// The job of a claim, if one was ready.
    Claimed(Option<Claim>),
    /// Whether the outcome is committed.
    Settled(bool),
    /// Answer without content, as to [`Kind::End`].
    Ended,
    /// Leases that the broker now holds.
    Adopted(Vec<Claim>),
    /// Leases of sessions that have moved or ended, each with the stream on which its session had begun.
    Compared(Vec<(Verdict, Claim, Option<u8>)>),
}

/// Fate of a lease that a session holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verdict {
    /// The lease is under another broker's number.
    Moved,
    /// The lease has ended.
    Over,
}

/// History of a lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseHistory {
    /// Job id.
    pub job: Job,
    /// Whether the row of the current or last broker was live when the broker got the lease.
    pub protected: bool,
    /// Number of adoptions.
    pub adoptions: u8,
    /// Whether a worker has received the job with this lease.
    pub received: bool,
    /// How the lease ended; `None` while it is live.
    pub ended: Option<Ending>,
    /// Whether the lease ended in a way that no rule allows.
    pub wronged: bool,
    /// Outcomes committed with its token.
    pub committed: Vec<Outcome>,
}

impl State {
    /// History of the lease with this token.
    pub fn lease_history(&self, token: Token) -> &LeaseHistory {
        &self.leases[token as usize - 1]
    }

    /// Mutable history of the lease with this token.
    pub fn lease_history_mut(&mut self, token: Token) -> &mut LeaseHistory {
        &mut self.leases[token as usize - 1]
    }

    /// Sends a statement.
    pub fn send(&mut self, broker: usize, kind: Kind) {
        let life = self.brokers[broker].life;
        self.add(Statement { broker, life, kind, phase: Phase::Sent, lost: false });
    }

    /// Adds a statement, keeping the order.
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

    /// Whether a session's stream is the current stream of its worker.
    pub fn is_connected(&self, broker: usize, session: &Session) -> bool {
        let worker = &self.workers[session.worker];
        worker.at == Some(broker) && worker.life == session.life && session.stream == Some(worker.stream)
    }
}

impl Broker {
    /// The broker's number and, if it recognizes them, its former numbers.
    pub fn numbers(&self) -> Vec<Number> {
        let former = self.former.iter().filter(|_| self.knows_former);
        former.copied().chain([self.number]).collect()
    }

    /// Index of the worker's session that has not ended.
    pub fn session(&self, worker: usize, life: u8) -> Option<usize> {
        self.sessions.iter().position(|s| s.worker == worker && s.life == life && !s.ended)
    }

    /// Adds a session, keeping the order. Returns its index.
    pub fn add_session(&mut self, session: Session) -> usize {
        let at = self.sessions.partition_point(|other| *other < session);
        self.sessions.insert(at, session);
        at
    }
}

impl Session {
    /// Leases of the session without an outcome that is being written.
    pub fn unsettled(&self) -> Vec<Claim> {
        self.held.iter().filter(|held| !held.settling).map(|held| held.claim).collect()
    }

    /// Adds a lease. It replaces an earlier lease of the same job, even one with an outcome in flight.
    pub fn hold(&mut self, claim: Claim) {
        self.held.retain(|held| held.claim.job != claim.job);
        self.held.push(Held { claim, settling: false });
        self.held.sort_unstable();
    }
}
