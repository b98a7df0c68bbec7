//! Runs SQL: the payload is one or more statements, and the rows they return are the result.
//!
//! - `options`: a job's options for its database and its result
//! - `database`: connections, and how statements are cancelled
//! - `login`, `wire`: from a socket to simple queries
//! - `problem`: the error of a statement
//! - `collected`: the result
//! - `session`: one job on one connection
//! - here: which database to use, and the ending of an attempt

mod collected;
mod database;
mod login;
mod options;
mod problem;
mod session;
mod wire;

use std::{collections::BTreeMap, future::Future, time::Duration};

use tokio::{
    select,
    time::{sleep, timeout},
};

pub use self::database::Database;
use self::{
    database::{CancelWay, Connection},
    options::Options,
    session::Stop,
};
use super::{
    attempt::{Attempt, Ending},
    exec::{KILL_AFTER, StopTokens},
};

/// How soon a running statement is cancelled again: the first request may have been too early.
const CANCEL_AGAIN: Duration = Duration::from_secs(1);
/// The time limit for the work before and after a job.
const PREPARE_WITHIN: Duration = Duration::from_secs(10);

/// The databases, and the settings of jobs.
#[derive(Debug)]
pub struct Sql {
    database: Database,
    named: BTreeMap<String, Database>,
    stop_tokens: StopTokens,
    max_result: usize,
    /// The time limit for all statements of a job.
    timeout: Option<Duration>,
}

/// Why a statement is cancelled.
enum Interrupted {
    /// The worker has lost the job.
    Cancelled,
    /// This worker stops.
    Released,
    /// The job took longer than --timeout.
    TimedOut(Duration),
}

impl Sql {
    /// Jobs run in `database`, unless they name another.
    pub fn new(
        database: Database,
        named: BTreeMap<String, Database>,
        stop_tokens: StopTokens,
        max_result: usize,
    ) -> Self {
        Self { database, named, stop_tokens, max_result, timeout: None }
    }

    /// Cancels a job's statements if they take longer in total. The job may have a shorter timeout of its own.
    #[must_use]
    pub fn with_timeout(self, timeout: Option<Duration>) -> Self {
        Self { timeout, ..self }
    }

    /// Runs one job, to its end or until `cancelled`; then its statement is cancelled in the server.
    pub async fn run(&self, attempt: &Attempt, cancelled: impl Future<Output = ()>) -> Ending {
        if self.stop_tokens.at_once.is_cancelled() || self.stop_tokens.politely.is_cancelled() {
            return Ending::Released;
        }
        match self.prepare(attempt) {
            Ok((options, database, sql)) => self.run_in(database, &options, attempt, sql, cancelled).await,
            Err(problem) => Ending::FailedForGood(problem),
        }
    }

    /// Called when no more jobs will come.
    pub async fn close(&self) {
        for database in self.named.values().chain([&self.database]) {
            database.close().await;
        }
    }

