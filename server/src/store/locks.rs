//! Locks of other transactions. Brokers' own transactions hold locks for milliseconds; an application may leave its
//! transaction open for hours. So a hot statement waits for a lock for a moment only. What it could not do is tried again
//! on connections of its own, one for each lane, so that nothing else waits for it.

use std::{
    sync::{
        LazyLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use super::{Purpose, Statement, Store, StoreError, pool::Manager};

/// How long a hot statement waits for a lock. Longer than brokers hold locks, and little enough to wait for twice before
/// others notice.
pub(super) const HOT: Duration = Duration::from_millis(50);

/// How long an operator's statement waits for one: the others must not wait for its connection for much longer.
pub(super) const GENERAL: Duration = Duration::from_secs(2);

/// How long a start waits for locks of others: another broker may make or drop partitions at this moment, and while a commit
/// with a notification waits for the disk, those of all databases of the server wait behind it.
const START: Duration = Duration::from_secs(10);

/// Does it again while somebody has locked what it needs. Each time, the statement itself has waited for the lock. The
/// error says what it was.
pub(crate) async fn unless_locked<T, F>(what: &str, run: impl Fn() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let until = Instant::now() + START;
    loop {
        match run().await {
            Err(StoreError::Locked(_)) if Instant::now() < until => {}
            Err(StoreError::Locked(cause)) => return Err(StoreError::Locked(cause.of(what))),
            other => return other,
        }
    }
}

/// Work that waits for locks, apart from other work that does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Jobs to be stored.
    Enqueue,
    /// Outcomes to be written.
    Settle,
    /// Calls of operators, and new task types.
    Operate,
    /// The row of this broker.
    Renew,
}

/// How long a statement of a lane waits for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// To see whether it is locked.
    Short,
    /// Until the lock goes, or it is another one's turn.
    Long,
}

/// Tells this process from others.
static PROCESS: LazyLock<u32> = LazyLock::new(rand::random);

impl Lane {
    const ALL: [Self; 4] = [Self::Enqueue, Self::Settle, Self::Operate, Self::Renew];

    /// The longest wait.
    pub(super) const fn longest(self, patience: Patience) -> Duration {
        Duration::from_millis(match (self, patience) {
            (_, Patience::Short) => 5,
            (Self::Operate, Patience::Long) => 1_000,
            (_, Patience::Long) => 250,
        })
    }

    /// The name of its connections, by which `lock_holders.sql` finds them.
    pub(super) fn application_name(self) -> String {
        let name = match self {
            Self::Enqueue => "enqueue",
            Self::Settle => "settle",
            Self::Operate => "operate",
            Self::Renew => "renew",
        };
        format!("howdah {name}, locked {:08x}", *PROCESS)
    }

    /// Calls of operators wait each for itself, the others wait one by one.
    const fn connections(self) -> u32 {
        match self {
            Self::Operate => 2,
            Self::Enqueue | Self::Settle | Self::Renew => 1,
        }
    }
}

/// The connections of all lanes; none is open while nothing meets a lock.
pub(super) struct AsidePools(Vec<[bb8::Pool<Manager>; 2]>);

impl AsidePools {
    pub(super) fn new(pool: impl Fn(Purpose, u32) -> Result<bb8::Pool<Manager>, String>) -> Result<Self, String> {
        let of = |lane: Lane| -> Result<_, String> {
            let pool = |patience| pool(Purpose::Aside(lane, patience), lane.connections());
            Ok([pool(Patience::Short)?, pool(Patience::Long)?])
        };
        Ok(Self(Lane::ALL.into_iter().map(of).collect::<Result<_, _>>()?))
    }

    fn get(&self, lane: Lane, patience: Patience) -> &bb8::Pool<Manager> {
        &self.0[lane as usize][patience as usize]
    }
}

impl Store {
    /// The same statements, on the connections of a lane.
    #[must_use]
    pub fn aside(&self, lane: Lane, patience: Patience) -> Self {
        Self { hot: self.aside.get(lane, patience).clone(), ..self.clone() }
    }

    /// Those of these leases that another transaction has locked now.
    pub async fn locked_leases(&self, ids: &[i64]) -> Result<Vec<i64>, StoreError> {
        let rows = self.hot().await?.query(Statement::LockedLeases, &[&ids]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Runs what may wait for a lock in a lane, and asks meanwhile who holds that, until somebody is seen or the wait is over.
    pub async fn with_holders<T>(&self, lane: Lane, run: impl Future<Output = T>) -> (T, Option<String>) {
        let over = AtomicBool::new(false);
        let run = async {
            let result = run.await;
            over.store(true, Ordering::Release);
            result
        };
        let look = async {
            loop {
                let seen = self.see_holders(lane).await;
                if seen.is_some() || over.load(Ordering::Acquire) {
                    return seen;
                }
            }
        };
        tokio::join!(run, look)
    }

    /// Who holds it, a moment from now: a statement that begins now is there then, if it waits.
    pub async fn see_holders(&self, lane: Lane) -> Option<String> {
        tokio::time::sleep(HOT).await;
        self.lock_holders(lane).await.ok().flatten()
    }

    /// Who holds it, once somebody is seen.
    pub async fn until_seen(&self, lane: Lane) -> String {
        loop {
            if let Some(holders) = self.see_holders(lane).await {
                return holders;
            }
        }
    }

    /// Who holds what the statements of a lane wait for at this moment, as the end of a sentence: "locked by …". `None`:
    /// nobody, or it cannot be told.
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
