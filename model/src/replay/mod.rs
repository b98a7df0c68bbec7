//! Replays what was recorded of a run: every change of the tables must be a step that the protocol allows from the state
//! before. The statements are those of the model (`tables`), so what was checked is what is demanded.

mod change;
mod transaction;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
};

pub use change::{Change, LOG, Operation, READ, Table};
use transaction::Move;

use crate::{
    Checks,
    tables::{Ending, Job, Number, Outcome, Place, Row, Tables, Token},
};

/// A recorded step that the protocol does not allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The number of the change in the record.
    pub seq: i64,
    /// The job.
    pub job: Job,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "change {}, job {}: {}", self.seq, self.job, self.what)
    }
}

/// What a record had.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Leases.
    pub claims: usize,
    /// Leases that went to another broker.
    pub adoptions: usize,
    /// Outcomes of workers.
    pub outcomes: usize,
    /// Leases that brokers ended: released, failed, timed out, cancelled.
    pub ended: usize,
    /// Leases of brokers that had expired.
    pub rescues: usize,
}

/// Replays a record, which is in the order of its numbers and begins with empty tables.
pub fn replay(changes: &[Change]) -> Result<Replayed, Violation> {
    let mut replay = Replay::default();
    for step in transaction::moves(changes)? {
        replay.step(&step).map_err(|what| Violation { seq: step.seq, job: step.job, what })?;
    }
    Ok(replay.seen)
}

/// The state between two steps.
#[derive(Default)]
struct Replay {
    /// The row of each job that has not ended; one job a time, so that each look-up is short.
    jobs: HashMap<Job, Row>,
    tokens: HashSet<Token>,
    /// Leases whose broker had not expired when it got them.
    protected: HashMap<Token, Option<bool>>,
    /// Processes by the numbers under which they registered.
    processes: BTreeMap<Number, String>,
    seen: Replayed,
}

impl Replay {
    fn step(&mut self, step: &Move) -> Result<(), String> {
        match (&step.from, &step.to) {
            (from, Some(to)) if to.table == Table::Broker => {
                debug_assert!(from.is_none(), "a broker registers once");
                self.processes.insert(to.number.unwrap_or_default(), to.by.clone());
                Ok(())
            }
            (Some(from), Some(to)) if from.table == Table::Leased && to.table == Table::Leased => self.adopt(from, to),
            (from, Some(to)) if to.table == Table::Leased => self.claim(from.as_ref(), to),
            (Some(from), to) if from.table == Table::Leased => self.end(from, to.as_ref()),
            (from, to) => self.elsewhere(from.as_ref(), to.as_ref()),
        }
    }

    /// ready → leased, or directly.
    fn claim(&mut self, from: Option<&Change>, to: &Change) -> Result<(), String> {
        let (job, token) = (to.job, to.token.unwrap_or_default());
        if !self.tokens.insert(token) {
            return Err(format!("the token of this lease was given before: {token}"));
        }
        let before = match from {
            Some(change) => self.known(change)?,
            None => Row { job, place: Place::Ready, attempt: 0, max_attempts: to.max_attempts, settled: None },
        };
        let mut tables = self.tables(before, to);
        if !tables.claim(job, token, to.number, Checks::ALL) {
            return Err(match (before.place, to.is_live) {
                (Place::Ready, _) => "leased by a broker whose own lease had expired".to_owned(),
                (place, _) => format!("leased from {place:?}"),
            });
        }
        self.protected.insert(token, to.is_live);
        self.seen.claims += 1;
        self.becomes(&tables, to)
    }

    /// The lease goes to another broker.
    fn adopt(&mut self, from: &Change, to: &Change) -> Result<(), String> {
        let before = self.known(from)?;
        let (token, Some(number)) = (to.token.unwrap_or_default(), to.number) else {
            return Err("a lease of a broker became one of none".into());
        };
        let mut tables = self.tables(before, to);
        if !tables.adopt(to.job, token, number, None, Checks::ALL) {
            return Err(if from.token == to.token {
                "adopted by a broker whose own lease had expired".into()
            } else {
                "the token of a lease was changed".into()
            });
        }
        self.protected.insert(token, to.is_live);
        self.seen.adoptions += 1;
        self.becomes(&tables, to)
    }

    /// leased → anywhere else.
    fn end(&mut self, from: &Change, to: Option<&Change>) -> Result<(), String> {
        let before = self.known(from)?;
        let (job, token) = (from.job, from.token.unwrap_or_default());
        let settled = to.and_then(|to| outcome_of(token, to));
        let mut tables = self.tables(before, from);
        if let Some(outcome) = settled {
            self.seen.outcomes += 1;
            if tables.settle(job, token, outcome, Checks::ALL).is_none() {
                return Err("settled with another token".into());
            }
            return self.becomes_after(&tables, to);
        }
        let Some(to) = to else {
            // A type that keeps no history: it was acked.
            self.jobs.remove(&job);
            self.seen.outcomes += 1;
            return Ok(());
        };
        let ending = match to.attempt.cmp(&before.attempt) {
            _ if to.table == Table::History => {
                // Cancelled by an operator, or expired before it began.
                self.jobs.remove(&job);
                self.seen.ended += 1;
                return Ok(());
            }
            std::cmp::Ordering::Less if to.attempt + 1 == before.attempt => Ending::Released,
            _ if from.is_late == Some(true) => Ending::TimedOut,
            _ if from.is_live == Some(false) => Ending::Rescued,
            _ => Ending::Lost,
        };
        if ending == Ending::Rescued {
            self.seen.rescues += 1;
            if self.protected.get(&token) == Some(&Some(false)) {
                return Err("rescued from a broker that had expired when it got the lease".into());
            }
        } else {
            self.seen.ended += 1;
            self.by_its_owner(ending, from)?;
        }
        if tables.end(job, token, None, ending, Checks::ALL).is_none() {
            return Err("ended with another token".into());
        }
        self.becomes_after(&tables, Some(to))
    }

