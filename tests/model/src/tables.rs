//! The tables of the model, with one function for each SQL statement that changes the lease of a job. The model and the replay
//! share these functions, so recorded steps are held to the rules that the checker explored.

use crate::Checks;

/// Job id.
pub type Job = i64;
pub type Token = i64;
/// Id of a broker in `howdah.broker`. A broker that registers again gets a new number.
pub type Number = i32;

/// Outcome of an attempt as sent by a worker. The values are the codes in the column `last_token`; see
/// `schema/tables/jobs.sql`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// Succeeded.
    Ack = 0,
    /// Failed; retried if attempts are left.
    Retry = 1,
    /// Failed for good.
    Dead = 2,
    /// Postponed; the attempt does not count.
    Snooze = 3,
    /// Given back for another worker to run; the attempt does not count.
    Release = 4,
}

impl Outcome {
    /// All outcomes in the order of their values.
    pub const ALL: [Self; 5] = [Self::Ack, Self::Retry, Self::Dead, Self::Snooze, Self::Release];
}

/// How an attempt ended, including endings by brokers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ending {
    /// The worker settled the attempt.
    Settled(Outcome),
    /// The broker released the lease, because the job was not sent or its worker did not list it. The attempt does not count.
    Released,
    /// The broker failed the attempt, because its worker was lost. The attempt counts.
    Lost,
    /// The row of the lease's broker expired, and another broker rescued the lease. The attempt counts.
    Rescued,
    /// The attempt's deadline passed. The attempt counts.
    TimedOut,
}

impl Ending {
    /// Whether an attempt that ends this way counts.
    pub const fn counts(self) -> bool {
        !matches!(self, Self::Released | Self::Settled(Outcome::Snooze | Outcome::Release))
    }
}

/// The table that contains a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum JobState {
    /// The job can run now. The model has no delays, so a retried job is ready at once.
    Ready,
    /// A broker has leased the job with this token. Without a broker the job was pulled, and the lease lasts until its
    /// deadline.
    Leased(Token, Option<Number>),
    /// The job has a later start time. Only replays have scheduled and waiting jobs.
    Scheduled,
    /// The job waits for another job or for a limit.
    Waiting,
    /// The job has no attempts left, or has failed for good.
    Dead,
    /// In history.
    Finished,
}

/// A row of a job table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Row {
    pub job: Job,
    /// The table that contains the job, with the columns that only `leased` has.
    pub state: JobState,
    /// Attempts started.
    pub attempt: i16,
    /// Attempts allowed.
    pub max_attempts: i16,
    /// Column `last_token`: token and outcome of the last settle.
    pub settled: Option<(Token, Outcome)>,
    /// Column `last_token`, if it has the token of a lease that ended because its worker or broker was lost.
    pub lost: Option<Token>,
}

impl Row {
    /// Returns the row that the statements insert after the lease with this token has ended.
    #[must_use]
    pub fn after(self, token: Token, ending: Ending) -> Self {
        let attempt = if ending.counts() { self.attempt } else { self.attempt - 1 };
        let spent = self.attempt >= self.max_attempts;
        let state = match ending {
            Ending::Settled(Outcome::Ack) => JobState::Finished,
            Ending::Settled(Outcome::Dead) => JobState::Dead,
            Ending::Settled(Outcome::Retry) | Ending::Lost | Ending::Rescued | Ending::TimedOut if spent => {
                JobState::Dead
            }
            _ => JobState::Ready,
        };
        // Keep what later statements look up: a worker's outcome, because the worker may repeat it, and the lease of a lost
        // worker, because it may be restored.
        let (settled, lost) = match ending {
            Ending::Settled(outcome) => (Some((token, outcome)), None),
            Ending::Lost | Ending::Rescued => (None, Some(token)),
            Ending::Released => (self.settled, self.lost),
            Ending::TimedOut => (None, None),
        };
        Self { state, attempt, settled, lost, ..self }
    }
}

/// A lease that a statement ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    pub token: Token,
    /// Number of the broker that held the lease; `None` if the job was pulled.
    pub number: Option<Number>,
}

/// The rows of all job tables, and the numbers of live brokers. A job that wrongly is in two tables has two rows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tables {
    rows: Vec<Row>,
    live: Vec<Number>,
}

