//! Read replica for queries that tolerate a lag: lists, searches, statistics. Once a second, the broker reads the WAL
//! position of the primary, and then the position up to which the replica has replayed the WAL. So the lag is measured
//! with the broker's clock alone. The replica is read only if it has replayed the last audited change made through this
//! broker.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_core::config::Config;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_postgres::Row;

use super::{
    Purpose, Statement, Store, StoreError, circuit_breaker::CircuitBreaker, connection::Params, pool::Manager,
    servers::Servers, source::Source, timeline::Latest,
};

/// Maximum number of connections to the replica.
const CONNECTIONS: u32 = 4;
/// Time that a read waits for a connection to the replica. After that, the read uses the primary.
const CONNECTING: Duration = Duration::from_secs(2);
/// Timeout of one measurement of the replica's replay position. After that, the replica counts as unreachable.
const QUERY_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum number of queries for the replay position of the replica in one measurement. The measurement stops when the
/// replica has reached the position of the primary.
const QUESTIONS: u32 = 4;
/// Pause between two queries for the replay position of the replica.
const BETWEEN: Duration = Duration::from_millis(50);
/// Maximum number of stored WAL positions of the primary that the replica has not reached, one per second. Beyond that,
/// the oldest position is dropped, so the lag is overestimated, never underestimated.
const MOST_POSITIONS: usize = 3_600;

/// Time of the last audited change through this broker.
#[derive(Default)]
pub(super) struct LastChange(Mutex<Option<Instant>>);

impl LastChange {
    /// Records that an audited change was committed now.
    pub(super) fn now(&self) {
        *self.0.lock() = Some(Instant::now());
    }
}

/// Read replica of a store.
pub(super) struct Replica {
    pool: bb8::Pool<Manager>,
    breaker: Arc<CircuitBreaker>,
    most_lag: Duration,
    last_change: Arc<LastChange>,
    progress: Mutex<Progress>,
    /// Whether the replica is unreachable. True until the first measurement.
    unavailable: watch::Sender<bool>,
}

/// Replay progress of the replica.
#[derive(Default)]
struct Progress {
    /// WAL positions of the primary that the replica has not reached, with the times at which they were read.
    ahead: VecDeque<(Instant, i64)>,
    /// Transactions committed before this time are visible on the replica.
    caught_up: Option<Instant>,
}

/// State of the read replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaState {
    /// Upper bound of the lag. `None` before the first measurement.
    pub lag: Option<Duration>,
    /// Whether the replica is reachable and its lag is within the limit.
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
    /// Creates the replica if the configuration names one.
    pub(super) fn new(config: &Config, last_change: &Arc<LastChange>) -> Result<Option<Arc<Self>>, String> {
        let Some(url) = &config.read_database_url else { return Ok(None) };
        let source = Source::new(url, config.url_file(url)).for_reading();
        let (breaker, timeout) = (Arc::<CircuitBreaker>::default(), config.database_timeout);
        // The argument `pooled` is true, so that the first server that answers is used, even if it is no primary.
        let servers = Servers::new(source, &Arc::new(Latest::new()), true, breaker.clone())
            .map_err(|problem| format!("read_database_url: {problem}"))?;
        let manager =
            Manager::new(servers, config.schema.clone(), Purpose::General, timeout, false, last_change.clone());
        let pool = bb8::Pool::builder()
            .max_size(CONNECTIONS)
            .min_idle(Some(0))
            .connection_timeout(CONNECTING)
            .test_on_check_out(false)
            .build_unchecked(manager);
        Ok(Some(Arc::new(Self {
            pool,
            breaker,
            most_lag: config.read_replica_max_lag,
            last_change: last_change.clone(),
            progress: Mutex::default(),
            unavailable: watch::Sender::new(true),
        })))
    }

    fn state(&self) -> ReplicaState {
        let lag = self.progress.lock().caught_up.map(|at| at.elapsed());
        ReplicaState { lag, is_read: !*self.unavailable.borrow() && lag.is_some_and(|lag| lag <= self.most_lag) }
    }

    /// Whether the replica may be read now: it is reachable, its lag is within the limit, and it has replayed the last
    /// audited change made through this broker.
    fn is_usable(&self) -> bool {
        let (caught_up, changed) = (self.progress.lock().caught_up, *self.last_change.0.lock());
        self.state().is_read && changed.is_none_or(|changed| caught_up.is_some_and(|at| at > changed))
    }

    /// Waits until the replica is unreachable.
    async fn until_unavailable(&self) {
        // `wait_for` cannot fail: `self` keeps the sender alive.
        let _ = self.unavailable.subscribe().wait_for(|unavailable| *unavailable).await;
    }

    fn set_unavailable(&self, unavailable: bool) {
        self.unavailable.send_if_modified(|before| std::mem::replace(before, unavailable) != unavailable);
    }
}

