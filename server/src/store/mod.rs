//! Every SQL statement, and nothing else: a function for each, with its text in `server/sql`. No other module knows
//! SQL, and nothing is decided here.

#[cfg(feature = "archive")]
mod archive; // days of history that are archived
mod attempts; // operators: the jobs with the most attempts
mod audit; // what was changed, by whom
mod brokers; // a broker's own row
mod bulk; // changes of many jobs, worked off in the background
mod bulk_change; // their transactions
mod claim; // ready → leased
mod cluster_settings; // one row
mod connection; // statements prepared once, deadlines
mod coordination; // what follows from the end of a job, limits
mod enqueue; // → ready, leased
mod enqueue_coordinated; // → ready, scheduled, waiting: stages, dependencies, limits, key policies
mod enqueue_keyed; // → ready, scheduled, with keys
mod enqueue_one; // one job that comes alone
mod error; // errors, sorted by what the caller may do
mod explain; // why a job does not run
mod examine; // what a doctor asks
mod failed; // operators: retry, discard, error groups
#[cfg(feature = "archive")]
mod forget; // finished jobs that are forgotten before their time
#[cfg(feature = "archive")]
mod history; // finished jobs, for those who read the archive too
mod housekeeping; // sweep, promote, rescue, partitions
mod jobs; // operators: get, list, cancel
mod leases; // adopt, extend, facts
mod limits; // limits of types and keys
mod listen; // the LISTEN connection
mod locks; // what other transactions hold, and the connections on which work waits for them
mod migrate; // creates the schema, brings it up to date
mod moving; // task types that move to another store
mod option_sql; // the options of a job in the schema's text
mod outage; // what is logged while Postgres is away
mod pool; // bb8 with our own manager
mod release; // versions of brokers, compared
#[cfg(feature = "archive")]
mod restore; // archived jobs, enqueued again
mod replica; // a server for those who only read
mod rerank; // new priorities and steps
mod schema; // the sources of the schema
mod schedules; // rows of schedules, and the transaction that fires them
mod search; // jobs by key, header, payload
mod servers; // several, of which one is the primary
mod session; // a session of our own, or of a pooler
mod settle; // leased → history, scheduled, ready, dead
mod statement; // the statements by name
mod statistics; // summed up, and read
mod storage; // dead rows, and what holds back VACUUM
mod store_number; // what tells stores of one fleet apart
mod task_types; // names and settings
mod timeline; // of a primary, and of those before it
mod tls; // sslmode with rustls
mod tokens; // tokens of callers
mod transaction; // several statements together
mod upkeep; // what happens by the clock, sizes of tables
mod workers; // the sessions of all brokers

use std::{sync::Arc, time::Duration};

pub use crate::error::describe as describe_error;
#[cfg(feature = "archive")]
pub use archive::{ArchiveLoad, ArchivePage, ArchivedDay, ArchivedFile, FinishedJob, TakenDay};
pub use attempts::{Attempted, AttemptsStep};
pub use audit::{Actor, AuditEntry, AuditQuery};
pub use brokers::BrokerView;
pub use bulk::{NewBulk, PickBulk};
pub use bulk_change::BulkChanged;
pub use claim::{ClaimRequest, Claimed, Want};
pub use connection::Connection;
pub use coordination::Wakeups;
pub use enqueue::{PlainJob, RequestKeys, StoredDirect, StoredPlain};
pub use enqueue_coordinated::StoredCoordinated;
pub use enqueue_keyed::{KeyedJob, KeyedOutcome, KeyedTransaction, RequestColumns, StoredKeyed};
pub use error::{Cause, StoreError};
pub use examine::{Facts, TableFacts};
pub use explain::{JobFacts, LimitKeyFacts, ReadyFacts, Undone};
pub use failed::{PickArgs, Picked, Retried, RetryArgs, RetryStart};
#[cfg(feature = "archive")]
pub use forget::{ForgetDay, ForgetInHistory, RewriteDay};
#[cfg(feature = "archive")]
pub use history::{HistoryChoice, HistoryDay, HistoryPage};
pub use housekeeping::{Moved, NextDue, PrunableDay, Sweep};
#[cfg(feature = "archive")]
pub(crate) use jobs::failures_of;
pub use jobs::{CancelledJob, EndedJobs, ListArgs, Listed};
pub use leases::{Adopted, AdoptedAttempt, Adoption, EndedLease, LeaseEnding, LeaseFacts};
pub use limits::{LimitKeyView, Quota};
pub use listen::Listener;
pub(crate) use locks::unless_locked;
pub use locks::{Lane, Patience};
pub use migrate::MigrationReport;
pub(crate) use moving::{LeavingJob, LeavingState, LeftToMove};
pub use pool::Purpose;
pub use pool::open as open_connection;
pub use replica::ReplicaState;
pub use rerank::{Reprioritized, Step, WalkPosition};
#[cfg(feature = "archive")]
pub use restore::{RestoreOutcome, RestoredJob};
pub use schedules::{ScheduleCount, SchedulePage, ScheduleTransaction};
pub use search::{FoundJobs, LookedAt, SearchStep, Stepped};
pub use settle::{Acked, Action, Nack, Nacked, ShortHistories};
pub use statement::Statement;
pub use statistics::{StatsRange, StatsRow};
pub use storage::{HolderKind, SnapshotHolder, StorageHealth, TableHealth};
pub use store_number::StoreFacts;
pub use task_types::SettingsRow;
pub use tls::connector as tls_connector;
pub use tokens::{ActiveToken, MOST_TOKENS, NewToken, RevokedJwt, TokenView};
pub use upkeep::Upkeep;

