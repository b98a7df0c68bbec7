//! The tables, and one function for each statement that changes who holds a job. The model and the replay share them, so a
//! recorded step is judged by the very rule that was checked.

use crate::Checks;

/// The id of a job.
pub type Job = i64;
/// The token of a lease.
pub type Token = i64;
/// The id of a broker in `howdah.broker`; a broker that registers again has another one.
pub type Number = i32;

/// How a worker ends an attempt. The numbers are those of `last_token` in `schema/tables/jobs.sql`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// Done.
    Ack = 0,
    /// Failed, with another try if there are attempts left.
    Retry = 1,
    /// Failed for good.
    Dead = 2,
    /// Not now; the attempt does not count.
    Snooze = 3,
    /// For another worker; the attempt does not count.
    Release = 4,
}

impl Outcome {
    /// All of them, by their numbers.
    pub const ALL: [Self; 5] = [Self::Ack, Self::Retry, Self::Dead, Self::Snooze, Self::Release];
}

/// How anybody ends an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ending {
    /// The worker settled it.
    Settled(Outcome),
    /// Its broker released it: it was not sent, or its worker did not list it. The attempt does not count.
    Released,
    /// Its worker is lost. The attempt counts.
    Lost,
    /// Its broker is gone, and another one took the lease back. The attempt counts.
    Rescued,
    /// Its deadline has passed. The attempt counts.
    TimedOut,
}

impl Ending {
    /// Whether the attempt counts.
    pub const fn counts(self) -> bool {
        !matches!(self, Self::Released | Self::Settled(Outcome::Snooze | Outcome::Release))
    }
}

/// The table that a job is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// Can run now. The model knows no delays: a job that is tried again is ready at once.
    Ready,
    /// Held under this token by this broker; `None`: pulled, which lasts until the deadline.
    Leased(Token, Option<Number>),
    /// Not before some time. Only in replays, as `Waiting`.
    Scheduled,
    /// Behind another job, or a limit.
    Waiting,
    /// No attempts left, or failed for good.
    Dead,
    /// In history.
    Finished,
}

/// A row of one of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Row {
    /// The job.
    pub job: Job,
    /// The table, with what only `leased` has.
    pub place: Place,
    /// Attempts started so far.
    pub attempt: i16,
    /// The most attempts.
    pub max_attempts: i16,
    /// `last_token`: which token settled it last, and as what.
    pub settled: Option<(Token, Outcome)>,
}

impl Row {
    /// The row of a job whose lease has ended so: what the statements insert.
    #[must_use]
    pub fn after(self, token: Token, ending: Ending) -> Self {
        let attempt = if ending.counts() { self.attempt } else { self.attempt - 1 };
        let spent = self.attempt >= self.max_attempts;
        let place = match ending {
            Ending::Settled(Outcome::Ack) => Place::Finished,
            Ending::Settled(Outcome::Dead) => Place::Dead,
            Ending::Settled(Outcome::Retry) | Ending::Lost | Ending::Rescued | Ending::TimedOut if spent => Place::Dead,
            _ => Place::Ready,
        };
        // Only the worker's own settle may be repeated.
        let settled = if let Ending::Settled(outcome) = ending { Some((token, outcome)) } else { self.settled };
        Self { place, attempt, settled, ..self }
    }
}

/// What a statement ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The token of the lease that is over.
    pub token: Token,
    /// The broker that it was under.
    pub number: Option<Number>,
}

