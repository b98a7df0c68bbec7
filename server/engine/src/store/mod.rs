//! Every SQL statement of the broker: one function per statement, with its text in `server/engine/sql`. No other module
//! contains SQL. This module makes no decisions.

#[cfg(feature = "archive")]
mod archive; // days of history to archive
mod audit; // audit rows: who changed which records
mod brokers; // rows of brokers: lease, identity, readiness; sessions of workers at all brokers
mod bulk; // rows of bulk operations
mod bulk_change; // transactions of bulk operations
mod claim; // claims jobs: ready → leased
mod cluster_settings; // settings that all brokers share; number of the store; closing of the store
mod connection; // prepared statements, statement timeouts
mod coordination; // effects of a job's end on other jobs; checks of limit keys
mod dependencies; // results of the jobs that a job depended on
mod enqueue; // stores plain new jobs as ready or leased
mod enqueue_keyed; // new jobs with keys, start times, stages, dependencies, limits → ready, scheduled, waiting
mod error; // errors, classified by how the caller may react
mod explain; // why a job does not run
mod examine; // queries of `howdah doctor`
mod failed; // operators: retry, discard, error groups
#[cfg(feature = "archive")]
mod forget; // deletion of finished jobs before their retention ends
#[cfg(feature = "archive")]
mod history; // finished jobs for queries that also read the archive
mod housekeeping; // maintenance tasks: find work, promote due jobs, rescue leases, day partitions, clock
mod job_table; // SQL fragments for statements that differ only in the table of jobs
mod jobs; // operators: get, list, most attempts, cancel
mod leases; // adopt and extend leases, read facts about them
mod limits; // limits of task types and limit keys
mod locks; // locks of other transactions, side lanes
mod migrate; // creates and upgrades the schema
mod moving; // moves task types to another store
mod option_sql; // generates schema text from the job options
mod circuit_breaker; // circuit breaker for the connection to Postgres
mod connect_backoff; // backoff between connection attempts
mod pick; // ids of the jobs of a selection
mod pool; // bb8 pool with its own manager, LISTEN connection, connection limits
mod sqlstate; // meaning of each SQLSTATE
mod release; // comparison of broker versions
#[cfg(feature = "archive")]
mod restore; // enqueues archived jobs again
mod replica; // read replica for read-only queries
mod rerank; // new ranks after a change of priorities or priority steps
mod rows; // conversion of rows to values
mod rights; // rights of roles on functions and tables
mod schema; // sources of the schema
mod schedules; // rows of schedules, and the transaction that fires them
mod search; // search for jobs by key, tag, or content
mod servers; // several servers, of which one is the primary
mod session; // direct sessions, and sessions through a pooler
mod settle; // settles jobs: leased → history, scheduled, ready, dead
mod source; // connection strings, whose files are read again after changes
mod statement; // enum of all statements
mod statistics; // aggregates and reads statistics
mod storage; // dead rows, sessions that hold back VACUUM, figures on maintenance tasks; archive target
mod task_types; // names and settings of task types
mod timeline; // WAL timelines, to detect former primaries
mod tls; // sslmode with rustls
mod tokens; // tokens of callers, revocations, logged-out browser sessions
mod transaction; // transactions of several statements

use std::{sync::Arc, time::Duration};

use howdah_core::config::{Config, WakeMode};

#[cfg(feature = "archive")]
pub use archive::{ArchiveLoad, ArchivePage, ArchivedDay, ArchivedFile, FinishedJob, TakenDay, TypeFile};
pub use audit::{Actor, AuditEntry, AuditQuery};
pub use brokers::{BrokerView, Holder};
pub use bulk::{NewBulk, PickBulk};
pub use bulk_change::BulkChanged;
pub use claim::{ClaimRequest, Claimed, Want};
pub use cluster_settings::StoreFacts;
pub use connect_backoff::{ConnectBackoff, reload_files};
pub use connection::Connection;
pub use coordination::Wakeups;
pub use dependencies::Dependent;
pub use dependencies::{SENT_RESULT, SENT_RESULTS};
pub use enqueue::{PlainJob, RequestKeys, StoredDirect, StoredPlain};
pub use enqueue_keyed::{
    FirstRequests, KeyedJob, KeyedOutcome, KeyedTransaction, RequestColumns, StoredCoordinated, StoredKeyed,
};
pub use error::{Cause, StoreError};
pub use examine::{
    Facts, LockHolder, MissingObject, OwnedFacts, SchemaFacts, TableFacts, UnidentifiedTable, WrongRight,
};
pub use explain::{JobFacts, LimitKeyFacts, ReadyFacts, Undone};
pub use failed::{FailedJob, FailuresArgs, Retried, RetryArgs, RetryStart};
#[cfg(feature = "archive")]
pub use forget::{ForgetDay, ForgetInHistory, RewriteDay};
#[cfg(feature = "archive")]
pub use history::{HistoryChoice, HistoryDay, HistoryPage};
pub use housekeeping::{DEFAULTS, DatabaseInstance, NextDue, PrunableDay, Sweep};
#[cfg(feature = "archive")]
pub(crate) use jobs::failures_of;
pub use jobs::{Attempted, AttemptsStep, CancelledJob, EndedJobs, ListArgs, Listed};
pub use leases::{Adopted, AdoptedAttempt, Adoption, EndedLease, LeaseEnding, LeaseFacts};
pub use limits::{BrakeChange, LimitKeyView, Quota};
pub use locks::retry_while_locked;
pub use locks::{Lane, LockWait};
pub use migrate::MigrationReport;
pub use moving::{LeavingJob, LeavingState, LeftToMove};
pub use pick::{Pick, Picked};
pub use pool::open as open_connection;
pub use pool::{ConnectionLimits, Limit, Listener, Purpose};
pub use replica::ReplicaState;
pub use rerank::{Reprioritized, Step};
#[cfg(feature = "archive")]
pub use restore::{RestoreOutcome, RestoredJob};
pub use schedules::{ScheduleCount, SchedulePage, ScheduleTransaction};
pub use search::{FoundJobs, Scanned, SearchStep, SearchStepResult};
pub use settle::{Acked, Action, Nack, Nacked, ShortHistories};
pub use source::{Loaded, Source};
pub use statement::Statement;
pub use statistics::{StatsRange, StatsRow};
pub use storage::{HolderKind, MaintenanceState, SnapshotHolder, StorageHealth, TableHealth};
pub use task_types::SettingsRow;
pub use tokens::{ActiveToken, MOST_TOKENS, NewToken, RevokedJwt, TokenView};

