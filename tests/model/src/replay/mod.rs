//! Replays the row changes of a real run. Each change must be a step that the protocol allows in the previous state. The replay
//! uses the model's statements (`tables`), so recorded runs must follow the rules that the checker explored.

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
    tables::{Ending, Job, JobState, Number, Outcome, Row, Tables, Token},
};

/// A recorded change that the protocol does not allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Sequence number of the change that is not allowed.
    pub seq: i64,
    pub job: Job,
    /// Describes the rule that the change breaks.
    pub problem: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "change {}, job {}: {}", self.seq, self.job, self.problem)
    }
}

/// Numbers of replayed steps, by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Leases created.
    pub claims: usize,
    /// Leases that moved to another broker.
    pub adoptions: usize,
    /// Outcomes sent by workers.
    pub outcomes: usize,
    /// Leases that brokers ended because a job was released, failed, timed out, expired or cancelled.
    pub ended: usize,
    /// Leases rescued from expired brokers.
    pub rescues: usize,
}

/// Replays recorded changes, which must be sorted by `seq` and start with empty tables.
pub fn replay(changes: &[Change]) -> Result<Replayed, Violation> {
    let mut replay = Replay::default();
    for step in transaction::moves(changes)? {
        replay.step(&step).map_err(|problem| Violation { seq: step.seq, job: step.job, problem })?;
    }
    Ok(replay.seen)
}

