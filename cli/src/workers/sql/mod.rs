//! Runs jobs as SQL: the payload is one or more statements, and the returned rows are the result.
//!
//! - `options`: options of a job for its database and its result
//! - `login`, `wire`: login and simple queries on a socket
//! - `collected`: result of a job
//! - `database`: connections, and cancellation of statements
//! - `session`: one job on one connection
//! - this module: the choice of the database, and the outcome of an attempt

mod collected;
mod database;
mod login;
mod options;
mod session;
mod wire;

use std::{
    collections::{BTreeMap, HashMap},
    pin::pin,
    time::Duration,
};

use bytes::Bytes;
use howdah_client::{Client, Error, Outcome};
use howdah_core::{job::StoreNumber, logging::Throttle};
use parking_lot::Mutex;
use tokio::{select, time::sleep};
use tonic::Code;

pub use self::database::Database;
use self::{database::CancelWay, options::Options, wire::Stop};
use super::attempt::{Attempt, KILL_AFTER};

/// Interval between cancel requests for a statement, because the first request may arrive before the statement.
const CANCEL_INTERVAL: Duration = Duration::from_secs(1);
/// Snooze time of a job that got no connection.
const AFTER_NO_CONNECTION: Duration = Duration::from_secs(5);

/// Worker that runs jobs as SQL in its databases.
pub struct Sql {
    /// Database of jobs that name no database.
    database: Database,
    named: BTreeMap<String, Database>,
    max_result: usize,
    /// Time limit for all statements of a job together. The timeout of the job applies additionally.
    timeout: Option<Duration>,
    /// Names of the broker's stores by their numbers, which ids of jobs begin with.
    stores: Mutex<HashMap<StoreNumber, String>>,
    complaint: Mutex<Throttle>,
}

impl Sql {
    /// Creates a worker. Jobs run in `database`, unless they or their stores name another database.
    pub fn new(
        database: Database,
        named: BTreeMap<String, Database>,
        max_result: usize,
        timeout: Option<Duration>,
    ) -> Self {
        Self {
            database,
            named,
            max_result,
            timeout,
            stores: Mutex::default(),
            complaint: Mutex::new(Throttle::every(Duration::from_secs(60))),
        }
    }

    /// Runs one job, which this client has received, to its end. If the attempt is stopped, cancels its statement in the server.
    pub async fn run(&self, client: &Client, attempt: &Attempt) -> Outcome {
        match self.result(client, attempt).await {
            Ok(result) => Outcome::ack(result),
            Err(outcome) => outcome,
        }
    }

    /// Closes idle connections. Called after the last job.
    pub async fn close(&self) {
        for database in self.named.values().chain([&self.database]) {
            database.close().await;
        }
    }

    /// Returns the result of a job, or the outcome of an attempt without result.
    async fn result(&self, client: &Client, attempt: &Attempt) -> Result<Bytes, Outcome> {
        let job = &attempt.job;
        let options = Options::read(&job.headers).map_err(Outcome::fail)?;
        let sql = text(&job.payload).map_err(Outcome::fail)?;
        let mut interrupted = pin!(async {
            select! {
                biased;
                () = attempt.stopped() => Outcome::release(),
                outcome = self.timed_out(&options) => outcome,
            }
        });
        let begun = async {
            let database = self.database(client, &options, job.id).await?;
            let begun = session::begin(database, job).await;
            Ok::<_, Outcome>((database, begun.map_err(|problem| self.no_connection(&options, &problem))?))
        };
        let (database, mut connection) = select! {
            biased;
            outcome = &mut interrupted => return Err(outcome),
            begun = begun => begun?,
        };
        let way = connection.cancel_way.clone();
        let mut interruption = None;
        let ran = {
            let mut running = pin!(session::run(&mut connection, database, &options.format, sql, self.max_result));
            select! {
                ran = &mut running => Some(ran),
                outcome = interrupted => {
                    interruption = Some(outcome);
                    cancel(&way, attempt, running).await
                }
            }
        };
        // After a cancel request the connection is not reused: a late request could cancel a statement of the next job.
        if interruption.is_none() {
            if matches!(ran, Some(Err(Stop::TooLarge | Stop::Copy))) {
                // Without a cancel request, the statement would run until the server detects the lost connection.
                let _ = way.cancel().await;
            } else {
                session::end(connection, database).await;
            }
        }
        match (ran, interruption) {
            (Some(Ok(result)), _) => Ok(result),
            (Some(Err(Stop::Failed(problem))), Some(outcome)) if problem.is_cancelled() => Err(outcome),
            (Some(Err(stop)), _) => Err(self.failed(&options, sql, stop)),
            (None, outcome) => Err(outcome.unwrap_or(Outcome::Release)),
        }
    }

    /// Returns the database of a job: the one named by its header, the one named like its store, or the default.
    async fn database(&self, client: &Client, options: &Options, id: i64) -> Result<&Database, Outcome> {
        let Some(name) = &options.database else {
            let store = self.store(client, id).await.map_err(|error| self.no_store(&error))?;
            return Ok(store.and_then(|store| self.named.get(&store)).unwrap_or(&self.database));
        };
        self.named.get(name).ok_or_else(|| {
            let names: Vec<&str> = self.named.keys().map(String::as_str).collect();
            let known = if names.is_empty() {
                "this worker has no named databases; add one with --name NAME=DSN".to_owned()
            } else {
                format!("use one of {}", names.join(", "))
            };
            Outcome::fail(format!("header sql-database: unknown database {name:?}; {known}"))
        })
    }