use circuit_breaker::CircuitBreaker;
use pool::Manager;
use replica::{LastChange, Replica};
use servers::Servers;
use timeline::Latest;

/// A store: one database. The hot pool runs statements on jobs, the general pool runs statements of operators. Side lanes
/// and the read replica have their own pools.
#[derive(Clone)]
pub struct Store {
    hot: bb8::Pool<Manager>,
    /// The hot pool. Differs from `hot` only in a copy made by `side_lane`, where `hot` is the pool of the side lane.
    main: bb8::Pool<Manager>,
    general: bb8::Pool<Manager>,
    side_lane: Arc<locks::SideLanePools>,
    replica: Option<Arc<Replica>>,
    schema: String,
    listen_servers: Arc<Servers>,
    timeout: Duration,
    breaker: Arc<CircuitBreaker>,
    /// Whether `migrate` creates a new schema with a test clock.
    test_clock: bool,
}

/// A borrowed connection.
type Loan<'a> = bb8::PooledConnection<'a, Manager>;

/// Connection counts of a pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolState {
    /// Open connections.
    pub open: u32,
    /// Open connections that are idle.
    pub idle: u32,
}

impl Store {
    /// Creates the store from the configuration. Does not connect yet.
    pub fn new(config: &Config) -> Result<Self, String> {
        Self::with_sessions(config, false)
    }

    /// Creates a store for a command, which runs each statement only a few times. Its sessions keep no prepared
    /// statements, because the database URL may lead to a transaction pooler, which gives them to other clients.
    pub fn for_command(config: &Config) -> Result<Self, String> {
        Self::with_sessions(config, true)
    }

    fn with_sessions(config: &Config, keep_nothing: bool) -> Result<Self, String> {
        let schema = config.schema.clone();
        let timeout = config.database_timeout;
        // Each of these settings means that the database URL leads to a transaction pooler, which shares sessions
        // between clients.
        let pooled = config.wake == WakeMode::Poll || config.listen_database_url.is_some();
        let last_change = Arc::<LastChange>::default();
        let replica = Replica::new(config, &last_change)?;
        let (breaker, latest) = (Arc::<CircuitBreaker>::default(), Arc::new(Latest::new()));
        let source = |url: &str| Source::new(url, config.url_file(url));
        let servers = Servers::new(source(&config.database_url), &latest, pooled, breaker.clone())?;
        let listen_servers = match &config.listen_database_url {
            Some(url) => Servers::new(source(url), &latest, false, Arc::default())?,
            None => servers.clone(),
        };
        let pool = |purpose: Purpose, size| -> Result<bb8::Pool<Manager>, String> {
            // Side lanes are rarely used, so their idle connections are closed sooner.
            let idle = if matches!(purpose, Purpose::SideLane(..)) { 30 } else { 300 };
            let (servers, last_change) = (servers.clone(), last_change.clone());
            let manager = Manager::new(servers, schema.clone(), purpose, timeout, pooled || keep_nothing, last_change);
            Ok(bb8::Pool::builder()
                .max_size(size)
                .min_idle(Some(0))
                .connection_timeout(timeout)
                .idle_timeout(Some(Duration::from_secs(idle)))
                // Reuse the connection used last: its data is still in the caches of its processor and of its session.
                .queue_strategy(bb8::QueueStrategy::Lifo)
                .max_lifetime(Some(Duration::from_secs(3600)))
                // A ping at each checkout would add a round trip to each batch. `loan` skips broken connections without
                // it.
                .test_on_check_out(false)
                .build_unchecked(manager))
        };
        let hot = pool(Purpose::Hot, config.pool_size.max(2))?;
        let general = pool(Purpose::General, 4)?;
        let side_lane = Arc::new(locks::SideLanePools::new(pool)?);
        let test_clock = config.test_clock;
        Ok(Self {
            main: hot.clone(),
            hot,
            general,
            side_lane,
            replica,
            schema,
            listen_servers,
            timeout,
            breaker,
            test_clock,
        })
    }

    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// Checks that Postgres answers.
    pub async fn ping(&self) -> Result<(), StoreError> {
        self.general().await?.batch("").await
    }

