//! The actual behaviour, as the stores of two brokers in a database show it.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::Duration,
};

use howdah_core::{
    config::Config,
    job::{EnqueueOutcome, HolderFailure, JobOptions, JobState, Lease, NewJob, StagePayload, Start, TaskTypeName},
};
use howdah_engine::store::{
    Action, Actor, ClaimRequest, KeyedJob, Nack, PlainJob, RequestColumns, RetryArgs, RetryStart, ShortHistories,
    Store, Want,
};
use tokio_postgres::Client;

use super::memory::{EnqueueOptions, Key, MAX_ATTEMPTS, State, TYPES};
use crate::support::{TestDatabase, database};

const HOUR: Duration = Duration::from_secs(3600);

pub struct Stored {
    // Failure messages show the name of this test database.
    _database: TestDatabase,
    client: Client,
    store: Store,
    brokers: [i32; 2],
    ids: Vec<i64>,
    tokens: HashMap<i64, i64>,
}

impl Stored {
    pub async fn begin() -> Self {
        let database = database().await;
        let store = Store::new(&Config::new(&database.url)).expect("store");
        store.create_task_types(&["t", "u"], "").await.expect("types");
        let brokers = [
            store.register_broker("a", HOUR).await.expect("broker"),
            store.register_broker("b", HOUR).await.expect("broker"),
        ];
        let client = database.connect().await;
        Self { client, _database: database, store, brokers, ids: Vec::new(), tokens: HashMap::new() }
    }

    pub async fn enqueue(&mut self, options: &EnqueueOptions) -> Option<(usize, EnqueueOutcome)> {
        let job = self.new_job(options);
        let plain =
            PlainJob { job: &job, type_id: TYPES[0], max_attempts: MAX_ATTEMPTS, rank_base: 0, out_of_line: false };
        let full = KeyedJob { plain, request_no: 0 };
        let stored = self.store.enqueue_coordinated(&[full], &RequestColumns::default()).await.ok()?;
        let enqueued = stored.jobs[0].expect("no request key");
        if !self.ids.contains(&enqueued.id) {
            self.ids.push(enqueued.id);
        }
        Some((self.state(enqueued.id), enqueued.outcome))
    }

    fn new_job(&self, options: &EnqueueOptions) -> NewJob {
        let job_options = JobOptions {
            key_policy: Some(options.policy),
            on_holder_failure: options.waits_for_retries.then_some(HolderFailure::Retry),
            limit_key: options.limit_key.map(|key| key.to_string()),
            expire_after_ms: options.expires.then_some(2 * HOUR.as_millis() as i64),
            next_stages: if options.staged { TYPES[1..].to_vec() } else { Vec::new() },
            stage_payload: options.staged.then_some(StagePayload::Result),
            after: options.after.iter().map(|i| self.ids[*i]).collect(),
            on_dependency_failure: (!options.after.is_empty()).then_some(options.on_failure),
            ..JobOptions::default()
        };
        NewJob {
            task_type: TaskTypeName::parse("t").expect("name"),
            payload: "p".into(),
            headers: HashMap::new(),
            priority: 0,
            start: if options.delayed { Start::After(HOUR) } else { Start::Now },
            max_attempts: None,
            key: options.key.map(|key| key.to_string()),
            timeout: None,
            fallback: None,
            next_stages: Vec::new(),
            options: job_options.boxed(),
        }
    }

    fn state(&self, id: i64) -> usize {
        self.ids.iter().position(|known| *known == id).expect("a job of this case")
    }

    fn lease(&self, i: usize) -> Lease {
        Lease { id: self.ids[i], token: self.tokens[&self.ids[i]] }
    }

    pub async fn claim(&mut self, broker: usize, type_id: i32, at_most: usize, limited: bool) -> Vec<usize> {
        let want = Want { type_id, jobs: at_most as i32, floor: i64::MIN, largest: i64::MAX };
        let limited = limited.then_some(type_id).into_iter().collect::<HashSet<_>>();
        let request =
            ClaimRequest { broker_id: Some(self.brokers[broker]), ..ClaimRequest::new(vec![want], limited, 1_000) };
        let claimed = self.store.claim(&request).await.expect("claim").jobs;
        self.tokens.extend(claimed.iter().map(|job| (job.lease.id, job.lease.token)));
        claimed.iter().map(|job| self.state(job.lease.id)).collect()
    }

