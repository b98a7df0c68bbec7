//! Handles locks of other transactions that block statements of the broker. Brokers hold locks for milliseconds, but an
//! application may keep a transaction open for hours. So statements on jobs wait at most 50 ms for a lock. Lock-blocked
//! requests are retried in a side lane, on separate connections, where they delay no other work.

use std::{
    sync::{
        LazyLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use super::{Purpose, Statement, Store, StoreError, pool::Manager};

/// Lock timeout of statements on jobs. It is longer than brokers hold locks, and short enough that two such waits do
/// not delay other work noticeably.
pub(super) const HOT: Duration = Duration::from_millis(50);

/// Lock timeout of operators' statements. A statement that waits for a lock keeps a connection of the small general
/// pool, so the timeout bounds how long other calls wait for it.
pub(super) const GENERAL: Duration = Duration::from_secs(2);

/// Time for which a starting broker retries a statement that a lock blocks. Another broker may be creating or dropping
/// partitions. A NOTIFY may also wait: Postgres commits transactions with notifications one at a time across all
/// databases, and one of them may wait for the disk.
const START: Duration = Duration::from_secs(10);

/// Retries a statement for up to 10 s while another transaction's lock blocks it. Each attempt waits for its lock
/// timeout. After 10 s, returns the error, prefixed with `what`, the name of the locked object.
pub async fn retry_while_locked<T, F>(what: &str, run: impl Fn() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let until = Instant::now() + START;
    loop {
        match run().await {
            Err(StoreError::Locked(_)) if Instant::now() < until => {}
            Err(StoreError::Locked(cause)) => return Err(StoreError::Locked(cause.with_subject(what))),
            other => return other,
        }
    }
}

/// A side lane: separate connections for one kind of lock-blocked request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// The side lane for requests to enqueue jobs.
    Enqueue,
    /// The side lane for outcomes of leases.
    Settle,
    /// The side lane for calls of operators, and for the creation of task types.
    Operate,
    /// The side lane for renewals of this broker's row (heartbeats).
    Renew,
}

/// Lock timeout of statements in a side lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockWait {
    /// A lock timeout of 5 ms, which only tests whether the lock is still held.
    Short,
    /// A lock timeout of 250 ms, or of 1 s in lane `Operate`. Meanwhile, other requests of the lane wait for the same
    /// connection.
    Long,
}

/// Random number in `application_name` of the side lane connections. It restricts the search for lock holders to
/// statements of this process.
static PROCESS: LazyLock<u32> = LazyLock::new(rand::random);

impl Lane {
    const ALL: [Self; 4] = [Self::Enqueue, Self::Settle, Self::Operate, Self::Renew];

    /// Returns the lock timeout.
    pub(super) const fn longest(self, lock_wait: LockWait) -> Duration {
        Duration::from_millis(match (self, lock_wait) {
            (_, LockWait::Short) => 5,
            (Self::Operate, LockWait::Long) => 1_000,
            (_, LockWait::Long) => 250,
        })
    }

    /// Returns the application name of the lane's connections, by which `lock_holders.sql` finds them.
    pub(super) fn application_name(self) -> String {
        let name = match self {
            Self::Enqueue => "enqueue",
            Self::Settle => "settle",
            Self::Operate => "operate",
            Self::Renew => "renew",
        };
        format!("howdah {name}, locked {:08x}", *PROCESS)
    }

    /// Maximum connections of a pool. Only lane `Operate` runs requests in parallel.
    const fn connections(self) -> u32 {
        match self {
            Self::Operate => 2,
            Self::Enqueue | Self::Settle | Self::Renew => 1,
        }
    }
}

/// Maximum connections of all lanes to one store: each lane has two pools, one for each `LockWait`.
pub(super) const CONNECTIONS: u32 = 2 * (1 + 1 + 2 + 1);

/// Connection pools of all lanes. No connection is open until a request is blocked by a lock.
pub(super) struct SideLanePools(Vec<[bb8::Pool<Manager>; 2]>);

impl SideLanePools {
    pub(super) fn new(pool: impl Fn(Purpose, u32) -> Result<bb8::Pool<Manager>, String>) -> Result<Self, String> {
        let of = |lane: Lane| -> Result<_, String> {
            let pool = |lock_wait| pool(Purpose::SideLane(lane, lock_wait), lane.connections());
            Ok([pool(LockWait::Short)?, pool(LockWait::Long)?])
        };
        Ok(Self(Lane::ALL.into_iter().map(of).collect::<Result<_, _>>()?))
    }

    fn get(&self, lane: Lane, lock_wait: LockWait) -> &bb8::Pool<Manager> {
        &self.0[lane as usize][lock_wait as usize]
    }
}

impl Store {
    /// Returns a copy of this store that runs hot statements on the connections of a side lane.
    #[must_use]
    pub fn side_lane(&self, lane: Lane, lock_wait: LockWait) -> Self {
        Self { hot: self.side_lane.get(lane, lock_wait).clone(), ..self.clone() }
    }

    /// Returns the job ids of the given leases that another transaction has locked now.
    pub async fn locked_leases(&self, ids: &[i64]) -> Result<Vec<i64>, StoreError> {
        self.hot().await?.list(Statement::LockedLeases, &[&ids]).await
    }

    /// Runs a request in a side lane. Meanwhile, looks for the sessions whose locks block the request, and returns
    /// their description for the error text.
    pub async fn with_holders<T>(&self, lane: Lane, run: impl Future<Output = T>) -> (T, Option<String>) {
        let over = AtomicBool::new(false);
        let run = async {
            let result = run.await;
            over.store(true, Ordering::Release);
            result
        };
        let find = async {
            loop {
                let seen = self.find_holders(lane).await;
                if seen.is_some() || over.load(Ordering::Acquire) {
                    return seen;
                }
            }
        };
        tokio::join!(run, find)
    }

    /// Looks for lock holders after a pause of 50 ms, because a statement that has just begun does not wait for a lock
    /// yet.
    pub async fn find_holders(&self, lane: Lane) -> Option<String> {
        tokio::time::sleep(HOT).await;
        self.lock_holders(lane).await.ok().flatten()
    }

    /// Waits until lock holders are found.
    pub async fn until_holders_found(&self, lane: Lane) -> String {
        loop {
            if let Some(holders) = self.find_holders(lane).await {
                return holders;
            }
        }
    }

    /// Describes the sessions whose locks block statements of a lane, in a text that begins with "locked", such as
    /// "locked in howdah.leased by backend 7". `None` if no statement is blocked, or the holders are unknown.
    pub async fn lock_holders(&self, lane: Lane) -> Result<Option<String>, StoreError> {
        let name = lane.application_name();
        let rows = self.general().await?.query(Statement::LockHolders, &[&name]).await?;
        let holder = |row: &tokio_postgres::Row| {
            let (pid, name): (i32, String) = (row.get("pid"), row.get("application_name"));
            let since = Duration::from_secs(row.get::<_, i64>("open_ms").max(0) as u64 / 1_000);
            match pid {
                0 => "a prepared transaction".to_owned(),
                _ if name.is_empty() => format!("backend {pid}, whose transaction is {since:?} old"),
                _ => format!("backend {pid} ({name:?}), whose transaction is {since:?} old"),
            }
        };
        let relation = rows.first().map(|row| row.get::<_, String>("relation")).unwrap_or_default();
        let holders = rows.iter().map(holder).collect::<Vec<_>>().join(" and ");
        if holders.is_empty() {
            return Ok(None);
        }
        let what = if relation.is_empty() { String::new() } else { format!(" in {relation}") };
        Ok(Some(format!("locked{what} by {holders}")))
    }
}