    /// Records that the task `what` failed and will be retried, and logs it.
    pub(crate) fn log_failure(&self, what: &str, error: &StoreError) {
        self.breaker.log_failure(what, error);
    }

    /// Returns the error for calls while the circuit breaker is open.
    pub(crate) fn unreachable_error(&self) -> Option<StoreError> {
        self.breaker.open_error()
    }

    /// Returns the error of the last connection attempt, if Postgres has not answered since then.
    pub(crate) fn connection_error(&self) -> Option<StoreError> {
        self.breaker.is_down().then(|| self.breaker.error())
    }

    /// Whether the circuit breaker is open: Postgres has not answered for a while.
    pub fn is_unreachable(&self) -> bool {
        self.breaker.is_open()
    }

    /// Creates the schema or upgrades it to this version.
    pub async fn migrate(&self) -> Result<MigrationReport, StoreError> {
        migrate::run(self).await
    }

    /// Creates the roles `howdah_producer`, `howdah_worker` and `howdah_reader` if the session may do so, and grants
    /// them their rights in this schema. Returns the roles that have these rights.
    pub async fn create_roles(&self) -> Result<Vec<String>, StoreError> {
        // The lock keeps another broker from replacing the functions while rights on them are granted.
        let mut connection = migrate::lock(self).await?;
        match connection.list(Statement::CreateRoles, &[]).await {
            Ok(roles) => {
                connection.batch("COMMIT").await?;
                Ok(roles)
            }
            Err(error) => {
                connection.roll_back().await;
                Err(error)
            }
        }
    }

    /// Restores state that logical replication does not copy from the replicated rows: values of sequences, and SQL
    /// functions that return constants. Returns a description of each change.
    pub async fn sync_state_with_rows(&self) -> Result<Vec<String>, StoreError> {
        self.general().await?.list(Statement::SyncStateWithRows, &[]).await
    }

    /// Returns the connection counts of the hot pool.
    pub fn pool_state(&self) -> PoolState {
        let state = self.hot.state();
        PoolState { open: state.connections, idle: state.idle_connections }
    }

    async fn hot(&self) -> Result<Loan<'_>, StoreError> {
        self.loan_or_main(&self.hot).await
    }

    async fn general(&self) -> Result<Loan<'_>, StoreError> {
        self.loan_or_main(&self.general).await
    }

    /// Returns a connection of `pool`. If that pool has no open connection, and the server accepts no more connections,
    /// returns a connection of the hot pool.
    async fn loan_or_main<'a>(&'a self, pool: &'a bb8::Pool<Manager>) -> Result<Loan<'a>, StoreError> {
        tokio::select! {
            biased;
            loan = self.loan(pool, &self.breaker) => loan,
            () = self.breaker.until_out_of_connections(), if pool.state().connections == 0 => self.loan(&self.main, &self.breaker).await,
        }
    }

    async fn loan<'a>(&self, pool: &'a bb8::Pool<Manager>, breaker: &CircuitBreaker) -> Result<Loan<'a>, StoreError> {
        loop {
            let loan = self.checkout(pool, breaker).await?;
            // Drop a connection that died while idle, before a statement uses it.
            if !loan.is_broken() {
                return Ok(loan);
            }
        }
    }

    /// Waits for a connection of the pool. Fails at once while the circuit breaker is open. If the pool has no open
    /// connection, also fails after connection attempts have failed for 1 s.
    async fn checkout<'a>(
        &self,
        pool: &'a bb8::Pool<Manager>,
        breaker: &CircuitBreaker,
    ) -> Result<Loan<'a>, StoreError> {
        if let Some(error) = breaker.open_error() {
            return Err(error);
        }
        let got = tokio::select! {
            biased;
            got = pool.get() => got,
            () = breaker.until_open() => return Err(breaker.error()),
            () = breaker.until_down(), if pool.state().connections == 0 => return Err(breaker.error()),
        };
        got.map_err(|error| match error {
            bb8::RunError::User(error) => error,
            bb8::RunError::TimedOut if breaker.is_down() => breaker.error(),
            bb8::RunError::TimedOut => StoreError::NotSent(format!("no connection within {:?}", self.timeout).into()),
        })
    }
}
