//! A replica for those who read a lot and can wait for the latest: lists, searches, statistics. Once a second the position of
//! the primary's log is taken, and the replica is asked how far it has got. So its lag is measured by this broker's own clock,
//! and it is known whether the replica has what was changed here.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_postgres::Row;

use super::{
    Purpose, Statement, Store, StoreError, connection::Params, outage::Outage, pool::Manager, servers::Servers,
    timeline::Latest,
};
use crate::config::{Config, Dsn};

/// Most connections.
const CONNECTIONS: u32 = 4;
/// How long a read waits for a connection before it goes to the primary.
const CONNECTING: Duration = Duration::from_secs(2);
/// How long the replica may take to say how far it has got. Then it is away.
const ASKING: Duration = Duration::from_secs(3);
/// It is asked so often within a measurement, as long as it has not got there.
const QUESTIONS: u32 = 4;
const BETWEEN: Duration = Duration::from_millis(50);
/// Positions that it has not reached yet: one a second. Older ones are forgotten, so the lag is not thought to be less.
const MOST_POSITIONS: usize = 3_600;

/// When somebody changed something through this broker last: with a row in the audit.
#[derive(Default)]
pub(super) struct LastChange(Mutex<Option<Instant>>);

impl LastChange {
    /// It is committed.
    pub(super) fn now(&self) {
        *self.0.lock() = Some(Instant::now());
    }
}

/// The replica of a store.
pub(super) struct Replica {
    pool: bb8::Pool<Manager>,
    outage: Arc<Outage>,
    most_lag: Duration,
    last_change: Arc<LastChange>,
    progress: Mutex<Progress>,
    /// Whether it does not answer. At first nobody knows.
    away: watch::Sender<bool>,
}

/// How far it has got.
#[derive(Default)]
struct Progress {
    /// Positions of the primary, and when they were taken.
    ahead: VecDeque<(Instant, i64)>,
    /// All that was committed before this time can be read.
    caught_up: Option<Instant>,
}

/// What a replica is good for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaState {
    /// How far it is behind, at most; `None`: that was never known.
    pub lag: Option<Duration>,
    /// Whether it is not away, and not too far behind.
    pub is_read: bool,
}

impl Progress {
    fn reached(&mut self, position: i64) {
        while self.ahead.front().is_some_and(|(_, ahead)| *ahead <= position) {
            self.caught_up = self.ahead.pop_front().map(|(at, _)| at);
        }
    }

    fn taken(&mut self, at: Instant, position: i64) {
        if self.ahead.len() == MOST_POSITIONS {
            self.ahead.pop_front();
        }
        self.ahead.push_back((at, position));
    }
}

impl Replica {
    /// That of a configuration, if it names one.
    pub(super) fn of(config: &Config, last_change: &Arc<LastChange>) -> Result<Option<Arc<Self>>, String> {
        let Some(url) = &config.read_database_url else { return Ok(None) };
        let dsn = Dsn::parse_for_reading(url).map_err(|problem| format!("read_database_url: {problem}"))?;
        // Whichever of several answers first: none of them must be the primary.
        let servers = Servers::new(&dsn, &Arc::new(Latest::new()), true)?;
        let (outage, timeout) = (Arc::<Outage>::default(), config.database_timeout);
        let manager = Manager::new(
            servers,
            config.schema.clone(),
            Purpose::General,
            timeout,
            false,
            outage.clone(),
            last_change.clone(),
        );
        let pool = bb8::Pool::builder()
            .max_size(CONNECTIONS)
            .min_idle(Some(0))
            .connection_timeout(CONNECTING)
            .test_on_check_out(false)
            .build_unchecked(manager);
        Ok(Some(Arc::new(Self {
            pool,
            outage,
            most_lag: config.read_replica_max_lag,
            last_change: last_change.clone(),
            progress: Mutex::default(),
            away: watch::Sender::new(true),
        })))
    }

    fn state(&self) -> ReplicaState {
        let lag = self.progress.lock().caught_up.map(|at| at.elapsed());
        ReplicaState { lag, is_read: !*self.away.borrow() && lag.is_some_and(|lag| lag <= self.most_lag) }
    }

    /// Whether it may be read now: what was changed here is there, too.
    fn is_usable(&self) -> bool {
        let (caught_up, changed) = (self.progress.lock().caught_up, *self.last_change.0.lock());
        self.state().is_read && changed.is_none_or(|changed| caught_up.is_some_and(|at| at > changed))
    }

    /// Returns when it does not answer any more.
    async fn until_away(&self) {
        // It is not gone while it is borrowed.
        let _ = self.away.subscribe().wait_for(|away| *away).await;
    }

    fn set_away(&self, away: bool) {
        self.away.send_if_modified(|before| std::mem::replace(before, away) != away);
    }
}

/// A position in the log, and whose tables the server has.
fn position(row: &Row) -> (i64, String) {
    (row.get("position"), row.get("identity"))
}

