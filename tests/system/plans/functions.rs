//! Tests the plans of statements within functions. EXPLAIN does not show these plans, so auto_explain sends them as
//! notices.

use std::{future::poll_fn, sync::mpsc};

use howdah_engine::store::Purpose;
use tokio_postgres::{AsyncMessage, Client, NoTls};

use crate::support::{TestDatabase, database};

/// Tables with one row per job or per key. No statement may read a whole table. (Exception: for two seconds after a change of
/// limits, `type_quota` reads all leases of the type.)
const TABLES: [&str; 18] = [
    "bulk_change",
    "ready",
    "leased",
    "scheduled",
    "waiting",
    "dead",
    "history",
    "job_key",
    "dependency",
    "expiry",
    "limit_state",
    "fair_share",
    "payload",
    "job_tag",
    "request",
    "leaving",
    "arrived",
    "moved",
];

/// Calls of functions that brokers make, on connections with pinned plans, and the indexes that each call must use; `a|b` means
/// one of the two.
const OF_BROKERS: &[(&str, &[&str])] = &[
    (
        "SELECT howdah.ack_coordinated('{30001, 30002, 30003, 30100}', '{30001, 30002, 30003, 30100}',
                                       '{NULL, NULL, NULL, NULL}', '{NULL, 5, NULL, NULL}')",
        &["leased_pkey", "job_key_pkey", "dependency_pkey", "dependency_by_job", "waiting_pkey", "limit_state_pkey"],
    ),
    (
        "SELECT howdah.after_end('{30004, 30005}', '{5, 6}', '{k30004, NULL}', '{\"{}\", \"{}\"}', '{dead, cancelled}')",
        &["job_key_pkey", "dependency_pkey", "waiting_pkey"],
    ),
    (
        "SELECT howdah.admit(10)",
        &[
            "limit_state_due",
            "ready_by_limit_key",
            "leased_by_limit_key",
            "scheduled_by_limit_key",
            "waiting_by_limit_key",
            "waiting_started",
        ],
    ),
    (
        "SELECT howdah.requeue_for_limit('{10, 200}', '{11, 1}', ARRAY['{\"limit_key\": \"l10\"}', '{\"limit_key\": \"l200\"}']::jsonb[],
                                         ARRAY[now(), now()])",
        &["ready_by_id", "ready_by_limit_key", "limit_state_pkey"],
    ),
    ("SELECT howdah.free_key(1, 'k30004', 30004)", &["job_key_pkey"]),
    ("SELECT howdah.promote_coordinated(10)", &["scheduled_coordinated|scheduled_pkey"]),
    ("SELECT howdah.expire_unstarted(10)", &["expiry_pkey", "ready_by_id", "scheduled_id_key", "waiting_pkey"]),
    ("SELECT howdah.reroute_waiting('{150030, 150031}')", &["waiting_pkey", "dependency_by_job"]),
    ("SELECT howdah.type_quota('{1, 2}', '{5, 5}')", &["limit_state_pkey", "leased_limited"]),
    (
        "SELECT howdah.mark_awaited('{5, 30005, 60005, 150005}')",
        &["ready_by_id", "leased_pkey", "scheduled_id_key", "waiting_pkey"],
    ),
    (
        "SELECT howdah.begin_limit_change(1); SELECT howdah.continue_limit_changes(100)",
        &["ready_by_limit_key", "waiting_by_limit_key", "limit_state_pkey"],
    ),
    (
        "SELECT howdah.undo_bulk(1, 1, '{120100, 120200}')",
        &["bulk_change_default_bulk_id_job_id_idx", "history_default_pkey", "scheduled_id_key"],
    ),
    (
        "SELECT howdah.move_jobs('{10, 200}', 'ready', 11, 't3'); SELECT howdah.move_jobs('{110, 210}', 'ready', 11, 't3');
         SELECT howdah.move_jobs('{60010, 60110}', 'scheduled', 11, 't3'); SELECT howdah.move_jobs('{150010, 150110}', 'waiting', 11, 't3');
         SELECT howdah.move_jobs('{100010, 100110}', 'dead', 11, 't3')",
        &["ready_by_id", "scheduled_id_key", "waiting_pkey", "dead_pkey", "limit_state_pkey"],
    ),
    (
        r#"SELECT howdah.set_in_jobs('{10, 110}', 'ready', 11, '{"max_attempts": 5, "delay_ms": 5000, "add_tags": ["a"]}');
           SELECT howdah.set_in_jobs('{30010, 30110}', 'leased', 11, '{"max_attempts": 5}');
           SELECT howdah.set_in_jobs('{60010, 60110}', 'scheduled', 11, '{"max_attempts": 5, "delay_ms": 0}');
           SELECT howdah.set_in_jobs('{150010, 150110}', 'waiting', 11, '{"max_attempts": 5, "delay_ms": 5000}');
           SELECT howdah.set_in_jobs('{100010, 100110}', 'dead', 11, '{"max_attempts": 5}')"#,
        &["ready_by_id", "leased_pkey", "scheduled_id_key", "waiting_pkey", "dead_pkey"],
    ),
    (
        "SELECT howdah.begin_move(12, 'mail', 1, '', 1); SELECT howdah.leave_jobs(12, 'ready', 0, 0, 100, 1000000, 1);
         SELECT howdah.leave_jobs(12, 'scheduled', 0, 0, 100, 1000000, 1); SELECT howdah.leave_jobs(12, 'dead', 0, 0, 100, 1000000, 1);
         SELECT howdah.leave_done(12, '{11, 111}', '{100000000000001, NULL}')",
        &["ready_pkey", "scheduled_pkey", "dead_by_type", "leaving_pkey", "job_key_pkey"],
    ),
    (
        r#"SELECT howdah.arrive_jobs(12, '{100000000000001, 100000000000002}', ARRAY[
               '{"state": "ready", "rank": 1, "created": "2026-01-01", "attempt": 0, "max_attempts": 3, "priority": 0}',
               '{"state": "dead", "rank": 1, "created": "2026-01-01", "died": "2026-01-01", "attempt": 3, "max_attempts": 3, "priority": 0,
                 "key": "k", "key_row": {}}']::jsonb[], ARRAY['a', 'b']::bytea[])"#,
        &["arrived_pkey"],
    ),
    ("SELECT howdah.pause_limit_key(1, 'l200', now() + interval '1 h')", &["ready_by_limit_key"]),
    (
        r#"SELECT howdah.enqueue_jobs('{0, 1}', '{1, 1}', '{0, 0}', '{0, 0}', '{3, 3}', NULL, '{k30100, NULL}', NULL,
                                      ARRAY['{"tags": ["a"]}', '{"tags": ["b"]}']::jsonb[], '{a, b}', '{NULL, NULL}', '{NULL, NULL}',
                                      '{0, 1}', '{r30100, r30101}', '{h, h}', NULL, NULL)"#,
        &["job_key_pkey", "request_pkey"],
    ),
    ("SELECT howdah.replace_key_limit(1, 'l200', 3), howdah.replace_key_limit(1, 'l200', NULL)", &["limit_state_pkey"]),
];

