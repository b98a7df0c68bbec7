//! Tests fair keys by SQL: jobs that many connections enqueue one per call are served round-robin like other jobs, and brokers
//! are notified of them.

use tokio_postgres::Client;

use super::{one, without_polls};
use crate::support::*;

/// Enqueues one job for each of these fair keys, in this order.
async fn enqueue(client: &Client, keys: &str) {
    for key in keys.chars() {
        client.query("SELECT howdah.enqueue('share', $1::text, fair_key => $1)", &[&key.to_string()]).await.unwrap();
    }
}

/// Returns the fair keys of the ready jobs, in the order in which the jobs run.
async fn order(client: &Client) -> String {
    one(client, "SELECT coalesce(string_agg(options ->> 'fair_key', '' ORDER BY rank, id), '') FROM howdah.ready").await
}

/// Pulls and acks the next jobs.
async fn run(broker: &TestBroker, jobs: i32) {
    let pulled = broker.pull("share").up_to(jobs).await;
    assert_eq!(pulled.len(), jobs as usize);
    broker.settle(pulled.iter().map(ack).collect()).await;
}

#[tokio::test]
async fn fair_keys_take_turns_for_jobs_enqueued_by_grpc_and_by_sql() {
    let broker = TestBroker::start().await;
    let client = broker.database.connect().await;
    enqueue(&client, "aaaaaa").await;
    broker.enqueue_all(vec![new_job("share", "b").fair_key("b"); 2]).await;
    enqueue(&client, "cc").await;
    assert_eq!(order(&client).await, "abcabcaaaa");
    // A job with a new fair key starts in the current round: neither in the first round nor behind all jobs.
    run(&broker, 6).await;
    enqueue(&client, "db").await;
    assert_eq!(order(&client).await, "adbaaa");
    let first = "SELECT last_rank FROM howdah.fair_share WHERE fair_key = 'd'";
    let lowest: i64 = one(&client, "SELECT min(rank) FROM howdah.ready").await;
    assert_eq!(one::<i64>(&client, first).await, lowest);
}

#[tokio::test]
async fn a_flood_of_one_key_holds_up_no_other_and_is_forgotten_when_it_is_over() {
    let broker = TestBroker::start().await;
    let client = broker.database.connect().await;
    enqueue(&client, &"a".repeat(30)).await;
    enqueue(&client, "b").await;
    assert_eq!(&order(&client).await[..2], "ab");
    run(&broker, 31).await;
    // No job is ready, so all fair keys start at the current time, whatever their ranks of an hour ago were.
    let turns = "UPDATE howdah.fair_share SET last_rank = last_rank - 3600000000";
    client.batch_execute(turns).await.unwrap();
    enqueue(&client, "ab").await;
    let now = "SELECT count(DISTINCT rank) = 1 AND min(rank) = min((extract(epoch FROM created) * 1000000)::bigint) FROM howdah.ready";
    assert!(one::<bool>(&client, now).await);
}

/// Sets the rank hint of a task type, at which the search for the lowest rank begins, with its age in seconds. Then enqueues a
/// job with this fair key.
async fn enqueue_after_hint(client: &Client, key: char, of_type: &str, rank: &str, seconds_ago: i32) {
    let sql = format!(
        "SELECT setval(format('howdah.fair_floor_%s', t.id & 7)::regclass,
                       (((t.id {of_type}) >> 3 & 2047)::bigint << 52) | (({rank}) / 1000 << 10)
                       | ((floor(date_part('epoch', clock_timestamp()))::bigint - {seconds_ago}) & 1023))
         FROM howdah.task_type t WHERE t.name = 'share';
         SELECT howdah.enqueue('share', '{key}'::text, fair_key => '{key}')"
    );
    client.batch_execute(&sql).await.unwrap();
}