    /// Returns the name of the store of a job; `None` if the broker does not list the store, or no database is named. Asks the
    /// broker once for each store. A worker that may not list the stores counts jobs of store 0 as jobs of a broker with one store.
    async fn store(&self, client: &Client, id: i64) -> Result<Option<String>, Error> {
        let Some(number) = StoreNumber::of_id(id).filter(|_| !self.named.is_empty()) else { return Ok(None) };
        if let Some(name) = self.stores.lock().get(&number) {
            return Ok(Some(name.clone()));
        }
        let stores = match client.list_stores("").await {
            Err(error) if error.code() == Code::PermissionDenied && number == StoreNumber::default() => {
                return Ok(None);
            }
            stores => stores?,
        };
        let mut names = self.stores.lock();
        for store in stores {
            if let Some(number) = u16::try_from(store.number).ok().and_then(StoreNumber::new) {
                names.insert(number, store.name);
            }
        }
        Ok(names.get(&number).cloned())
    }

    /// Snoozes a job whose store is unknown, because it must not run in another database.
    fn no_store(&self, error: &Error) -> Outcome {
        if let Some(times) = self.complaint.lock().count() {
            tracing::warn!(
                %error, times,
                "cannot list the stores of the broker, whose databases --name gives; jobs wait, and their attempts do not count. \
                 The worker's token needs read:*"
            );
        }
        Outcome::snooze(AFTER_NO_CONNECTION)
    }

    /// Snoozes a job that got no connection: no statement was run, so the attempt does not count.
    fn no_connection(&self, options: &Options, problem: &str) -> Outcome {
        let database = database_words(options);
        tracing::debug!(problem, "cannot connect to {database}");
        if let Some(times) = self.complaint.lock().count() {
            tracing::warn!(
                problem,
                times,
                "cannot connect to {database}; its jobs wait, and their attempts do not count. Check that the database runs, and \
                 that the connection string and its files are right; the worker reads them again"
            );
        }
        Outcome::snooze(AFTER_NO_CONNECTION)
    }

    /// Waits for the time limit of --timeout. Never resolves if no limit is set.
    async fn timed_out(&self, options: &Options) -> Outcome {
        let Some(after) = self.timeout else { return std::future::pending().await };
        sleep(after).await;
        let text = format!("the statements took longer than {after:?} (--timeout), and were cancelled");
        if options.retry { Outcome::retry(text) } else { Outcome::fail(text) }
    }

    /// Returns the outcome of a job without a result.
    fn failed(&self, options: &Options, sql: &str, stop: Stop) -> Outcome {
        let (text, is_final) = match stop {
            Stop::TooLarge => {
                let max = self.max_result;
                let text = "the limit of --max-output; the statement was cancelled";
                (format!("the result has more than {max} bytes, {text}"), true)
            }
            Stop::Copy | Stop::Open | Stop::Encoding(_) => (stop.describe(), true),
            Stop::Failed(problem) => {
                (problem.describe(sql), problem.is_final() || !options.retry && !problem.is_passing())
            }
            // transaction_timeout has passed: the server has rolled back the transaction and ended the session.
            Stop::Ended(problem) if problem.code == "25P04" => {
                let text = "the transaction took longer than the role's transaction_timeout, and was rolled back";
                (format!("{text}: {}", problem.describe("")), !options.retry)
            }
            stop @ (Stop::Ended(_) | Stop::Lost(_)) => {
                let (database, problem) = (database_words(options), stop.describe());
                (format!("the connection to {database} was lost, and statements may be committed: {problem}"), false)
            }
        };
        if is_final { Outcome::fail(text) } else { Outcome::retry(text) }
    }
}

/// Returns the payload as SQL.
fn text(payload: &[u8]) -> Result<&str, String> {
    let sql = std::str::from_utf8(payload)
        .map_err(|error| format!("the payload is not SQL: byte {} is not UTF-8", error.valid_up_to() + 1))?;
    match sql.find('\0') {
        Some(index) => Err(format!("the payload is not SQL: byte {} is zero", index + 1)),
        None => Ok(sql),
    }
}

fn database_words(options: &Options) -> String {
    options.database.as_ref().map_or_else(|| "the database".to_owned(), |name| format!("the database {name:?}"))
}

/// Repeats cancel requests until the statement ends, for at most [`KILL_AFTER`], or for a second if the worker stops immediately.
/// Returns `None` if the statement still runs.
async fn cancel<T>(way: &CancelWay, attempt: &Attempt, running: impl Future<Output = T>) -> Option<T> {
    let cancelling = async {
        loop {
            if let Err(error) = way.cancel().await {
                tracing::warn!(%error, "cannot cancel a statement; trying again");
            }
            sleep(CANCEL_INTERVAL).await;
        }
    };
    let immediate = async {
        attempt.killed().await;
        sleep(CANCEL_INTERVAL).await;
    };
    select! {
        ended = running => Some(ended),
        never = cancelling => never,
        () = sleep(KILL_AFTER) => None,
        () = immediate => None,
    }
}