/// Calls of functions that applications make, on connections with default planner settings. Brokers call the inner functions of
/// these.
const OF_APPLICATIONS: &[(&str, &[&str])] = &[
    (
        r#"SELECT howdah.enqueue_batch('[
            {"task_type": "t1", "key": "k30100", "key_policy": "replace"},
            {"task_type": "t1", "key": "k30100", "key_policy": "replace"},
            {"task_type": "t1", "limit_key": "l1"},
            {"task_type": "t2", "fair_key": "f1"}, {"task_type": "t2", "fair_key": "f1", "delay": "1 h"},
            {"task_type": "t3", "after": [30001, 100000, 130000]},
            {"task_type": "t3", "key": "new", "local_name": "a", "expire_after": "1 h"},
            {"task_type": "t4", "after_local": ["a"], "next_stages": ["t5"]}]', 'r')"#,
        &["job_key_pkey", "leased_pkey", "dependency_by_job", "dead_pkey", "history_default_pkey"],
    ),
    ("SELECT howdah.enqueue('t1', 'x')", &[]),
    (
        "SELECT howdah.enqueue('t1', 'x', key => 'k', key_policy => 'debounce', delay => '1 s');
         SELECT howdah.enqueue('t1', 'x', key => 'k', key_policy => 'debounce', delay => '1 s')",
        &["job_key_pkey", "scheduled_id_key"],
    ),
    ("SELECT howdah.enqueue('t1', 'x', fair_key => 'f100')", &["ready_pkey"]),
    ("SELECT howdah.enqueue_many('t1', ARRAY['a', 'b'])", &[]),
    (
        "SELECT howdah.complete(30010, 30010)",
        &["leased_pkey", "job_key_pkey", "dependency_pkey", "waiting_pkey", "limit_state_pkey"],
    ),
    ("SELECT howdah.fail(30011, 30011, 'e')", &["leased_pkey"]),
    ("SELECT howdah.fail(30012, 30012, 'e', no_retry => true)", &["leased_pkey", "job_key_pkey"]),
    ("SELECT howdah.snooze(30013, 30013, '1 s')", &["leased_pkey"]),
    ("SELECT howdah.extend(30014, 30014, '1 s')", &["leased_pkey"]),
    (
        "SELECT howdah.cancel(7), howdah.cancel(30015), howdah.cancel(60015), howdah.cancel(150015), howdah.cancel(100015)",
        &["ready_by_id"],
    ),
    ("SELECT howdah.retry_now(60016), howdah.retry_now(100016)", &["scheduled_id_key", "dead_pkey"]),
    ("SELECT howdah.reprioritize(17, 1), howdah.reprioritize(150017, 1)", &["ready_by_id", "waiting_pkey"]),
];

