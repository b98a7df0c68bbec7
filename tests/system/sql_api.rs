//! Tests the SQL client interface: functions of the schema in the application's transactions, with psql, psycopg, node-postgres
//! and tokio-postgres.

mod columns; // columns of the view and its documentation
mod drivers; // psql, psycopg
mod encoding; // databases with other encodings than UTF-8
mod fairness; // fair keys over many connections
mod grants; // permissions of roles on task types
mod exactly_once; // an ack in the transaction of the job's writes
mod limits; // limits of task types
mod node; // node-postgres
mod options; // every option, and invalid ones
mod refusals; // errors that name the argument
mod rights; // roles, injection
mod schedules; // schedules
mod two_phase; // PREPARE TRANSACTION

use howdah_core::config::Config;
use howdah_proto::v1;
use tokio_postgres::{Client, error::SqlState};

use crate::support::*;

/// Queries one value.
async fn one<T: for<'a> tokio_postgres::types::FromSql<'a>>(client: &Client, sql: &str) -> T {
    client.query_one(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
}

/// Runs a statement that must be refused, and returns its SQLSTATE and message.
async fn refused(client: &Client, sql: &str) -> (SqlState, String) {
    let error = client.query(sql, &[]).await.expect_err(sql);
    let error = error.as_db_error().unwrap_or_else(|| panic!("{sql}: {error:?}"));
    (error.code().clone(), error.message().to_owned())
}

/// Asserts that a statement is refused as invalid input, that the message begins with `message`, and that the error names the
/// argument in COLUMN.
async fn refused_by_name(client: &Client, sql: &str, message: &str) {
    let error = client.query(sql, &[]).await.expect_err(sql);
    let error = error.as_db_error().unwrap_or_else(|| panic!("{sql}: {error:?}"));
    assert_eq!(*error.code(), SqlState::INVALID_PARAMETER_VALUE, "{sql}: {error:?}");
    assert!(error.message().starts_with(message), "{sql}: {error:?}");
    let column = error.column().unwrap_or_else(|| panic!("{sql}: no column: {error:?}"));
    assert!(message.strip_prefix(column).is_some_and(|rest| rest.starts_with(' ')), "{sql}: {column}: {message}");
}

/// Number of jobs in any state.
async fn jobs(database: &TestDatabase) -> i64 {
    database.count("SELECT count(*) FROM howdah.job").await
}

/// Starts a broker with a poll interval of an hour, so that its workers get only jobs that notifications announce.
async fn without_polls() -> TestBroker {
    TestBroker::start_with(rare_polls).await
}

fn rare_polls(config: &mut Config) {
    config.poll_interval = HOUR;
}

#[tokio::test]
async fn the_view_says_at_which_broker_a_running_job_is() {
    let broker = TestBroker::start_with(|config| config.name = "left".into()).await;
    broker.enqueue_all(["streamed", "pulled"]).await;
    let mut worker = broker.worker("streamed").await;
    worker.next().await;
    broker.pull("pulled").await;
    let client = broker.database.connect().await;
    let held = "SELECT string_agg(task_type || ' at ' || coalesce(broker, 'none'), ', ' ORDER BY id) FROM howdah.job";
    assert_eq!(one::<String>(&client, held).await, "streamed at left, pulled at none");
}

#[tokio::test]
async fn a_job_exists_and_is_announced_when_its_transaction_commits() {
    let (broker, _other) = TestBroker::pair_with(rare_polls).await;
    let mut worker = broker.worker("order.made").await;
    let client = broker.database.connect().await;
    client.batch_execute("CREATE TABLE orders (id bigint PRIMARY KEY, job bigint); BEGIN").await.unwrap();
    client.execute("INSERT INTO orders VALUES (7, howdah.enqueue('order.made', '7'))", &[]).await.unwrap();
    assert_eq!(jobs(&broker.database).await, 0, "the job is visible before the commit");
    client.batch_execute("COMMIT").await.unwrap();
    let job = worker.next().await;
    assert_eq!((&job.payload[..], job.attempt, job.max_attempts), (&b"7"[..], 1, 10));
    assert_eq!(one::<i64>(&client, "SELECT job FROM orders").await, job.id);
    worker.ack(&job).await;
}

#[tokio::test]
async fn a_rollback_leaves_nothing_behind() {
    let database = database().await;
    let client = database.connect().await;
    client.batch_execute("LISTEN howdah_wake; BEGIN").await.unwrap();
    for sql in [
        "SELECT howdah.enqueue('roll.back', 'x')",
        "SELECT howdah.enqueue('roll.back', 'x', fair_key => 'f')",
        "SELECT howdah.enqueue('roll.back', repeat('x', 5000), key => 'k', limit_key => 'l', delay => '1 h', request_key => 'r')",
        "SELECT howdah.enqueue_many('roll.back', ARRAY['a', 'b'])",
        "SELECT howdah.enqueue_batch('[{\"task_type\": \"roll.back\", \"local_name\": \"a\"},
                                      {\"task_type\": \"roll.back\", \"after_local\": [\"a\"]}]'::jsonb)",
    ] {
        client.query(sql, &[]).await.expect(sql);
    }
    client.batch_execute("ROLLBACK").await.unwrap();
    for table in
        ["job", "payload", "job_key", "request", "dependency", "expiry", "limit_state", "fair_share", "task_type"]
    {
        assert_eq!(database.count(&format!("SELECT count(*) FROM howdah.{table}")).await, 0, "{table}");
    }
}

#[tokio::test]
async fn brokers_are_notified_of_every_job_that_becomes_ready_by_sql() {
    let broker = without_polls().await;
    let mut worker = broker.worker("t").await;
    let client = broker.database.connect().await;
    for sql in [
        "SELECT howdah.enqueue('t', 'plain')",
        "SELECT howdah.enqueue('t', 'urgent', priority => -10)",
        "SELECT howdah.enqueue('t', 'keyed', key => 'k')",
        "SELECT howdah.enqueue('t', repeat('x', 5000))",
        "SELECT howdah.enqueue('t', 'soon', delay => '10 ms')",
        "SELECT howdah.enqueue('t', 'limited', limit_key => 'l')",
        "SELECT howdah.enqueue('t', 'fair', fair_key => 'f')",
        "SELECT howdah.enqueue('t', 'fair again', fair_key => 'f')",
        "SELECT howdah.enqueue_many('t', ARRAY['many'])",
        "SELECT howdah.enqueue_batch('[{\"task_type\": \"t\", \"payload\": {\"a\": 1}}]'::jsonb)",
    ] {
        client.query(sql, &[]).await.expect(sql);
        let job = worker.next().await;
        // Makes the job ready again, by SQL.
        let (id, token) = (job.id, job.token);
        let state: String = one(&client, &format!("SELECT howdah.fail({id}, {token}, 'no', '0 s')")).await;
        assert_eq!(state, "ready", "{sql}");
        let job = worker.next().await;
        assert_eq!((job.id, job.attempt), (id, 2), "{sql}");
        worker.ack(&job).await;
    }
}

#[tokio::test]
async fn jobs_enqueued_without_a_notification_are_found_by_the_notification_of_another_job() {
    let broker = without_polls().await;
    let mut worker = broker.worker("t").window(1000).await;
    // Three connections enqueue in turn, so that transactions begin while another one announces (notifies brokers of)
    // its job.
    let clients = [broker.database.connect().await, broker.database.connect().await, broker.database.connect().await];
    for n in 0..90 {
        clients[n % 3].batch_execute(&format!("SELECT howdah.enqueue('t', '{n}')")).await.unwrap();
    }
    let mut ids = std::collections::HashSet::new();
    while ids.len() < 90 {
        let job = worker.next().await;
        assert!(ids.insert(job.id));
    }
}

#[tokio::test]
async fn a_rolled_back_enqueue_does_not_suppress_the_next_notification() {
    let broker = without_polls().await;
    let mut worker = broker.worker("t").await;
    let client = broker.database.connect().await;
    for _ in 0..20 {
        client.batch_execute("BEGIN; SELECT howdah.enqueue('t'); ROLLBACK; SELECT howdah.enqueue('t')").await.unwrap();
        let job = worker.next().await;
        worker.ack(&job).await;
    }
}

#[tokio::test]
async fn many_connections_do_not_notify_in_each_transaction() {
    let database = database().await;
    let [first, second] = [database.connect().await, database.connect().await];
    let at_once = async |client: &Client| {
        for sql in [
            "SET track_functions = 'pl'; SELECT howdah.enqueue('t')",
            "DO $$ BEGIN FOR i IN 1..2000 LOOP PERFORM howdah.enqueue('t'); COMMIT; END LOOP; END $$",
            "SELECT pg_stat_force_next_flush()",
        ] {
            client.batch_execute(sql).await.expect(sql);
        }
    };
    let calls = "SELECT calls FROM pg_stat_user_functions WHERE schemaname = 'howdah' AND funcname = 'announce'";
    let (mut stored, mut before) = (0, 0);
    // Both connections must run concurrently. If they run one after the other, each notifies brokers of all its jobs,
    // and the round is repeated.
    let both_run = async {
        loop {
            tokio::join!(at_once(&first), at_once(&second));
            stored += 4002;
            assert_eq!(database.count("SELECT count(*) FROM howdah.ready").await, stored);
            until(
                &database,
                "the calls in the function statistics",
                &format!("SELECT coalesce(({calls}), 0) > {before}"),
            )
            .await;
            let all = database.count(calls).await;
            // Of connections that run concurrently, only one notifies brokers at a time, so fewer calls are counted
            // than jobs.
            if all - before < 3900 {
                break;
            }
            before = all;
        }
    };
    with_timeout("two that announce less than 3900 of 4002", both_run).await;
}

#[tokio::test]
async fn a_hundred_thousand_jobs_in_one_transaction_are_announced_as_one() {
    let broker = without_polls().await;
    let mut worker = broker.worker("t").await;
    let client = broker.database.connect().await;
    let stored: i64 = one(&client, "SELECT count(howdah.enqueue('t', n::text)) FROM generate_series(1, 5000) n").await;
    assert_eq!(stored, 5_000);
    let sql = "SELECT count(*) FROM howdah.enqueue_many('t', ARRAY(SELECT n::text FROM generate_series(1, 95000) n))";
    assert_eq!(one::<i64>(&client, sql).await, 95_000);
    assert_eq!(&worker.next().await.payload[..], b"1", "the first job runs first");
    // Counts the jobs of both tables in one snapshot, because jobs move between the tables.
    let there = "SELECT (SELECT count(*) FROM howdah.ready) + (SELECT count(*) FROM howdah.leased)";
    assert_eq!(broker.count(there).await, 100_000);
}

#[tokio::test]
async fn a_trigger_enqueues_each_change_of_a_table() {
    let database = database().await;
    let client = database.connect().await;
    client
        .batch_execute(
            "CREATE SCHEMA \"my app\"; CREATE TABLE \"my app\".\"Order\" (id int PRIMARY KEY, item text);
             SELECT howdah.on_change('\"my app\".\"Order\"', 'order.changed');
             SELECT howdah.on_change('\"my app\".\"Order\"', 'order.changed');
             INSERT INTO \"my app\".\"Order\" VALUES (1, 'tea'), (2, 'jam');
             UPDATE \"my app\".\"Order\" SET item = 'rum' WHERE id = 2;
             DELETE FROM \"my app\".\"Order\" WHERE id = 1",
        )
        .await
        .unwrap();
    client.batch_execute("BEGIN; DELETE FROM \"my app\".\"Order\"; ROLLBACK").await.unwrap();
    let changes: String = one(
        &client,
        "SELECT string_agg(headers ->> 'operation' || ' ' || (convert_from(payload, 'UTF8')::jsonb ->> 'item'), ', ' ORDER BY id)
         FROM howdah.job WHERE task_type = 'order.changed' AND headers ->> 'table' = '\"my app\".\"Order\"'",
    )
    .await;
    assert_eq!(changes, "insert tea, insert jam, update rum, delete tea");
}

/// A second call of `on_change` must leave its trigger disabled or enabled as an operator has set it. The apply worker of
/// logical replication runs with `session_replication_role = replica`, which the end of this test sets.
#[tokio::test]
async fn a_second_call_of_on_change_leaves_its_trigger_as_it_is_set() {
    let database = database().await;
    let client = database.connect().await;
    let long = "t".repeat(200);
    client.batch_execute("CREATE TABLE public.orders (id int)").await.unwrap();
    for task_type in ["order.changed", &long] {
        let call = format!("SELECT howdah.on_change('public.orders', '{task_type}')");
        let trigger: String = one(&client, &call).await;
        for (state, set) in [("D", "DISABLE"), ("A", "ENABLE ALWAYS"), ("R", "ENABLE REPLICA"), ("O", "ENABLE")] {
            client.batch_execute(&format!("ALTER TABLE public.orders {set} TRIGGER \"{trigger}\"")).await.unwrap();
            assert_eq!(one::<String>(&client, &call).await, trigger);
            let now = "SELECT string_agg(DISTINCT tgenabled::text, '') FROM pg_trigger WHERE tgname = ";
            assert_eq!(one::<String>(&client, &format!("{now}'{trigger}'")).await, state);
        }
    }
    client.batch_execute("SET session_replication_role = replica; INSERT INTO public.orders VALUES (1)").await.unwrap();
    assert_eq!(database.count("SELECT count(*) FROM howdah.job").await, 0);
    client
        .batch_execute(
            "ALTER TABLE public.orders ENABLE ALWAYS TRIGGER \"howdah_order.changed\"; INSERT INTO public.orders VALUES (2)",
        )
        .await
        .unwrap();
    let jobs = "SELECT count(*) FROM howdah.job WHERE task_type = 'order.changed'";
    assert_eq!(database.count(jobs).await, 1);
}

#[tokio::test]
async fn triggers_of_long_types_do_not_replace_each_other() {
    let database = database().await;
    let client = database.connect().await;
    client.batch_execute("CREATE TABLE public.orders (id int)").await.unwrap();
    let mut names = std::collections::HashSet::new();
    // Tests task types whose trigger names are about as long as a Postgres identifier may be, or longer.
    for (length, last) in [(56, 'a'), (57, 'a'), (57, 'b'), (200, 'a'), (200, 'b')] {
        let task_type = format!("{}{last}", "t".repeat(length - 1));
        for _ in 0..2 {
            let call = format!("SELECT howdah.on_change('public.orders', '{task_type}')");
            names.insert(one::<String>(&client, &call).await);
        }
    }
    assert_eq!(names.len(), 5);
    assert!(names.contains(&format!("howdah_{}a", "t".repeat(55))));
    client.batch_execute("INSERT INTO public.orders VALUES (1)").await.unwrap();
    assert_eq!(database.count("SELECT count(DISTINCT task_type) FROM howdah.job").await, 5);
    for name in names {
        client.batch_execute(&format!("DROP TRIGGER \"{name}\" ON public.orders")).await.unwrap();
    }
}

#[tokio::test]
async fn cancel_retry_now_and_reprioritize_work_by_sql() {
    let broker = without_polls().await;
    let client = broker.database.connect().await;
    let id: i64 = one(&client, "SELECT howdah.enqueue('t', 'x', delay => '1 day', key => 'k')").await;
    assert!(one::<bool>(&client, &format!("SELECT howdah.reprioritize({id}, -7)")).await);
    assert!(one::<bool>(&client, &format!("SELECT howdah.retry_now({id})")).await);
    let mut worker = broker.worker("t").await;
    let job = worker.next().await;
    assert_eq!(job.id, id);
    assert_eq!(broker.count("SELECT priority::bigint FROM howdah.leased").await, -7);
    let dead: String =
        one(&client, &format!("SELECT howdah.fail({id}, {}, 'broken', no_retry => true)", job.token)).await;
    assert_eq!(dead, "dead");
    // A dead job does not hold its key. It cannot be retried while another job holds the key.
    let other: i64 = one(&client, "SELECT howdah.enqueue('t', 'y', key => 'k', delay => '1 day')").await;
    assert_ne!(other, id);
    let (code, message) = refused(&client, &format!("SELECT howdah.retry_now({id})")).await;
    assert_eq!((code.code(), message), ("HW002", format!("another job holds the key \"k\" of job {id}")));
    assert!(one::<bool>(&client, &format!("SELECT howdah.cancel({other})")).await);
    assert!(one::<bool>(&client, &format!("SELECT howdah.retry_now({id})")).await);
    let job = worker.next().await;
    assert_eq!((job.id, job.attempt), (id, 1));
    // Cancelling a job by SQL notifies its worker.
    assert!(one::<bool>(&client, &format!("SELECT howdah.cancel({id})")).await);
    let cancel = worker.cancelled().await;
    assert_eq!(cancel.id, id);
    for call in [format!("cancel({id})"), format!("retry_now({id})"), format!("reprioritize({id}, 1)")] {
        assert!(!one::<bool>(&client, &format!("SELECT howdah.{call}")).await, "{call} of a finished job");
    }
}

#[tokio::test]
async fn a_failure_by_sql_stores_the_same_row_as_a_nack_by_grpc() {
    let broker = TestBroker::start().await;
    let client = broker.database.connect().await;
    let sql = "SELECT howdah.enqueue('t', 'x', retry_policy => '{\"kind\": \"list\", \"delays\": [\"1 h\", \"2 h\"], \"jitter\": 0}',
                                     max_attempts => 2, priority => 3, fallback => 'second') FROM generate_series(1, 2)";
    client.query(sql, &[]).await.unwrap();
    let mut worker = broker.worker("t").await;
    for attempt in 1..=2 {
        let (a, b) = (worker.next().await, worker.next().await);
        worker.nack(&a, "no").await;
        let state: String = one(&client, &format!("SELECT howdah.fail({}, {}, 'no')", b.id, b.token)).await;
        assert_eq!(state, if attempt == 1 { "scheduled" } else { "fallback" });
        let table = if attempt == 1 { "scheduled" } else { "ready" };
        let same = format!(
            "SELECT count(DISTINCT ((to_jsonb(j) - '{{id,rank,created,last_token,run_at,leased_at,failures}}'::text[])::text
                             || (failures #- '{{-1,failed}}' #- '{{-1,started}}' #- '{{0,failed}}' #- '{{0,started}}')::text))
             FROM howdah.{table} j");
        assert_eq!(broker.count(&same).await, 1, "attempt {attempt}");
        assert_eq!(broker.count(&format!("SELECT count(*) FROM howdah.{table}")).await, 2);
        if attempt == 1 {
            let due = "SELECT count(*) FROM howdah.scheduled WHERE run_at - now() BETWEEN interval '50 min' AND interval '1 h'";
            assert_eq!(broker.count(due).await, 2);
            client.batch_execute("SELECT howdah.retry_now(id) FROM howdah.job").await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_job_retried_or_snoozed_by_sql_waits_for_its_limit_key() {
    let broker = without_polls().await;
    let mut worker = broker.worker("t").await;
    let client = broker.database.connect().await;
    for call in ["fail($1, $2, 'no', '0 s')", "snooze($1, $2, '0 s')"] {
        client.query("SELECT howdah.enqueue('t', 'x', limit_key => 'l')", &[]).await.unwrap();
        let job = worker.next().await;
        broker.pause_key("t", "l").await;
        let row = client.query_one(&format!("SELECT howdah.{call}"), &[&job.id, &job.token]).await.unwrap();
        assert_eq!(row.get::<_, &str>(0), "waiting", "{call}");
        broker.resume_key("t", "l").await;
        let again = worker.next().await;
        assert_eq!(again.id, job.id);
        worker.ack(&again).await;
    }
}

#[tokio::test]
async fn sql_functions_that_end_or_extend_a_lease_need_its_token() {
    let broker = TestBroker::start().await;
    let client = broker.database.connect().await;
    client.query("SELECT howdah.enqueue('t', timeout => '1 h')", &[]).await.unwrap();
    let mut worker = broker.worker("t").await;
    let v1::LeasedJob { id, token, .. } = worker.next().await;
    let left: f64 =
        one(&client, &format!("SELECT extract(epoch FROM howdah.extend({id}, {token}, '2 h') - now())::float8 / 3600"))
            .await;
    assert!((1.9..2.1).contains(&left), "{left}");
    let stale = token ^ 1;
    for call in [
        format!("extend({id}, {stale}, '1 h')"),
        format!("snooze({id}, {stale}, '1 h')"),
        format!("complete({id}, {stale})"),
        format!("fail({id}, {stale}, 'x')"),
        "complete(0, 0)".to_owned(),
    ] {
        assert_eq!(refused(&client, &format!("SELECT howdah.{call}")).await.0.code(), "HW003", "{call}");
    }
    let state: String = one(&client, &format!("SELECT howdah.snooze({id}, {token}, '1 h')")).await;
    assert_eq!(state, "scheduled");
    assert_eq!(broker.count("SELECT attempt::bigint FROM howdah.scheduled").await, 0, "the attempt does not count");
    broker.until("nothing is leased", "SELECT count(*) = 0 FROM howdah.leased").await;
    drop(worker);
    broker.stop().await;
}

#[tokio::test]
async fn an_operator_takes_a_job_from_a_worker_that_hangs() {
    let broker = TestBroker::start().await;
    let ids = broker.enqueue_all([new_job("hangs", "1"), new_job("hangs", "2").retry_after_each(HOUR)]).await;
    let mut worker = broker.worker("hangs").window(2).await;
    let jobs = worker.take(2).await;
    worker.window("hangs", 0).await;
    let client = broker.database.connect().await;
    let end = "SELECT howdah.end_lease($1, $2)";
    let state = client.query_one(end, &[&ids[0], &None::<&str>]).await.unwrap();
    assert_eq!(state.get::<_, Option<&str>>(0), Some("ready"));
    assert_eq!(worker.cancelled().await.id, ids[0]);
    let state = client.query_one(end, &[&ids[1], &Some("it hangs")]).await.unwrap();
    assert_eq!(state.get::<_, Option<&str>>(0), Some("scheduled"));
    assert_eq!(worker.cancelled().await.id, ids[1]);
    for job in &jobs {
        assert_eq!(worker.nack(job, "late").status().await, v1::SettleStatus::LeaseLost);
    }
    let failed = broker.job(ids[1]).await;
    assert_eq!((failed.attempt, &failed.failures[0].error[..]), (1, "it hangs"));
    assert_eq!(broker.job(ids[0]).await.attempt, 0);
    let nobody = client.query_one(end, &[&ids[0], &None::<&str>]).await.unwrap();
    assert_eq!(nobody.get::<_, Option<&str>>(0), None);
}
