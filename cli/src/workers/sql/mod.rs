//! Runs jobs as SQL: the payload is one or more statements, and the returned rows are the result.
//!
//! - `options`: options of a job for its database and its result
//! - `database`: connections, and cancellation of statements
//! - `login`, `wire`: login and simple queries on a socket
//! - `problem`: error of a statement
//! - `collected`: result of a job
//! - `session`: one job on one connection
//! - `stores`: the store of a job, whose database it runs in by default
//! - this module: the choice of the database, and the ending of an attempt

mod collected;
mod database;
mod login;
mod options;
mod problem;
mod session;
mod stores;
mod wire;

use std::{collections::BTreeMap, future::Future, time::Duration};

use howdah_client::Client;
use howdah_core::logging::Throttle;
use parking_lot::Mutex;
use tokio::{
    select,
    time::{sleep, timeout},
};

pub use self::database::Database;
use self::{
    database::{CancelWay, Connection},
    options::Options,
    session::Stop,
    stores::Stores,
};
use super::{
    attempt::{Attempt, Ending},
    exec::{KILL_AFTER, StopTokens},
};

/// Interval between cancel requests for a statement, because the first request may arrive before the statement.
const CANCEL_INTERVAL: Duration = Duration::from_secs(1);
/// Time limit for the preparation of a job, and for the cleanup after it.
const PREPARE_WITHIN: Duration = Duration::from_secs(10);

/// Time for which a job waits for a database connection before it is snoozed.
const CONNECT_FOR: Duration = Duration::from_secs(10);
/// Snooze time of a job that got no connection.
const AFTER_NO_CONNECTION: Duration = Duration::from_secs(5);

/// Worker that runs jobs as SQL in its databases.
#[derive(Debug)]
pub struct Sql {
    database: Database,
    named: BTreeMap<String, Database>,
    /// Stores of the jobs. `None`: jobs that name no database run in `database`.
    stores: Option<Stores>,
    stop_tokens: StopTokens,
    max_result: usize,
    /// Time limit for all statements of a job together.
    timeout: Option<Duration>,
    complaint: Mutex<Throttle>,
}

/// Reason for the cancellation of a statement.
enum Interrupted {
    /// The worker lost the job.
    Cancelled,
    /// This worker stops.
    Released,
    /// The job took longer than --timeout.
    TimedOut(Duration),
}

impl Sql {
    /// Creates a worker. Jobs run in `database`, unless they name another database.
    pub fn new(
        database: Database,
        named: BTreeMap<String, Database>,
        stop_tokens: StopTokens,
        max_result: usize,
    ) -> Self {
        Self {
            database,
            named,
            stores: None,
            stop_tokens,
            max_result,
            timeout: None,
            complaint: Mutex::new(Throttle::every(Duration::from_secs(60))),
        }
    }

    /// Sets the time limit for all statements of a job together. The timeout of the job applies additionally.
    #[must_use]
    pub fn with_timeout(self, timeout: Option<Duration>) -> Self {
        Self { timeout, ..self }
    }

    /// Makes jobs that name no database run in the database that has the name of their store, if there is one.
    #[must_use]
    pub fn by_store(self, client: Client) -> Self {
        Self { stores: Some(Stores::new(client)).filter(|_| !self.named.is_empty()), ..self }
    }

    /// Runs one job to its end. After `cancelled`, cancels its statement in the server.
    pub async fn run(&self, attempt: &Attempt, cancelled: impl Future<Output = ()>) -> Ending {
        if self.stop_tokens.immediate.is_cancelled() || self.stop_tokens.graceful.is_cancelled() {
            return Ending::Released;
        }
        let store = match &self.stores {
            Some(stores) => match stores.of_job(attempt.id).await {
                Ok(store) => store,
                Err(error) => return self.without_store(&error),
            },
            None => None,
        };
        match self.prepare(attempt, store.as_deref()) {
            Ok((options, database, sql)) => self.run_in(database, &options, attempt, sql, cancelled).await,
            Err(problem) => Ending::FailedForGood(problem),
        }
    }