#[tokio::test]
async fn a_wrong_rank_hint_delays_a_fair_key_for_two_seconds_at_most() {
    let database = database().await;
    let client = database.connect().await;
    enqueue(&client, "aaaa").await;
    let third = "(SELECT rank FROM howdah.ready ORDER BY rank OFFSET 2 LIMIT 1)";
    // A recent hint that is too high: the job with the new fair key comes after two more jobs of a.
    enqueue_after_hint(&client, 'b', "+ 0", third, 0).await;
    assert_eq!(order(&client).await, "aaaba");
    // A hint above all ready jobs has the same effect as an empty queue.
    enqueue_after_hint(&client, 'c', "+ 0", "(SELECT max(rank) + 5000 FROM howdah.ready)", 0).await;
    let begins = "SELECT rank = (extract(epoch FROM created) * 1000000)::bigint FROM howdah.ready WHERE options ->> 'fair_key' = 'c'";
    assert!(one::<bool>(&client, begins).await);
    // A hint from two seconds ago is ignored.
    enqueue_after_hint(&client, 'd', "+ 0", third, 2).await;
    assert_eq!(&order(&client).await[..2], "ad");
    // A hint of another type that shares the sequence is ignored.
    enqueue_after_hint(&client, 'e', "+ 8", third, 0).await;
    assert_eq!(&order(&client).await[..3], "ade");
    // A hint that is too low only makes the search longer.
    enqueue_after_hint(&client, 'f', "+ 0", "(SELECT min(rank) - 60000000 FROM howdah.ready)", 0).await;
    assert_eq!(&order(&client).await[..4], "adef");
}

#[tokio::test]
async fn a_fair_job_is_stored_alike_by_every_sql_function() {
    let broker = TestBroker::start().await;
    let client = broker.database.connect().await;
    client.batch_execute("SELECT howdah.enqueue('share', 'x'::text)").await.unwrap();
    let settings = "UPDATE howdah.task_type SET timeout_ms = 5000, max_attempts = 3";
    client.batch_execute(settings).await.unwrap();
    run(&broker, 1).await;
    // Stops the brokers from aggregating statistics, because the test reads the changes before aggregation.
    client.batch_execute("UPDATE howdah.statistics_sum SET summed = 'infinity'").await.unwrap();
    for sql in [
        "SELECT howdah.enqueue('share', 'y', fair_key => 'f')",
        "SELECT howdah.enqueue('share', 'y'::bytea, fair_key => 'f')",
        "SELECT howdah.enqueue('share', 'y', fair_key => 'f', headers => '{}')",
        "SELECT id FROM howdah.enqueue_batch('[{\"task_type\": \"share\", \"payload\": \"y\", \"fair_key\": \"f\"}]')",
        "SELECT howdah.enqueue('share', repeat('y', 2000), fair_key => 'f')",
    ] {
        client.query(sql, &[]).await.expect(sql);
    }
    let kinds = "SELECT count(DISTINCT (timeout_ms, max_attempts, attempt, priority, options - 'payload_bytes', key, headers)) FROM howdah.ready";
    assert_eq!(one::<i64>(&client, kinds).await, 1);
    let turns = "SELECT array_agg(rank - (SELECT min(rank) FROM howdah.ready) ORDER BY id) FROM howdah.ready";
    assert_eq!(one::<Vec<i64>>(&client, turns).await, [0, 1000, 2000, 3000, 4000]);
    let counted = "SELECT sum(enqueued)::bigint FROM howdah.statistics_change";
    assert!(one::<i64>(&client, counted).await >= 5);
    // An empty fair key means no key. An invalid fair key is refused.
    client.batch_execute("SELECT howdah.enqueue('share', 'z', fair_key => '')").await.unwrap();
    assert_eq!(one::<i64>(&client, "SELECT count(*) FROM howdah.ready WHERE options IS NULL").await, 1);
    super::refused_by_name(&client, "SELECT howdah.enqueue('share', 'z', fair_key => E'a\\nb')", "fair_key ").await;
}