    /// A broker that is alive releases and fails its leases itself.
    fn by_its_owner(&self, ending: Ending, from: &Change) -> Result<(), String> {
        let owner = from.number.and_then(|number| self.processes.get(&number));
        let known = self.processes.values().any(|process| *process == from.by);
        let by_another = owner.is_some_and(|owner| *owner != from.by);
        if ending != Ending::TimedOut && from.is_live == Some(true) && known && by_another {
            return Err(format!("{:?} ended a lease of {:?}, which was alive", from.by, owner));
        }
        Ok(())
    }

    /// Between the other tables, in and out.
    fn elsewhere(&mut self, from: Option<&Change>, to: Option<&Change>) -> Result<(), String> {
        if let Some(from) = from {
            if from.table == Table::History {
                return Err("a finished job was changed".into());
            }
            self.known(from)?;
            self.jobs.remove(&from.job);
        } else if let Some(to) = to
            && self.jobs.contains_key(&to.job)
        {
            return Err(format!("it is in {:?} and in another table", to.table));
        }
        if let Some(to) = to.filter(|to| to.table != Table::History) {
            self.jobs.insert(to.job, row(to));
        }
        Ok(())
    }

    /// The row as it was left by the step before.
    fn known(&self, change: &Change) -> Result<Row, String> {
        let row = row(change);
        match self.jobs.get(&change.job) {
            Some(known) if known.place == row.place && known.attempt == row.attempt => Ok(*known),
            Some(known) => Err(format!("was {known:?}, and leaves {:?}", row.place)),
            None => Err(format!("leaves {:?}, where it was not", row.place)),
        }
    }

    /// The tables of this one job.
    fn tables(&self, row: Row, change: &Change) -> Tables {
        let mut tables = Tables::default();
        tables.put(row);
        // Not known: its row was deleted in the meantime.
        if change.is_live != Some(false) {
            change.number.into_iter().for_each(|number| tables.register(number));
        }
        tables
    }

    /// The step leads exactly there.
    fn becomes(&mut self, tables: &Tables, to: &Change) -> Result<(), String> {
        let found = row(to);
        let allowed = tables.rows().first().copied().unwrap_or(found);
        if (allowed.place, allowed.attempt) != (found.place, found.attempt) {
            return Err(format!("should be {allowed:?}, and is {found:?}"));
        }
        self.jobs.insert(to.job, found);
        Ok(())
    }

    /// The lease has ended as it should. Where the job goes then may also be a delay, a limit, its next stage, or its
    /// fallback.
    fn becomes_after(&mut self, tables: &Tables, to: Option<&Change>) -> Result<(), String> {
        let Some(to) = to else { return Ok(()) };
        let found = row(to);
        let allowed = tables.rows().first().copied().unwrap_or(found);
        let waits = matches!(found.place, Place::Ready | Place::Scheduled | Place::Waiting);
        let starts_over = waits && found.attempt == 0;
        let fine = match allowed.place {
            Place::Finished => found.place == Place::Finished || starts_over,
            Place::Dead => found.place == Place::Dead && found.attempt == allowed.attempt || starts_over,
            // A newer version of the job may wait.
            _ => (waits || found.place == Place::Finished) && found.attempt == allowed.attempt,
        };
        if !fine {
            return Err(format!("should be {allowed:?}, and is {found:?}"));
        }
        if found.place == Place::Finished {
            self.jobs.remove(&to.job);
        } else {
            self.jobs.insert(to.job, found);
        }
        Ok(())
    }
}

/// The outcome with which this token has settled the job; none: a broker ended the lease.
fn outcome_of(token: Token, to: &Change) -> Option<Outcome> {
    let last = to.last_token?;
    if to.table == Table::History {
        return (last == token).then_some(Outcome::Ack);
    }
    Outcome::ALL.get(usize::try_from(last ^ token).ok()?).copied()
}

fn row(change: &Change) -> Row {
    let place = match change.table {
        Table::Ready => Place::Ready,
        Table::Leased => Place::Leased(change.token.unwrap_or_default(), change.number),
        Table::Scheduled => Place::Scheduled,
        Table::Waiting => Place::Waiting,
        Table::Dead => Place::Dead,
        Table::History | Table::Broker => Place::Finished,
    };
    Row { job: change.job, place, attempt: change.attempt, max_attempts: change.max_attempts, settled: None }
}