    /// The options, database and text of a job.
    fn prepare<'a>(&'a self, attempt: &'a Attempt) -> Result<(Options, &'a Database, &'a str), String> {
        let options = Options::read(&attempt.headers)?;
        let database = match &options.database {
            None => &self.database,
            Some(name) => self.named.get(name).ok_or_else(|| self.unknown(name))?,
        };
        let sql = std::str::from_utf8(&attempt.payload)
            .map_err(|error| format!("the payload is not SQL: byte {} is not UTF-8", error.valid_up_to() + 1))?;
        if let Some(index) = sql.find('\0') {
            return Err(format!("the payload is not SQL: byte {} is zero", index + 1));
        }
        Ok((options, database, sql))
    }

    fn unknown(&self, name: &str) -> String {
        let names: Vec<&str> = self.named.keys().map(String::as_str).collect();
        let known = if names.is_empty() {
            "it has no named databases; add one with --name NAME=DSN".to_owned()
        } else {
            format!("use one of {}", names.join(", "))
        };
        format!("header sql-database: unknown database {name:?}; {known}")
    }

    async fn run_in(
        &self,
        database: &Database,
        options: &Options,
        attempt: &Attempt,
        sql: &str,
        cancelled: impl Future<Output = ()>,
    ) -> Ending {
        let interrupted = async {
            select! {
                () = cancelled => Interrupted::Cancelled,
                () = self.stop_tokens.politely.cancelled() => Interrupted::Released,
                () = self.stop_tokens.at_once.cancelled() => Interrupted::Released,
                after = self.timed_out() => Interrupted::TimedOut(after),
            }
        };
        let mut interrupted = std::pin::pin!(interrupted);
        let connecting = session::begin(database, attempt, self.most());
        let connection = select! {
            connection = connecting => connection,
            why = &mut interrupted => return why.ending(options),
        };
        let mut connection = match connection {
            Ok(connection) => connection,
            Err(problem) => return Ending::Failed(format!("no connection to {}: {problem}", database_words(options))),
        };
        let way = connection.cancel_way();
        let mut why = None;
        let ran = {
            let running = session::run(&mut connection, database, options, sql, self.max_result);
            let mut running = std::pin::pin!(running);
            select! {
                ran = &mut running => Some(ran),
                interruption = interrupted => {
                    why = Some(interruption);
                    self.cancel(database, &way, running).await
                }
            }
        };
        self.finish(database, options, connection, &way, (ran, why)).await
    }

    /// Resolves after the time limit; never, if there is none.
    async fn timed_out(&self) -> Duration {
        match self.timeout {
            Some(after) => {
                sleep(after).await;
                after
            }
            None => std::future::pending().await,
        }
    }

    /// The largest message. Rows within the limit of the result are smaller.
    fn most(&self) -> usize {
        self.max_result.max(1 << 20) + (64 << 10)
    }

    /// Cancels the statement until it ends, but not forever.
    async fn cancel<T>(
        &self,
        database: &Database,
        way: &CancelWay,
        mut running: impl Future<Output = T> + Unpin,
    ) -> Option<T> {
        let cancelling = async {
            loop {
                if let Err(error) = database.cancel(way).await {
                    tracing::warn!(%error, "cannot cancel a statement; trying again");
                }
                sleep(CANCEL_AGAIN).await;
            }
        };
        let ended = async {
            select! {
                ended = &mut running => Some(ended),
                never = cancelling => never,
            }
        };
        let at_once = async {
            self.stop_tokens.at_once.cancelled().await;
            sleep(CANCEL_AGAIN).await;
        };
        select! {
            ended = timeout(KILL_AFTER, ended) => ended.ok().flatten(),
            () = at_once => None,
        }
    }

    async fn finish(
        &self,
        database: &Database,
        options: &Options,
        connection: Connection,
        way: &CancelWay,
        (ran, why): (Option<Result<bytes::Bytes, Stop>>, Option<Interrupted>),
    ) -> Ending {
        if matches!(ran, Some(Err(Stop::TooLarge | Stop::Copy))) {
            // Otherwise it would go on until it notices that we are gone.
            let _ = database.cancel(way).await;
        }
        // A late request to cancel must not hit the next job.
        let is_good = why.is_none()
            && match &ran {
                Some(Ok(_)) => true,
                Some(Err(stop)) => stop.leaves_connection(),
                None => false,
            };
        if is_good && !matches!(timeout(PREPARE_WITHIN, session::clean(connection, database)).await, Ok(true)) {
            tracing::debug!("cannot reset a session; closing its connection");
        }
        match (ran, why) {
            (Some(Ok(result)), _) => Ending::Done(result),
            (None, why) => why.map_or(Ending::Released, |why| why.ending(options)),
            (Some(Err(Stop::Problem { is_cancelled: true, .. })), Some(why)) => why.ending(options),
            (Some(Err(stop)), _) => self.failed(options, stop),
        }
    }

    fn failed(&self, options: &Options, stop: Stop) -> Ending {
        match stop {
            Stop::TooLarge => Ending::FailedForGood(format!(
                "the result has more than {} bytes, the limit of --max-output; the statement was cancelled",
                self.max_result
            )),
            Stop::Copy => Ending::FailedForGood(
                "COPY FROM STDIN and COPY TO STDOUT are not supported; use INSERT and SELECT".into(),
            ),
            Stop::Open => Ending::FailedForGood(
                "the payload left a transaction open, which was rolled back: end it with COMMIT, or leave out BEGIN, since \
                 the statements of a payload are one transaction anyway"
                    .into(),
            ),
            Stop::Encoding(encoding) => Ending::FailedForGood(format!(
                "the payload set client_encoding to {encoding}, so its result cannot be read; leave it at UTF8. Its changes \
                 are committed"
            )),
            Stop::Lost(text) => Ending::Failed(format!(
                "the connection to {} was lost, and statements may be committed: {text}",
                database_words(options)
            )),
            Stop::Problem { text, is_final, is_passing, .. } if is_final || (!options.retry && !is_passing) => {
                Ending::FailedForGood(text)
            }
            Stop::Problem { text, .. } => Ending::Failed(text),
        }
    }
}

fn database_words(options: &Options) -> String {
    options.database.as_ref().map_or_else(|| "the database".to_owned(), |name| format!("the database {name:?}"))
}

impl Interrupted {
    fn ending(&self, options: &Options) -> Ending {
        match self {
            Self::Cancelled => Ending::Cancelled,
            Self::Released => Ending::Released,
            Self::TimedOut(after) => {
                let text = format!("it took longer than {after:?} (--timeout), and was cancelled");
                if options.retry { Ending::Failed(text) } else { Ending::FailedForGood(text) }
            }
        }
    }
}