#[tokio::test]
async fn fair_jobs_enqueued_without_a_notification_are_found_by_the_notification_of_another_job() {
    let broker = without_polls().await;
    let mut worker = broker.worker("share").window(1000).await;
    let clients = [broker.database.connect().await, broker.database.connect().await, broker.database.connect().await];
    for n in 0..90 {
        let sql = format!("SELECT howdah.enqueue('share', '{n}', fair_key => 'f{}')", n % 7);
        clients[n % 3].batch_execute(&sql).await.unwrap();
    }
    let mut ids = std::collections::HashSet::new();
    while ids.len() < 90 {
        let job = worker.next().await;
        assert!(ids.insert(job.id));
    }
}

/// Enqueues a job while another connection seems to be notifying brokers of jobs whose ranks begin `from` µs after the current
/// time. Returns the number of notifications that this transaction sends.
async fn notified_beside(client: &Client, database: &TestDatabase, from: i64) -> i64 {
    let calls = "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_user_functions WHERE schemaname = 'howdah' AND funcname = 'notify'";
    let before = database.count(calls).await;
    let sql = format!(
        "BEGIN;
         SELECT setval(format('howdah.fair_announced_from_%s', t.id & 7)::regclass, howdah.rank_now() + {from}),
                setval(format('howdah.fair_announced_%s', t.id & 7)::regclass, howdah.announcement_mark(t.id, howdah.rank_now()) # 1)
         FROM howdah.task_type t WHERE t.name = 'share';
         SELECT howdah.enqueue('share', 'x', fair_key => 'x');
         COMMIT"
    );
    client.batch_execute(&sql).await.unwrap();
    client.batch_execute("SELECT pg_stat_force_next_flush()").await.unwrap();
    database.count(calls).await - before
}

#[tokio::test]
async fn an_enqueue_of_a_fair_job_notifies_brokers_only_if_its_rank_is_below_the_announced_one() {
    let database = database().await;
    let client = database.connect().await;
    enqueue(&client, "a").await;
    client.batch_execute("SET track_functions = 'pl'").await.unwrap();
    for _ in 0..5 {
        assert_eq!(notified_beside(&client, &database, 60_000_000).await, 1);
    }
    // Repeats the call: on a slow machine, the transaction may be older than the other connection's notification, and then
    // sends its own.
    let silent = async { while notified_beside(&client, &database, -60_000_000).await > 0 {} };
    with_timeout("an enqueue without a notification", silent).await;
}

#[tokio::test]
async fn many_connections_with_fair_keys_do_not_notify_in_each_transaction() {
    let database = database().await;
    let [first, second] = [database.connect().await, database.connect().await];
    let at_once = async |client: &Client, key: &str| {
        for sql in [
            "SET track_functions = 'pl'".to_owned(),
            format!(
                "DO $$ BEGIN FOR i IN 1..2000 LOOP PERFORM howdah.enqueue('t', '', fair_key => '{key}'); COMMIT; END LOOP; END $$"
            ),
            "SELECT pg_stat_force_next_flush()".to_owned(),
        ] {
            client.batch_execute(&sql).await.expect(&sql);
        }
    };
    database.connect().await.batch_execute("SELECT howdah.enqueue('t')").await.unwrap();
    let calls = "SELECT calls FROM pg_stat_user_functions WHERE schemaname = 'howdah' AND funcname = 'notify'";
    let (mut stored, mut before) = (1, 0);
    // Both connections must run concurrently. If they run one after the other, each notifies brokers of all its jobs,
    // and the round is repeated.
    let both_run = async {
        loop {
            tokio::join!(at_once(&first, "f"), at_once(&second, "g"));
            stored += 4000;
            assert_eq!(database.count("SELECT count(*) FROM howdah.ready").await, stored);
            until(
                &database,
                "the calls in the function statistics",
                &format!("SELECT coalesce(({calls}), 0) > {before}"),
            )
            .await;
            let all = database.count(calls).await;
            if all - before < 3900 {
                break;
            }
            before = all;
        }
    };
    with_timeout("two that announce less than 3900 of 4000", both_run).await;
}