/// SQL that fills each table with 30,000 jobs, so many that the planner could prefer sequential scans. The statistics still
/// say that the tables are empty.
const FILL: &str = r#"
    INSERT INTO howdah.task_type (id, name) OVERRIDING SYSTEM VALUE SELECT i, 't' || i FROM generate_series(1, 100) i;
    UPDATE howdah.task_type SET key_max_running = 5 WHERE id = 1;
    UPDATE howdah.task_type SET key_max_running = 5, max_running = 100, rate_per_s = 10, rate_burst = 10, key_strict = true,
                                key_rate_per_s = 5, key_rate_burst = 5 WHERE id = 2;
    ANALYZE;
    INSERT INTO howdah.ready SELECT i, i, now(), null, null, 1 + i % 100, 0, 10, 0, null, null,
        CASE WHEN i % 10 = 0 THEN jsonb_build_object('limit_key', 'l' || i % 500, 'coordinated', true) END, null, '\x00'
        FROM generate_series(1, 30000) i;
    INSERT INTO howdah.leased SELECT i, i, now(), null, null, i, now(), now(), 1, 1 + i % 100, 1, 10, 0, 'k' || i, null,
        jsonb_build_object('coordinated', true, 'limit_key', 'l' || i % 500), null, '\x00' FROM generate_series(30001, 60000) i;
    INSERT INTO howdah.scheduled SELECT i, i, now(), null, null, now(), null, 1 + i % 100, 0, 10, 0, null, null,
        CASE WHEN i % 2 = 0 THEN '{"coordinated": true}'::jsonb END, null, '\x00' FROM generate_series(60001, 90000) i;
    INSERT INTO howdah.dead SELECT i, i, now(), null, null, null, now(), 1 + i % 100, 10, 10, 0, null, null, null, null, '\x00'
        FROM generate_series(90001, 120000) i;
    INSERT INTO howdah.history SELECT i, now(), now(), now(), i, 1 + i % 100, 'succeeded', 1, 10, 0, null, null, null, null, '\x00', null
        FROM generate_series(120001, 150000) i;
    INSERT INTO howdah.bulk_change (bulk_id, job_id, rank, state, after_ids)
        SELECT 1 + i % 100, i, i, 'waiting', ARRAY[i::bigint - 60000] FROM generate_series(120001, 150000) i;
    INSERT INTO howdah.waiting SELECT i, i, now(), null, null, 1 + i % 100, 0, 10, 0, null, 'l' || i % 500, null,
        jsonb_build_object('coordinated', true, 'limit_key', 'l' || i % 500), null, '\x00' FROM generate_series(150001, 180000) i;
    INSERT INTO howdah.job_key SELECT 1 + i % 100, 'k' || i, i FROM generate_series(30001, 60000) i;
    INSERT INTO howdah.dependency SELECT i, i + 120000 FROM generate_series(30001, 60000) i;
    INSERT INTO howdah.limit_state SELECT 1 + i % 100, 'l' || i, now() FROM generate_series(1, 30000) i;
    INSERT INTO howdah.expiry SELECT now() - interval '1 s', i FROM generate_series(1, 180000) i;
    INSERT INTO howdah.fair_share SELECT 1 + i % 100, 0, 'f' || i, i, 1 FROM generate_series(1, 30000) i;
    INSERT INTO howdah.payload SELECT i, now(), '\x00' FROM generate_series(1, 30000) i;
    INSERT INTO howdah.leaving SELECT i, 1 + i % 100, '{}', '' FROM generate_series(200001, 230000) i;
    INSERT INTO howdah.arrived SELECT 200000000000000 + i, i FROM generate_series(1, 30000) i;
    INSERT INTO howdah.moved SELECT i, 100000000000000 + i FROM generate_series(300001, 330000) i;
    INSERT INTO howdah.request SELECT 'r' || i, '', '{}' FROM generate_series(1, 30000) i;
    SELECT setval('howdah.job_id', seqmin + 999999) FROM pg_sequence WHERE seqrelid = 'howdah.job_id'::regclass"#;