    /// Closes idle connections. Called after the last job.
    pub async fn close(&self) {
        for database in self.named.values().chain([&self.database]) {
            database.close().await;
        }
    }

    /// Snoozes a job whose store is unknown, because it must not run in another database.
    fn without_store(&self, error: &howdah_client::Error) -> Ending {
        if let Some(times) = self.complaint.lock().count() {
            tracing::warn!(
                %error, times,
                "cannot list the stores of the broker, whose databases --name gives; jobs wait, and their attempts do not count. \
                 The worker's token needs read:*"
            );
        }
        Ending::Snoozed(AFTER_NO_CONNECTION)
    }

    /// Returns the options, the database and the SQL text of a job in this store.
    fn prepare<'a>(
        &'a self,
        attempt: &'a Attempt,
        store: Option<&str>,
    ) -> Result<(Options, &'a Database, &'a str), String> {
        let options = Options::read(&attempt.headers)?;
        let database = match &options.database {
            None => store.and_then(|store| self.named.get(store)).unwrap_or(&self.database),
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
            "this worker has no named databases; add one with --name NAME=DSN".to_owned()
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
                () = self.stop_tokens.graceful.cancelled() => Interrupted::Released,
                () = self.stop_tokens.immediate.cancelled() => Interrupted::Released,
                after = self.timed_out() => Interrupted::TimedOut(after),
            }
        };
        let mut interrupted = std::pin::pin!(interrupted);
        let connecting = session::begin(database, attempt, self.most(), CONNECT_FOR);
        let connection = select! {
            connection = connecting => connection,
            why = &mut interrupted => return why.ending(options),
        };
        let mut connection = match connection {
            Ok(connection) => connection,
            Err(problem) => {
                // Snoozes the job: no statement was run, so the attempt does not count.
                let database = database_words(options);
                tracing::debug!(%problem, "cannot connect to {database}");
                if let Some(times) = self.complaint.lock().count() {
                    tracing::warn!(
                        %problem, times,
                        "cannot connect to {database}; its jobs wait, and their attempts do not count. Check that the database \
                         runs, and that the connection string and its files are right; the worker reads them again"
                    );
                }
                return Ending::Snoozed(AFTER_NO_CONNECTION);
            }
        };
        let way = connection.cancel_way.clone();
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

    /// Resolves after the time limit of --timeout, and returns it. Never resolves if no limit is set.
    async fn timed_out(&self) -> Duration {
        match self.timeout {
            Some(after) => {
                sleep(after).await;
                after
            }
            None => std::future::pending().await,
        }
    }

    /// Maximum message size, larger than any row within the limit of a result.
    fn most(&self) -> usize {
        self.max_result.max(1 << 20) + (64 << 10)
    }

    /// Repeats cancel requests until the statement ends, for at most [`KILL_AFTER`]. `None` if the statement still runs.
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
                sleep(CANCEL_INTERVAL).await;
            }
        };
        let ended = async {
            select! {
                ended = &mut running => Some(ended),
                never = cancelling => never,
            }
        };
        let immediate = async {
            self.stop_tokens.immediate.cancelled().await;
            sleep(CANCEL_INTERVAL).await;
        };
        select! {
            ended = timeout(KILL_AFTER, ended) => ended.ok().flatten(),
            () = immediate => None,
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
            // Without a cancel request, the statement would run until the server detects the lost connection.
            let _ = database.cancel(way).await;
        }
        // After a cancel request the connection is not reused: a late request could cancel a statement of the next job.
        let is_reusable = why.is_none()
            && match &ran {
                Some(Ok(_)) => true,
                Some(Err(stop)) => stop.leaves_connection(),
                None => false,
            };
        if is_reusable && !matches!(timeout(PREPARE_WITHIN, session::clean(connection, database)).await, Ok(true)) {
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
                "the payload set client_encoding to {encoding}, so its result cannot be read; its changes are committed. \
                 Leave client_encoding at UTF8"
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
                let text = format!("the statements took longer than {after:?} (--timeout), and were cancelled");
                if options.retry { Ending::Failed(text) } else { Ending::FailedForGood(text) }
            }
        }
    }
}