impl Store {
    /// Reads for people: at the replica if it may be read and answers, otherwise at the primary.
    pub(super) async fn read(&self, statement: Statement, params: Params<'_>) -> Result<Vec<Row>, StoreError> {
        if let Some(replica) = self.readable() {
            match self.read_there(replica, statement, params).await {
                Ok(rows) => return Ok(rows),
                Err(error) => tracing::debug!(%error, "the read replica failed; reading the primary"),
            }
        }
        self.general().await?.query(statement, params).await
    }

    /// The same for a statement that returns exactly one row.
    pub(super) async fn read_one(&self, statement: Statement, params: Params<'_>) -> Result<Row, StoreError> {
        let rows = self.read(statement, params).await?;
        let none = || StoreError::Refused(format!("{} returned no row", statement.name()).into());
        rows.into_iter().next().ok_or_else(none)
    }

    /// The same for a statement that Postgres gives up after so long. That is not tried again.
    pub(super) async fn read_within(
        &self,
        within: Duration,
        statement: Statement,
        params: Params<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        if let Some(replica) = self.readable() {
            let read = tokio::select! {
                rows = self.run_within(&replica.pool, within, statement, params) => rows,
                () = replica.until_away() => Err(StoreError::Unknown("the replica does not answer".into())),
            };
            match read {
                Err(error) if !error.is_timeout() => {
                    tracing::debug!(%error, "the read replica failed; reading the primary");
                }
                other => return other,
            }
        }
        self.run_within(&self.general, within, statement, params).await
    }

    async fn run_within(
        &self,
        pool: &bb8::Pool<Manager>,
        within: Duration,
        statement: Statement,
        params: Params<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        let mut transaction = Self::begin_on(self.loan(pool).await?).await?;
        let limit = format!("SET LOCAL statement_timeout = {}", within.as_millis());
        transaction.connection().batch(&limit).await?;
        match transaction.query(statement, params).await {
            Ok(rows) => transaction.commit().await.map(|()| rows),
            Err(error) => {
                transaction.roll_back().await;
                Err(error)
            }
        }
    }

    fn readable(&self) -> Option<&Replica> {
        self.replica.as_deref().filter(|replica| replica.is_usable())
    }

    async fn read_there(
        &self,
        replica: &Replica,
        statement: Statement,
        params: Params<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        let reading = async { self.loan(&replica.pool).await?.query(statement, params).await };
        tokio::select! {
            rows = reading => rows,
            () = replica.until_away() => Err(StoreError::Unknown("the replica does not answer".into())),
        }
    }

    /// Whether there is a replica to read.
    pub fn has_replica(&self) -> bool {
        self.replica.is_some()
    }

    /// What the replica is good for now, if there is one.
    pub fn replica_state(&self) -> Option<ReplicaState> {
        self.replica.as_deref().map(Replica::state)
    }

    /// Measures how far the replica is behind. An error of the primary is returned, one of the replica is logged.
    pub async fn measure_replica(&self) -> Result<(), StoreError> {
        let Some(replica) = self.replica.as_deref() else { return Ok(()) };
        let taken = Instant::now();
        let row = self.general().await?.query_one(Statement::WalPosition, &[]).await?;
        let (ahead, identity) = position(&row);
        replica.progress.lock().taken(taken, ahead);
        let asking = tokio::time::timeout(ASKING, self.ask_replica(replica, ahead, &identity));
        let asked =
            asking.await.unwrap_or_else(|_| Err(StoreError::Unknown(format!("no answer within {ASKING:?}").into())));
        replica.set_away(asked.is_err());
        match asked {
            Ok(()) => replica.outage.over(),
            Err(error) => replica.outage.failed("reading the replica", &error),
        }
        Ok(())
    }

    /// Asks the replica until it has got there, a few times.
    async fn ask_replica(&self, replica: &Replica, ahead: i64, identity: &str) -> Result<(), StoreError> {
        let mut connection = self.loan(&replica.pool).await?;
        for question in 0..QUESTIONS {
            if question > 0 {
                tokio::time::sleep(BETWEEN).await;
            }
            let (reached, other) = position(&connection.query_one(Statement::WalPosition, &[]).await?);
            if other != identity {
                let problem = "read_database_url leads to another database, or to a copy with an identity of its own";
                return Err(StoreError::Refused(problem.into()));
            }
            replica.progress.lock().reached(reached);
            if reached >= ahead {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_caught_up_to_the_latest_position_that_it_has_reached() {
        let (mut progress, begun) = (Progress::default(), Instant::now());
        let later = |seconds| begun + Duration::from_secs(seconds);
        for (seconds, position) in [(0, 100), (1, 200), (2, 200), (3, 300)] {
            progress.taken(later(seconds), position);
        }
        progress.reached(99);
        assert_eq!(progress.caught_up, None);
        progress.reached(250);
        assert_eq!(progress.caught_up, Some(later(2)));
        progress.reached(300);
        assert_eq!((progress.caught_up, progress.ahead.len()), (Some(later(3)), 0));
    }

    #[test]
    fn positions_are_bounded_and_the_oldest_is_forgotten() {
        let (mut progress, now) = (Progress::default(), Instant::now());
        for position in 0..=MOST_POSITIONS as i64 {
            progress.taken(now, position);
        }
        assert_eq!((progress.ahead.len(), progress.ahead[0].1), (MOST_POSITIONS, 1));
    }
}