/// A connection that returns the plan of every statement that runs on it, also within functions.
struct Explaining {
    client: Client,
    plans: mpsc::Receiver<String>,
}

impl Explaining {
    async fn connect(database: &TestDatabase, session: &str) -> Self {
        let (client, mut connection) = tokio_postgres::connect(&database.url, NoTls).await.expect("connect");
        let (sender, plans) = mpsc::channel();
        tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notice(notice) = message {
                    let _ = sender.send(notice.message().to_owned());
                }
            }
        });
        client.batch_execute("LOAD 'auto_explain'").await.unwrap_or_else(|error| {
            panic!(
                "auto_explain cannot be loaded, so the plans inside of functions are NOT tested; \
                    it is in Postgres's contrib (postgresql-contrib): {error:?}"
            )
        });
        let settings = "SET auto_explain.log_min_duration = 0; SET auto_explain.log_nested_statements = on;
                        SET auto_explain.log_level = notice; SET client_min_messages = notice";
        client.batch_execute(settings).await.expect("auto_explain");
        client.batch_execute(session).await.expect("session");
        Self { client, plans }
    }

    /// Makes a call in a transaction that is rolled back, and returns its plans. On an empty database the call may
    /// fail.
    async fn plans(&self, call: &str, may_fail: bool) -> Vec<String> {
        self.client.batch_execute("BEGIN").await.expect("begin");
        if let Err(error) = self.client.batch_execute(call).await {
            let ours = error.code().is_some_and(|code| code.code().starts_with("HW"));
            assert!(may_fail && ours, "{call}: {error:?}");
        }
        self.client.batch_execute("ROLLBACK").await.expect("rollback");
        self.plans.try_iter().filter(|notice| notice.contains("Query Text:")).collect()
    }
}