    /// Acks a job as a broker does: the first statement skips coordinated jobs, and the second statement acks them.
    pub async fn ack(&mut self, i: usize) {
        let lease = self.lease(i);
        let acked = self.store.settle_acks(&[(lease, b"done")], &ShortHistories::default(), None).await.expect("ack");
        if acked.ids.is_empty() {
            let acked = self.store.ack_coordinated(&[(lease, b"done", None)]).await.expect("ack");
            assert_eq!(acked.ids, [lease.id]);
        }
    }

    pub async fn nack(&mut self, i: usize, action: Action, later: bool) {
        let delay_ms = if later { 3_600_000 } else { 0 };
        let nack = Nack { lease: self.lease(i), action, delay_ms, error: Some("no".into()) };
        let mut nacked = Vec::new();
        self.store.settle_nacks(&[nack], None, false, &mut nacked).await.expect("nack");
        assert_eq!(nacked.len(), 1);
    }

    pub async fn cancel(&mut self, i: usize) {
        self.store.cancel(&vec![self.ids[i]].into(), None, &Actor::of_session("test")).await.expect("cancel");
    }

    pub async fn retry(&mut self, i: usize) {
        let retry = RetryArgs { start: RetryStart::Now, state: Some(JobState::Dead), payload: None, failed: false };
        self.store.retry_jobs(&vec![self.ids[i]].into(), &retry, &Actor::of_session("test")).await.expect("retry");
    }

    /// Expires all jobs that have an expiry and still wait for their first attempt.
    pub async fn expire(&mut self) {
        for table in ["ready", "scheduled", "waiting"] {
            self.sql(&format!(
                "UPDATE howdah.{table} SET options = options || '{{\"expire_at_us\": 1}}' WHERE options ? 'expire_at_us' AND attempt = 0;
                 UPDATE howdah.expiry SET expire_at = expire_at - interval '1 day'
                 WHERE id IN (SELECT id FROM howdah.{table} WHERE attempt = 0)"
            ))
            .await;
        }
        self.store.expire(1_000).await.expect("expire");
    }

    pub async fn promote(&mut self) {
        for table in ["scheduled", "waiting"] {
            self.sql(&format!(
                "UPDATE howdah.{table} SET options = options || '{{\"start_us\": 1}}' WHERE options ? 'start_us'"
            ))
            .await;
        }
        self.sql("UPDATE howdah.scheduled SET run_at = now() - interval '1 s'").await;
        self.store.promote(None, 1_000).await.expect("promote");
        self.store.promote_coordinated(1_000).await.expect("promote");
    }

    pub async fn lose(&mut self, broker: usize) {
        let gone = self.brokers[broker];
        let alive = self.store.register_broker("alive", HOUR).await.expect("broker");
        self.sql(&format!("UPDATE howdah.broker SET expires = now() - interval '1 s' WHERE id = {gone}")).await;
        self.store.rescue(1_000, alive).await.expect("rescue");
        let mut lost = self.store.lost_coordinated(1_000, alive, false).await.expect("lost");
        lost.sort_unstable();
        let nack = |lease: Lease| Nack { lease, action: Action::Lost, delay_ms: 0, error: Some("lost".into()) };
        let nacks: Vec<Nack> = lost.iter().map(|(lease, _)| nack(*lease)).collect();
        self.store.settle_nacks(&nacks, Some(&[gone]), false, &mut Vec::new()).await.expect("give back");
        self.store.delete_expired_brokers().await.expect("purge");
        self.brokers[broker] = self.store.register_broker("again", HOUR).await.expect("broker");
    }