/// State of the replay between two steps.
#[derive(Default)]
struct Replay {
    /// Current row of each unfinished job.
    jobs: HashMap<Job, Row>,
    tokens: HashSet<Token>,
    /// Maps each token to whether the broker was live when it got the lease. `None` if unknown.
    protected: HashMap<Token, Option<bool>>,
    /// Names of broker processes, by the number under which they registered.
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
            (from, to) => self.between_tables(from.as_ref(), to.as_ref()),
        }
    }

    /// Replays a claim: a ready or new job is leased.
    fn claim(&mut self, from: Option<&Change>, to: &Change) -> Result<(), String> {
        let (job, token) = (to.job, to.token.unwrap_or_default());
        if from.is_some_and(|from| was_lost(token, from)) {
            return self.regain(from.unwrap_or(to), to);
        }
        if !self.tokens.insert(token) {
            return Err(format!("the token of the new lease was given before, to another lease: {token}"));
        }
        let before = match from {
            Some(change) => self.known(change)?,
            None => Row {
                job,
                state: JobState::Ready,
                attempt: 0,
                max_attempts: to.max_attempts,
                settled: None,
                lost: None,
            },
        };
        let mut tables = self.tables(before, to);
        if !tables.claim(job, token, to.number, Checks::ALL) {
            return Err(match (before.state, to.is_live) {
                (JobState::Ready, _) => "leased by a broker whose row had expired".to_owned(),
                (state, _) => format!("leased from {state:?}"),
            });
        }
        self.protected.insert(token, to.is_live);
        self.seen.claims += 1;
        self.expect_row(&tables, to)
    }

    /// Replays a regain: the lease of a lost worker is restored, because the worker's outcome arrived late.
    fn regain(&mut self, from: &Change, to: &Change) -> Result<(), String> {
        let token = to.token.unwrap_or_default();
        let before = Row { lost: Some(token), ..self.known(from)? };
        let mut tables = self.tables(before, to);
        if !tables.regain(to.job, token) {
            return Err(format!("regained from {:?}", before.state));
        }
        self.protected.insert(token, to.is_live);
        self.expect_row(&tables, to)
    }

    /// Replays an adoption: a lease moves to another broker.
    fn adopt(&mut self, from: &Change, to: &Change) -> Result<(), String> {
        let before = self.known(from)?;
        let (token, Some(number)) = (to.token.unwrap_or_default(), to.number) else {
            return Err("a lease lost its broker without the end of the lease".into());
        };
        let mut tables = self.tables(before, to);
        if !tables.adopt(to.job, token, number, None, Checks::ALL) {
            return Err(if from.token == to.token {
                "adopted by a broker whose row had expired".into()
            } else {
                "the token of a lease was changed".into()
            });
        }
        self.protected.insert(token, to.is_live);
        self.seen.adoptions += 1;
        self.expect_row(&tables, to)
    }

    /// Replays the end of a lease: the job leaves the table `leased`.
    fn end(&mut self, from: &Change, to: Option<&Change>) -> Result<(), String> {
        let before = self.known(from)?;
        let (job, token) = (from.job, from.token.unwrap_or_default());
        let settled = to.and_then(|to| outcome_of(token, to));
        let mut tables = self.tables(before, from);
        if let Some(outcome) = settled {
            self.seen.outcomes += 1;
            if tables.settle(job, token, outcome, Checks::ALL).is_none() {
                return Err("a worker's outcome settled the job with a token that is not the lease's".into());
            }
            return self.expect_after_end(&tables, to);
        }
        let Some(to) = to else {
            // The job is in no table, so it was acked and its task type keeps no history.
            self.jobs.remove(&job);
            self.seen.outcomes += 1;
            return Ok(());
        };
        let ending = match to.attempt.cmp(&before.attempt) {
            _ if to.table == Table::History => {
                // An operator cancelled the job, or the job expired before its attempt began.
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
                return Err(
                    "the lease was rescued from a broker whose row had already expired when it got the lease".into()
                );
            }
        } else {
            self.seen.ended += 1;
            self.check_owner(ending, from)?;
        }
        if tables.end(job, token, None, ending, Checks::ALL).is_none() {
            return Err("a broker ended the lease with a token that is not the lease's".into());
        }
        self.expect_after_end(&tables, Some(to))
    }

    /// Fails if a broker process ended a lease of another broker that was live.
    fn check_owner(&self, ending: Ending, from: &Change) -> Result<(), String> {
        let owner = from.number.and_then(|number| self.processes.get(&number));
        let known = self.processes.values().any(|process| *process == from.by);
        let by_another = owner.is_some_and(|owner| *owner != from.by);
        if ending != Ending::TimedOut && from.is_live == Some(true) && known && by_another {
            return Err(format!("broker {:?} ended a lease of broker {:?}, which was live", from.by, owner));
        }
        Ok(())
    }

    /// Replays a change that does not involve the table `leased`: a job moves between other tables, enters or leaves
    /// them.
    fn between_tables(&mut self, from: Option<&Change>, to: Option<&Change>) -> Result<(), String> {
        if let Some(from) = from {
            if from.table == Table::History {
                return Err("the history row of a finished job was changed".into());
            }
            self.known(from)?;
            self.jobs.remove(&from.job);
            // Count an outcome that came after its lease was lost: one transaction restored the lease and settled the
            // job.
            let token = to.and_then(|to| to.last_token).filter(|_| to.is_some_and(|to| to.table == Table::History));
            self.seen.outcomes += usize::from(token.is_some_and(|token| was_lost(token, from)));
        } else if let Some(to) = to
            && self.jobs.contains_key(&to.job)
        {
            return Err(format!("the job was inserted into {:?} while it is in another table", to.table));
        }
        if let Some(to) = to.filter(|to| to.table != Table::History) {
            self.jobs.insert(to.job, row(to));
        }
        Ok(())
    }

    /// Returns the row of the job after the previous step. Fails if it differs from the row that the change removes.
    fn known(&self, change: &Change) -> Result<Row, String> {
        let row = row(change);
        match self.jobs.get(&change.job) {
            Some(known) if known.state == row.state && known.attempt == row.attempt => Ok(*known),
            Some(known) => Err(format!("the job was {known:?}, but the change removes it from {:?}", row.state)),
            None => Err(format!("the change removes the job from {:?}, where it was not", row.state)),
        }
    }

    /// Returns model tables that contain only this job.
    fn tables(&self, row: Row, change: &Change) -> Tables {
        let mut tables = Tables::default();
        tables.put(row);
        // A lease without a broker, or whose broker has no row, has `is_live` `None`. A broker without a row counts as live.
        if change.is_live != Some(false) {
            change.number.into_iter().for_each(|number| tables.register(number));
        }
        tables
    }

    /// Fails unless the recorded row equals the row that the model predicts.
    fn expect_row(&mut self, tables: &Tables, to: &Change) -> Result<(), String> {
        let found = row(to);
        let allowed = tables.rows().first().copied().unwrap_or(found);
        if (allowed.state, allowed.attempt) != (found.state, found.attempt) {
            return Err(format!("the job should be {allowed:?}, but is {found:?}"));
        }
        self.jobs.insert(to.job, found);
        Ok(())
    }

    /// Fails unless a job whose lease ended is in a table that the model predicts. After an outcome the job may also be delayed,
    /// wait for a limit, start its next stage or be replaced by its fallback.
    fn expect_after_end(&mut self, tables: &Tables, to: Option<&Change>) -> Result<(), String> {
        let Some(to) = to else { return Ok(()) };
        let found = row(to);
        let allowed = tables.rows().first().copied().unwrap_or(found);
        let waits = matches!(found.state, JobState::Ready | JobState::Scheduled | JobState::Waiting);
        let starts_over = waits && found.attempt == 0;
        let fine = match allowed.state {
            JobState::Finished => found.state == JobState::Finished || starts_over,
            JobState::Dead => found.state == JobState::Dead && found.attempt == allowed.attempt || starts_over,
            // A job whose lease failed may be in history at once, because a newer job with the same key has replaced it.
            _ => (waits || found.state == JobState::Finished) && found.attempt == allowed.attempt,
        };
        if !fine {
            return Err(format!("the job should be {allowed:?}, but is {found:?}"));
        }
        if found.state == JobState::Finished {
            self.jobs.remove(&to.job);
        } else {
            self.jobs.insert(to.job, found);
        }
        Ok(())
    }
}

/// Returns the worker's outcome that settled the job with this token; `None` if a broker ended the lease.
fn outcome_of(token: Token, to: &Change) -> Option<Outcome> {
    let last = to.last_token?;
    if to.table == Table::History {
        return (last == token).then_some(Outcome::Ack);
    }
    Outcome::ALL.get(usize::try_from(last ^ token).ok()?).copied()
}

/// Whether the job is not leased again since it lost the lease with this token.
fn was_lost(token: Token, of: &Change) -> bool {
    of.table != Table::Leased && of.last_token == Some(token ^ LOST)
}

/// Number that marks the lease of a lost worker: its column `last_token` is the token XOR this number
/// (`schema/tables/jobs.sql`).
const LOST: Token = 6;

fn row(change: &Change) -> Row {
    let state = match change.table {
        Table::Ready => JobState::Ready,
        Table::Leased => JobState::Leased(change.token.unwrap_or_default(), change.number),
        Table::Scheduled => JobState::Scheduled,
        Table::Waiting => JobState::Waiting,
        Table::Dead => JobState::Dead,
        Table::History | Table::Broker => JobState::Finished,
    };
    Row {
        job: change.job,
        state,
        attempt: change.attempt,
        max_attempts: change.max_attempts,
        settled: None,
        lost: None,
    }
}