/// Returns the line of the plan that scans one of `TABLES` sequentially and may return rows; `None` without such a line.
/// Partitions have the table's name as prefix.
fn scan(plan: &str) -> Option<&str> {
    plan.lines().find(|line| {
        let Some((_, scanned)) = line.split_once("Seq Scan on ") else { return false };
        let name = scanned.split_whitespace().next().unwrap_or_default();
        let of_jobs = |table: &str| {
            name.strip_prefix(table)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with("_default") || rest.starts_with("_2"))
        };
        TABLES.into_iter().any(of_jobs) && !scanned.contains("(cost=0.00..0.0")
    })
}

/// Whether the plans use an index. With stale statistics, Postgres 18 may instead use a primary key that does not begin with
/// the id, at the same cost.
fn uses(plans: &str, index: &str, state: &str) -> bool {
    let is_used = |index: &str| plans.contains(&format!("using {index} on"));
    let instead = match index {
        "ready_by_id" => "ready_pkey",
        "scheduled_id_key" => "scheduled_pkey",
        "dead_pkey" => "dead_by_type",
        other => other,
    };
    is_used(index) || state == "stale" && is_used(instead)
}

async fn check(database: &TestDatabase, state: &str, session: &str, calls: &[(&str, &[&str])]) {
    let connection = Explaining::connect(database, session).await;
    let is_empty = state == "empty";
    for (call, indexes) in calls {
        let plans = connection.plans(call, is_empty).await;
        assert!(
            plans.len() > 1 || is_empty,
            "{call} ({state}): auto_explain sent no plans of inner statements: {plans:?}"
        );
        for plan in &plans {
            assert_eq!(scan(plan), None, "{call} ({state}) scans:\n{plan}");
        }
        // Does not check indexes on an empty database, where some statements are not reached. Also skips this check with
        // default settings, where the planner may prefer a bitmap scan.
        let all = plans.join("\n");
        for index in indexes.iter().filter(|_| !is_empty && !session.is_empty()) {
            let is_used = index.split('|').any(|index| uses(&all, index, state));
            assert!(is_used, "{call} ({state}) should use {index}:\n{all}");
        }
    }
}

#[tokio::test]
async fn functions_that_brokers_call_use_their_indexes_whatever_the_statistics_say() {
    let database = database().await;
    for (state, change) in [("empty", ""), ("stale", FILL), ("fresh", "ANALYZE")] {
        database.connect().await.batch_execute(change).await.expect(state);
        for calls in [OF_BROKERS, OF_APPLICATIONS] {
            check(&database, state, &Purpose::Hot.session(0), calls).await;
        }
    }
}

#[tokio::test]
async fn an_undo_reads_only_the_part_of_the_journal_that_it_puts_back() {
    let database = database().await;
    database.connect().await.batch_execute(FILL).await.expect("jobs");
    for change in ["", "ANALYZE"] {
        database.connect().await.batch_execute(change).await.expect("statistics");
        let connection = Explaining::connect(&database, &Purpose::Hot.session(0)).await;
        let plans = connection.plans("SELECT howdah.undo_bulk(1, 1, '{120100, 120200}')", false).await;
        let reads: Vec<_> =
            plans.iter().filter(|plan| plan.contains("bulk_change_default_bulk_id_job_id_idx")).collect();
        assert!(reads.len() > 2, "{plans:?}");
        for plan in reads {
            assert!(plan.contains("(job_id >= ") && plan.contains("(job_id <= "), "{plan}");
        }
    }
}

/// The test omits the empty database, where any scan is cheap: VACUUM or ANALYZE invalidates its plans before a table becomes
/// large.
#[tokio::test]
async fn functions_that_applications_call_read_no_table_as_a_whole_when_the_planner_is_free() {
    let database = database().await;
    for (state, change) in [("stale", FILL), ("fresh", "ANALYZE")] {
        database.connect().await.batch_execute(change).await.expect(state);
        check(&database, state, "", OF_APPLICATIONS).await;
    }
}