/// Reads the WAL position of a server, and the identity of its database, from a row.
fn position(row: &Row) -> (i64, String) {
    (row.get("position"), row.get("identity"))
}

impl Store {
    /// Runs a read-only query of an operator on the replica if the replica is usable, otherwise on the primary.
    pub(super) async fn read(&self, statement: Statement, params: Params<'_>) -> Result<Vec<Row>, StoreError> {
        if let Some(replica) = self.readable() {
            match self.read_there(replica, statement, params).await {
                Ok(rows) => return Ok(rows),
                Err(error) => tracing::debug!(%error, "the read replica failed; reading the primary"),
            }
        }
        self.general().await?.query(statement, params).await
    }

    /// Runs a read-only query that returns exactly one row, on the replica or the primary.
    pub(super) async fn read_one(&self, statement: Statement, params: Params<'_>) -> Result<Row, StoreError> {
        let rows = self.read(statement, params).await?;
        let none = || StoreError::Refused(format!("statement {} returned no row", statement.name()).into());
        rows.into_iter().next().ok_or_else(none)
    }

    /// Runs a read-only query with its own statement timeout, on the replica or the primary. If the query exceeds the
    /// timeout on the replica, returns the error and does not try the primary.
    pub(super) async fn read_within(
        &self,
        within: Duration,
        statement: Statement,
        params: Params<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        if let Some(replica) = self.readable() {
            let read = tokio::select! {
                rows = self.run_within((&replica.pool, &replica.breaker), within, statement, params) => rows,
                () = replica.until_unavailable() => Err(StoreError::Unknown("the replica does not answer".into())),
            };
            match read {
                Err(error) if !error.is_timeout() => {
                    tracing::debug!(%error, "the read replica failed; reading the primary");
                }
                other => return other,
            }
        }
        self.run_within((&self.general, &self.breaker), within, statement, params).await
    }

    async fn run_within(
        &self,
        (pool, breaker): (&bb8::Pool<Manager>, &CircuitBreaker),
        within: Duration,
        statement: Statement,
        params: Params<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        let mut transaction = Self::begin_on(self.loan(pool, breaker).await?).await?;
        let limit = format!("SET LOCAL statement_timeout = {}", within.as_millis());
        transaction.batch(&limit).await?;
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
        let reading = async { self.loan(&replica.pool, &replica.breaker).await?.query(statement, params).await };
        tokio::select! {
            rows = reading => rows,
            () = replica.until_unavailable() => Err(StoreError::Unknown("the replica does not answer".into())),
        }
    }

    /// Whether a read replica is configured.
    pub fn has_replica(&self) -> bool {
        self.replica.is_some()
    }

    /// Returns the state of the read replica, if one is configured.
    pub fn replica_state(&self) -> Option<ReplicaState> {
        self.replica.as_deref().map(Replica::state)
    }

    /// Measures the lag of the replica. Returns errors of the primary, and logs errors of the replica.
    pub async fn measure_replica(&self) -> Result<(), StoreError> {
        let Some(replica) = self.replica.as_deref() else { return Ok(()) };
        let taken = Instant::now();
        let row = self.general().await?.query_one(Statement::WalPosition, &[]).await?;
        let (ahead, identity) = position(&row);
        replica.progress.lock().taken(taken, ahead);
        let query = tokio::time::timeout(QUERY_TIMEOUT, self.query_replica(replica, ahead, &identity));
        let result = query
            .await
            .unwrap_or_else(|_| Err(StoreError::Unknown(format!("no answer within {QUERY_TIMEOUT:?}").into())));
        replica.set_unavailable(result.is_err());
        match result {
            Ok(()) => replica.breaker.answered(),
            Err(error) => replica.breaker.log_failure("reading the replica", &error),
        }
        Ok(())
    }

    /// Queries the replay position of the replica up to `QUESTIONS` times, until the replica has reached the WAL
    /// position `ahead`.
    async fn query_replica(&self, replica: &Replica, ahead: i64, identity: &str) -> Result<(), StoreError> {
        let mut connection = self.loan(&replica.pool, &replica.breaker).await?;
        for question in 0..QUESTIONS {
            if question > 0 {
                tokio::time::sleep(BETWEEN).await;
            }
            let (reached, other) = position(&connection.query_one(Statement::WalPosition, &[]).await?);
            if other != identity {
                let problem = "read_database_url names another database, or a copy that has a new identity";
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
    fn a_replica_has_caught_up_to_the_latest_position_that_it_has_reached() {
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