impl Tables {
    /// The rows, sorted.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    pub fn put(&mut self, row: Row) {
        let at = self.rows.partition_point(|other| *other < row);
        self.rows.insert(at, row);
    }

    /// Removes and returns the first job row that matches.
    pub fn take(&mut self, matches: impl Fn(&Row) -> bool) -> Option<Row> {
        let at = self.rows.iter().position(matches)?;
        Some(self.rows.remove(at))
    }

    /// Whether a broker's row has not expired.
    pub fn is_live(&self, number: Number) -> bool {
        self.live.contains(&number)
    }

    /// Registers a broker, or renews its row.
    pub fn register(&mut self, number: Number) {
        if let Err(at) = self.live.binary_search(&number) {
            self.live.insert(at, number);
        }
    }

    /// Removes a broker's row, as expiry does.
    pub fn expire(&mut self, number: Number) {
        self.live.retain(|live| *live != number);
    }

    /// Does what `claim.sql` does: leases a ready job and counts the attempt. Fails if the broker's row has expired.
    pub fn claim(&mut self, job: Job, token: Token, number: Option<Number>, checks: Checks) -> bool {
        if checks.expiry && number.is_some_and(|number| !self.is_live(number)) {
            return false;
        }
        let Some(row) = self.take(|row| row.job == job && row.state == JobState::Ready) else { return false };
        self.put(Row { state: JobState::Leased(token, number), attempt: row.attempt + 1, ..row });
        true
    }

    /// Does what `howdah.regain` does: restores the lease of a lost worker, without a broker, if the job was not leased
    /// since.
    pub(crate) fn regain(&mut self, job: Job, token: Token) -> bool {
        let is_it = |row: &Row| {
            row.job == job
                && row.lost == Some(token)
                && matches!(row.state, JobState::Ready | JobState::Waiting | JobState::Dead)
        };
        let Some(row) = self.take(is_it) else { return false };
        self.put(Row { state: JobState::Leased(token, None), settled: None, lost: None, ..row });
        true
    }

    /// Does what `adopt.sql` does: moves a lease to a broker. Requires a matching token and that the broker's row is live. With
    /// `from`, also requires that the lease is under one of those numbers.
    pub fn adopt(&mut self, job: Job, token: Token, number: Number, from: Option<&[Number]>, checks: Checks) -> bool {
        if checks.expiry && !self.is_live(number) {
            return false;
        }
        let is_it = |row: &Row| match row.state {
            JobState::Leased(leased, Some(owner)) => {
                row.job == job && (leased == token || !checks.token) && from.is_none_or(|from| from.contains(&owner))
            }
            _ => false,
        };
        let Some(row) = self.take(is_it) else { return false };
        self.put(Row { state: JobState::Leased(leased(&row).token, Some(number)), ..row });
        true
    }

    /// Does what `settle_ack.sql` and `settle_nack.sql` do for a worker: a compare-and-set on job and token, regardless of the
    /// lease's broker. A lost lease is restored first.
    pub fn settle(&mut self, job: Job, token: Token, outcome: Outcome, checks: Checks) -> Option<Ended> {
        self.end(job, token, None, Ending::Settled(outcome), checks).or_else(|| {
            self.regain(job, token).then(|| self.end(job, token, None, Ending::Settled(outcome), checks)).flatten()
        })
    }

    /// Does what `settle_nack.sql` does for a broker: a compare-and-set on job and token. With `owners`, the lease must be
    /// under one of those numbers.
    pub fn end(
        &mut self,
        job: Job,
        token: Token,
        owners: Option<&[Number]>,
        ending: Ending,
        checks: Checks,
    ) -> Option<Ended> {
        let is_it = |row: &Row| match row.state {
            JobState::Leased(leased, number) => {
                row.job == job
                    && (leased == token || !checks.token)
                    && (!checks.owner
                        || owners.is_none_or(|owners| number.is_some_and(|number| owners.contains(&number))))
            }
            _ => false,
        };
        let row = self.take(is_it)?;
        let ended = leased(&row);
        self.put(row.after(ended.token, ending));
        Some(ended)
    }

    /// Does what `rescue.sql` does: ends a lease of an expired broker. Requires that the rescuing broker's row is live.
    pub fn rescue(&mut self, job: Job, by: Number, checks: Checks) -> Option<Ended> {
        if checks.rescuer_expiry && !self.is_live(by) {
            return None;
        }
        let is_gone = |number: Option<Number>| number.is_some_and(|number| !self.is_live(number));
        let is_it = |row: &Row| matches!(row.state, JobState::Leased(_, number) if row.job == job && is_gone(number));
        let at = self.rows.iter().position(is_it)?;
        let row = self.rows.remove(at);
        let ended = leased(&row);
        self.put(row.after(ended.token, Ending::Rescued));
        Some(ended)
    }

    /// Does what `settled_before.sql` does: returns whether this token has already settled the job with this outcome.
    pub fn settled_before(&self, job: Job, token: Token, outcome: Outcome) -> bool {
        self.rows.iter().any(|row| row.job == job && row.settled == Some((token, outcome)))
    }

    /// Returns the broker that holds this lease: `None` if the lease does not exist, `Some(None)` if the job was
    /// pulled.
    pub fn owner(&self, job: Job, token: Token) -> Option<Option<Number>> {
        self.rows.iter().find_map(|row| match row.state {
            JobState::Leased(leased, number) if row.job == job && leased == token => Some(number),
            _ => None,
        })
    }
}

fn leased(row: &Row) -> Ended {
    match row.state {
        JobState::Leased(token, number) => Ended { token, number },
        _ => Ended { token: 0, number: None },
    }
}
