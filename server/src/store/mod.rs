//! Every SQL statement, and nothing else: a function for each, its text in `server/sql`. Nobody
//! outside knows SQL, and nothing here decides anything.

mod brokers; // a broker's own row
mod claim; // ready → leased
mod coordination; // what follows from the end of a job, limits
mod connection; // statements prepared once, deadlines
mod enqueue; // → ready, leased
mod enqueue_keyed; // → ready, scheduled, with keys
mod enqueue_coordinated; // → ready, scheduled, waiting: stages, dependencies, limits, key policies
mod error; // what failed, sorted by what the caller may do
mod failed; // for people: retry, discard, error groups
mod housekeeping; // sweep, promote, rescue, partitions
mod jobs; // for people: get, list, cancel
mod leases; // adopt, extend, facts
mod limits; // how many may run
mod listen; // the LISTEN connection
mod migrate; // makes the schema, brings it up to date
mod pool; // bb8 with our own manager
mod release; // versions of brokers, compared
mod rerank; // new priorities and steps
mod schema; // the sources of the schema
mod schedules; // their rows, and the transaction that fires
mod session; // what is kept from one statement to the next
mod settle; // leased → history, scheduled, ready, dead
mod statement; // the texts by name
mod storage; // dead rows, and what holds back vacuum
mod task_types; // names and settings
mod tls; // sslmode with rustls
mod transaction; // several statements together

use std::time::Duration;

pub use crate::error::describe as describe_error;
pub use claim::{ClaimRequest, Claimed, Want};
pub use connection::Connection;
pub use coordination::Wakeups;
pub use enqueue::{PlainJob, RequestKeys, StoredDirect, StoredPlain};
pub use enqueue_coordinated::StoredCoordinated;
pub use enqueue_keyed::{KeyedJob, KeyedOutcome, KeyedTransaction, RequestColumns, StoredKeyed};
pub use error::StoreError;
pub use failed::{PickArgs, Picked, Retried, RetryArgs, RetryStart};
pub use housekeeping::{Moved, PrunableDay, Sweep};
pub use jobs::{CancelledJob, EndedJobs, ListArgs, Listed};
pub use leases::{Adopted, Adoption, EndedLease, LeaseEnding, LeaseFacts};
pub use limits::{LimitKeyView, Quota};
pub use listen::Listener;
pub use migrate::MigrationReport;
pub use pool::Purpose;
pub use pool::open as open_connection;
pub use rerank::{Reprioritized, Step, WalkPosition};
pub use schedules::{SchedulePage, ScheduleTransaction};
pub use settle::{Acked, Action, Nack, Nacked, ShortHistories};
pub use statement::Statement;
pub use storage::{HolderKind, SnapshotHolder, StorageHealth, TableHealth};
pub use task_types::SettingsRow;
pub use tls::connector as tls_connector;

use crate::config::{Config, Dsn, WakeMode};
use pool::{LastError, Manager};

/// The database, behind two pools: one for the statements of a job's way, one for people.
#[derive(Clone)]
pub struct Store {
    hot: bb8::Pool<Manager>,
    general: bb8::Pool<Manager>,
    schema: String,
    listen_dsn: Dsn,
    timeout: Duration,
    last_error: LastError,
}

/// A connection on loan.
type Loan<'a> = bb8::PooledConnection<'a, Manager>;

/// How full a pool is.
#[derive(Clone, Copy, Debug)]
pub struct PoolState {
    /// Open connections.
    pub open: u32,
    /// Of these, waiting for work.
    pub idle: u32,
}

impl Store {
    /// The store of a configuration. Nothing is connected yet.
    pub fn new(config: &Config) -> Result<Self, String> {
        let dsn = Dsn::parse(&config.database_url)?;
        let listen_dsn = match &config.listen_database_url {
            Some(url) => Dsn::parse(url)?,
            None => dsn.clone(),
        };
        let schema = config.schema.clone();
        let timeout = config.database_timeout;
        // Either is set because the URL leads to a pooler, where no session is ours.
        let pooled = config.wake == WakeMode::Poll || config.listen_database_url.is_some();
        let last_error = LastError::default();
        let pool = |purpose, size| -> Result<bb8::Pool<Manager>, String> {
            let last_error = last_error.clone();
            let manager = Manager::new(dsn.clone(), schema.clone(), purpose, timeout, pooled, last_error)?;
            Ok(bb8::Pool::builder()
                .max_size(size)
                .min_idle(Some(0))
                .connection_timeout(timeout)
                .idle_timeout(Some(Duration::from_secs(300)))
                .max_lifetime(Some(Duration::from_secs(3600)))
                // A ping at each checkout would be a round trip for each batch; a connection that
                // broke says so itself.
                .test_on_check_out(false)
                .build_unchecked(manager))
        };
        let hot = pool(Purpose::Hot, config.pool_size.max(2))?;
        let general = pool(Purpose::General, 4)?;
        Ok(Self { hot, general, schema, listen_dsn, timeout, last_error })
    }

    /// The schema's name.
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// Whether Postgres answers.
    pub async fn ping(&self) -> Result<(), StoreError> {
        self.general().await?.batch("").await
    }

    /// Brings the schema up to date.
    pub async fn migrate(&self) -> Result<MigrationReport, StoreError> {
        migrate::run(self).await
    }

    /// Makes the roles `howdah_producer`, `howdah_worker` and `howdah_reader`, where that is allowed, and gives them
    /// their rights in this schema; those that have them now.
    pub async fn create_roles(&self) -> Result<Vec<String>, StoreError> {
        // Not while another broker replaces the functions that rights are given for.
        let mut connection = migrate::lock(self).await?;
        match connection.query(Statement::CreateRoles, &[]).await {
            Ok(rows) => {
                connection.batch("COMMIT").await?;
                Ok(rows.iter().map(|row| row.get(0)).collect())
            }
            Err(error) => {
                connection.roll_back().await;
                Err(error)
            }
        }
    }

    /// How full the pool of the hot statements is.
    pub fn pool_state(&self) -> PoolState {
        let state = self.hot.state();
        PoolState { open: state.connections, idle: state.idle_connections }
    }

    async fn hot(&self) -> Result<Loan<'_>, StoreError> {
        self.loan(&self.hot).await
    }

    async fn general(&self) -> Result<Loan<'_>, StoreError> {
        self.loan(&self.general).await
    }

    async fn loan<'a>(&self, pool: &'a bb8::Pool<Manager>) -> Result<Loan<'a>, StoreError> {
        loop {
            let loan = self.checkout(pool).await?;
            // One that died while it was idle is dropped here, not found out by a statement.
            if !loan.is_broken() {
                return Ok(loan);
            }
        }
    }

    async fn checkout<'a>(&self, pool: &'a bb8::Pool<Manager>) -> Result<Loan<'a>, StoreError> {
        pool.get().await.map_err(|error| match error {
            bb8::RunError::User(error) => error,
            bb8::RunError::TimedOut => {
                let why = self.last_error.lock().take().map_or_else(String::new, |why| format!("; {why}"));
                StoreError::NotSent(format!("no connection within {:?}{why}", self.timeout))
            }
        })
    }
}