    pub async fn set_limits(&mut self, limit: Option<usize>, strict: bool, max_running: Option<usize>) {
        let [limit, max_running] =
            [limit, max_running].map(|limit| limit.map_or("NULL".to_owned(), |limit| limit.to_string()));
        self.sql(&format!(
            "BEGIN; UPDATE howdah.task_type SET key_max_running = {limit}, key_strict = {strict},
                 max_running = {max_running};
             SELECT howdah.begin_limit_change(id) FROM howdah.task_type; COMMIT"
        ))
        .await;
    }

    pub async fn admit(&mut self) {
        self.store.admit(100).await.expect("admit");
    }

    async fn sql(&self, sql: &str) {
        self.client.batch_execute(sql).await.expect(sql);
    }

    pub async fn waiting_in_order(&self) -> Vec<usize> {
        let sql = "SELECT w.id FROM howdah.waiting w JOIN howdah.task_type t ON t.id = w.type_id
            WHERE limit_key IS NOT NULL ORDER BY NOT (coalesce(t.key_strict, false) AND attempt > 0), rank, w.id";
        self.client.query(sql, &[]).await.expect(sql).iter().map(|row| self.state(row.get(0))).collect()
    }

    /// Returns state, attempt and type of each job.
    pub async fn jobs(&self) -> Vec<(State, i16, i32)> {
        let sql = "SELECT id, 1::smallint AS state, attempt, type_id, NULL::integer AS broker_id FROM howdah.ready
            UNION ALL SELECT id, 2::smallint, attempt, type_id, broker_id FROM howdah.leased
            UNION ALL SELECT id, 3::smallint, attempt, type_id, NULL FROM howdah.scheduled
            UNION ALL SELECT id, CASE WHEN limit_key IS NULL THEN 4 ELSE 10 END::smallint, attempt, type_id, NULL FROM howdah.waiting
            UNION ALL SELECT id, 5::smallint, attempt, type_id, NULL FROM howdah.dead
            UNION ALL SELECT id, array_position(enum_range(NULL::howdah.job_state), outcome)::smallint, attempt, type_id, NULL FROM howdah.history ORDER BY id";
        let rows = self.client.query(sql, &[]).await.expect(sql);
        let ids: Vec<i64> = rows.iter().map(|row| row.get("id")).collect();
        assert_eq!(ids, self.ids, "each job is in one table");
        let state = |row: &tokio_postgres::Row| match row.get::<_, i16>("state") {
            1 => State::Ready,
            2 => State::Leased(usize::from(row.get::<_, i32>("broker_id") == self.brokers[1])),
            3 => State::Scheduled,
            4 => State::Behind,
            10 => State::AtLimit,
            5 => State::Dead,
            ended => State::Ended(ended),
        };
        rows.iter().map(|row| (state(row), row.get("attempt"), row.get("type_id"))).collect()
    }

    pub async fn keys(&self) -> BTreeMap<u8, Key> {
        let sql = "SELECT key, job_id, next_id FROM howdah.job_key";
        let rows = self.client.query(sql, &[]).await.expect(sql);
        let next = |row: &tokio_postgres::Row| row.get::<_, Option<i64>>(2).map(|id| self.state(id));
        rows.iter()
            .map(|row| (row.get::<_, &str>(0).parse().expect("a number"), (self.state(row.get(1)), next(row))))
            .collect()
    }

    /// Returns pairs of a dependent job and its dependency.
    pub async fn dependencies(&self) -> Vec<(usize, usize)> {
        let sql = "SELECT job_id, after_id FROM howdah.dependency ORDER BY 1, 2";
        let rows = self.client.query(sql, &[]).await.expect(sql);
        rows.iter().map(|row| (self.state(row.get(0)), self.state(row.get(1)))).collect()
    }

    pub async fn due_limits(&self) -> Vec<(i32, u8)> {
        let sql = "SELECT type_id, limit_key FROM howdah.limit_state WHERE check_at <= now()";
        let rows = self.client.query(sql, &[]).await.expect(sql);
        rows.iter().map(|row| (row.get(0), row.get::<_, &str>(1).parse().expect("a number"))).collect()
    }
}