use crate::config::{Config, Dsn, WakeMode};
use outage::Outage;
use pool::Manager;
use replica::{LastChange, Replica};
use servers::Servers;
use timeline::Latest;

/// The database, behind two pools: one for the statements of jobs, one for operators.
#[derive(Clone)]
pub struct Store {
    hot: bb8::Pool<Manager>,
    general: bb8::Pool<Manager>,
    aside: Arc<locks::AsidePools>,
    replica: Option<Arc<Replica>>,
    schema: String,
    listen_servers: Arc<Servers>,
    timeout: Duration,
    outage: Arc<Outage>,
}

/// A borrowed connection.
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
    /// The store for a configuration. It does not connect yet.
    pub fn new(config: &Config) -> Result<Self, String> {
        let dsn = Dsn::parse(&config.database_url)?;
        let schema = config.schema.clone();
        let timeout = config.database_timeout;
        // Either is set because the URL leads to a pooler, where no session is ours.
        let pooled = config.wake == WakeMode::Poll || config.listen_database_url.is_some();
        let last_change = Arc::<LastChange>::default();
        let replica = Replica::of(config, &last_change)?;
        let (outage, latest) = (Arc::<Outage>::default(), Arc::new(Latest::new()));
        let servers = Servers::new(&dsn, &latest, pooled)?;
        let listen_servers = match &config.listen_database_url {
            Some(url) => Servers::new(&Dsn::parse(url)?, &latest, false)?,
            None => servers.clone(),
        };
        let pool = |purpose: Purpose, size| -> Result<bb8::Pool<Manager>, String> {
            let outage = outage.clone();
            // What waits for locks is rare: its connections need not stay.
            let idle = if matches!(purpose, Purpose::Aside(..)) { 30 } else { 300 };
            let (servers, last_change) = (servers.clone(), last_change.clone());
            let manager = Manager::new(servers, schema.clone(), purpose, timeout, pooled, outage, last_change);
            Ok(bb8::Pool::builder()
                .max_size(size)
                .min_idle(Some(0))
                .connection_timeout(timeout)
                .idle_timeout(Some(Duration::from_secs(idle)))
                // The last one used: what it needs is still in the caches of its processor and of its session.
                .queue_strategy(bb8::QueueStrategy::Lifo)
                .max_lifetime(Some(Duration::from_secs(3600)))
                // A ping at each checkout would be a round trip for each batch. A broken connection is noticed anyway.
                .test_on_check_out(false)
                .build_unchecked(manager))
        };
        let hot = pool(Purpose::Hot, config.pool_size.max(2))?;
        let general = pool(Purpose::General, 4)?;
        let aside = Arc::new(locks::AsidePools::new(pool)?);
        Ok(Self { hot, general, aside, replica, schema, listen_servers, timeout, outage })
    }

    /// The schema's name.
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// Checks that Postgres answers.
    pub async fn ping(&self) -> Result<(), StoreError> {
        self.general().await?.batch("").await
    }

    /// A task failed, and tries again: what the log says of it.
    pub(crate) fn failed(&self, what: &str, error: &StoreError) {
        self.outage.failed(what, error);
    }

    /// Postgres answers.
    pub(crate) fn answers(&self) {
        self.outage.over();
    }

    /// Whether it has not answered for a while.
    pub(crate) fn is_away(&self) -> bool {
        self.outage.is_long()
    }

    /// Brings the schema up to date.
    pub async fn migrate(&self) -> Result<MigrationReport, StoreError> {
        migrate::run(self).await
    }

    /// Creates the roles `howdah_producer`, `howdah_worker` and `howdah_reader` if that is allowed, and grants them
    /// their rights in this schema. Returns the roles that have them.
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

    /// How full the pool of hot statements is.
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
            // A connection that died while idle is dropped here, before a statement meets it.
            if !loan.is_broken() {
                return Ok(loan);
            }
        }
    }

    async fn checkout<'a>(&self, pool: &'a bb8::Pool<Manager>) -> Result<Loan<'a>, StoreError> {
        pool.get().await.map_err(|error| match error {
            bb8::RunError::User(error) => error,
            bb8::RunError::TimedOut => {
                let cause = Cause::from(format!("no connection within {:?}", self.timeout));
                StoreError::NotSent(match self.outage.last_error.lock().take() {
                    Some(why) => cause.with_details(&why),
                    None => cause,
                })
            }
        })
    }
}