/// All rows of all tables of jobs, and the rows of `howdah.broker` that have not expired. A job that is in two tables has
/// two rows here.
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

    /// Inserts a row.
    pub fn put(&mut self, row: Row) {
        let at = self.rows.partition_point(|other| *other < row);
        self.rows.insert(at, row);
    }

    /// Deletes the first row that matches.
    pub fn take(&mut self, matches: impl Fn(&Row) -> bool) -> Option<Row> {
        let at = self.rows.iter().position(matches)?;
        Some(self.rows.remove(at))
    }

    /// Whether a broker's row has not expired.
    pub fn is_live(&self, number: Number) -> bool {
        self.live.contains(&number)
    }

    /// A broker registers, or its row is renewed.
    pub fn register(&mut self, number: Number) {
        if let Err(at) = self.live.binary_search(&number) {
            self.live.insert(at, number);
        }
    }

    /// A broker's row expires, or is deleted.
    pub fn expire(&mut self, number: Number) {
        self.live.retain(|live| *live != number);
    }

    /// `claim.sql`: a ready job is leased, its attempt counted, if the broker's row has not expired.
    pub fn claim(&mut self, job: Job, token: Token, number: Option<Number>, checks: Checks) -> bool {
        if checks.expiry && number.is_some_and(|number| !self.is_live(number)) {
            return false;
        }
        let Some(row) = self.take(|row| row.job == job && row.place == Place::Ready) else { return false };
        self.put(Row { place: Place::Leased(token, number), attempt: row.attempt + 1, ..row });
        true
    }

    /// `adopt.sql`: the lease is this broker's from now on, if the token matches and the broker's row has not expired. With
    /// `from`, only if it is under one of these numbers.
    pub fn adopt(&mut self, job: Job, token: Token, number: Number, from: Option<&[Number]>, checks: Checks) -> bool {
        if checks.expiry && !self.is_live(number) {
            return false;
        }
        let is_it = |row: &Row| match row.place {
            Place::Leased(leased, Some(owner)) => {
                row.job == job && (leased == token || !checks.token) && from.is_none_or(|from| from.contains(&owner))
            }
            _ => false,
        };
        let Some(row) = self.take(is_it) else { return false };
        self.put(Row { place: Place::Leased(leased(&row).token, Some(number)), ..row });
        true
    }

    /// `settle_ack.sql`, `settle_nack.sql` for a worker: a compare-and-set on the job and its token, whoever the owner is.
    pub fn settle(&mut self, job: Job, token: Token, outcome: Outcome, checks: Checks) -> Option<Ended> {
        self.end(job, token, None, Ending::Settled(outcome), checks)
    }

    /// `settle_nack.sql` for the broker: the same, and the lease must be under one of these numbers.
    pub fn end(
        &mut self,
        job: Job,
        token: Token,
        owners: Option<&[Number]>,
        ending: Ending,
        checks: Checks,
    ) -> Option<Ended> {
        let is_it = |row: &Row| match row.place {
            Place::Leased(leased, number) => {
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

    /// `rescue.sql`: a lease of a broker that is gone is ended by one that is not.
    pub fn rescue(&mut self, job: Job, by: Number, checks: Checks) -> Option<Ended> {
        if checks.rescuer_expiry && !self.is_live(by) {
            return None;
        }
        let is_gone = |number: Option<Number>| number.is_some_and(|number| !self.is_live(number));
        let is_it = |row: &Row| matches!(row.place, Place::Leased(_, number) if row.job == job && is_gone(number));
        let at = self.rows.iter().position(is_it)?;
        let row = self.rows.remove(at);
        let ended = leased(&row);
        self.put(row.after(ended.token, Ending::Rescued));
        Some(ended)
    }

    /// `settled_before.sql`: whether this token has settled the job, as this.
    pub fn settled_before(&self, job: Job, token: Token, outcome: Outcome) -> bool {
        self.rows.iter().any(|row| row.job == job && row.settled == Some((token, outcome)))
    }

    /// The broker that has this lease, if it is alive.
    pub fn owner(&self, job: Job, token: Token) -> Option<Option<Number>> {
        self.rows.iter().find_map(|row| match row.place {
            Place::Leased(leased, number) if row.job == job && leased == token => Some(number),
            _ => None,
        })
    }
}

fn leased(row: &Row) -> Ended {
    match row.place {
        Place::Leased(token, number) => Ended { token, number },
        _ => Ended { token: 0, number: None },
    }
}
