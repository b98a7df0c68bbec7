//! Tests limits of a task type that are set by an SQL function.

use super::*;

#[tokio::test]
async fn limits_set_by_sql_hold_at_the_commit_and_without_a_poll() {
    let broker = without_polls().await;
    let client = broker.database.connect().await;
    assert!(one::<bool>(&client, "SELECT howdah.set_limits('t', max_running => 1)").await);
    let applied = "SELECT coalesce(bool_and(b.settings_version = s.version), false) FROM howdah.broker b CROSS JOIN howdah.settings s";
    broker.until("the limit at the broker", applied).await;
    broker.enqueue_all(["t"; 2]).await;
    let mut worker = broker.worker("t").window(2).await;
    worker.next().await;
    assert_eq!(broker.count("SELECT count(*) FROM howdah.leased").await, 1);
    client.batch_execute("BEGIN; SELECT howdah.set_limits('t', max_running => 5); ROLLBACK").await.unwrap();
    assert_eq!(broker.count("SELECT max_running::bigint FROM howdah.task_type WHERE name = 't'").await, 1);
    assert!(one::<bool>(&client, "SELECT howdah.set_limits('t', max_running => 0)").await);
    worker.next().await;
    let audit = "SELECT string_agg(array_to_string(changes, ', '), '; ' ORDER BY time) FROM howdah.audit WHERE method = 'howdah.set_limits'";
    assert_eq!(one::<String>(&client, audit).await, "max_running: unset -> 1; max_running: 1 -> unset");
}

#[tokio::test]
async fn an_omitted_limit_stays_and_0_removes_it() {
    let database = database().await;
    let client = database.connect().await;
    for (arguments, changed, limits) in [
        (
            "rate => 2.5, rate_burst => 5, key_max_running => 1, key_strict_order => true",
            true,
            r#"{"key_strict": true, "rate_burst": 5, "rate_per_s": 2.5, "key_max_running": 1}"#,
        ),
        (
            "key_min_gap => '1.5 s', rate => 3",
            true,
            r#"{"key_strict": true, "rate_burst": 5, "rate_per_s": 3, "key_min_gap_ms": 1500, "key_max_running": 1}"#,
        ),
        (
            "key_gap_from_end => true, key_strict_order => false",
            true,
            r#"{"rate_burst": 5, "rate_per_s": 3, "key_min_gap_ms": 1500, "key_max_running": 1, "key_gap_from_end": true}"#,
        ),
        (
            "rate => 3",
            false,
            r#"{"rate_burst": 5, "rate_per_s": 3, "key_min_gap_ms": 1500, "key_max_running": 1, "key_gap_from_end": true}"#,
        ),
        ("rate => 0, key_min_gap => '0'", true, r#"{"key_max_running": 1}"#),
        (
            "key_rate => 1, key_rate_burst => 2, key_max_running => 0",
            true,
            r#"{"key_rate_burst": 2, "key_rate_per_s": 1}"#,
        ),
    ] {
        assert_eq!(
            one::<bool>(&client, &format!("SELECT howdah.set_limits('t', {arguments})")).await,
            changed,
            "{arguments}"
        );
        let found: String = one(&client, "SELECT howdah.limits_of(t)::text FROM howdah.task_type t").await;
        assert_eq!(found, limits, "{arguments}");
    }
}

#[tokio::test]
async fn invalid_limits_are_refused_by_name_and_change_nothing() {
    let database = database().await;
    let client = database.connect().await;
    for (arguments, message) in [
        ("'a b', max_running => 1", "task_type is \"a b\"; 1 to 200"),
        ("'t', max_running => -1", "max_running is -1; at most 1000000 is allowed, and 0 for no limit"),
        ("'t', rate => 'NaN'", "rate is NaN; at most 1000000"),
        (
            "'t', rate => 5e-324, rate_burst => 1",
            "rate is 0.00000000000000000000000000000000000000; 0.000001 to 1000000 a second",
        ),
        ("'t', rate => 5", "rate_burst is not set; 1 to 1000000 is allowed; for no limit set rate to 0"),
        ("'t', rate_burst => 5", "rate is not set; set it, or leave rate_burst out"),
        ("'t', key_rate => 1000001, key_rate_burst => 1", "key_rate is 1000001; at most 1000000"),
        ("'t', key_strict_order => true", "key_strict_order is set without key_max_running; set that too"),
        ("'t', key_gap_from_end => true", "key_gap_from_end is set without key_min_gap; set that too"),
        ("'t', key_min_gap => '31 days'", "key_min_gap is 31 days; 00:00:00 to 30 days is allowed"),
    ] {
        refused_by_name(&client, &format!("SELECT howdah.set_limits({arguments})"), message).await;
    }
    assert_eq!(database.count("SELECT count(*) FROM howdah.task_type").await, 0);
}

#[tokio::test]
async fn a_transaction_sets_the_limit_of_one_limit_key() {
    let broker = TestBroker::start().await;
    let client = broker.database.connect().await;
    broker.enqueue_all((0..3).map(|_| new_job("t", "").limit_key("it's x"))).await;
    client.batch_execute("BEGIN; SELECT howdah.set_key_limits('t', 'it''s x', 1); ROLLBACK").await.unwrap();
    for (call, changes) in [("'t', 'it''s x', 2", true), ("'t', 'it''s x', max_running => 2", false)] {
        assert_eq!(one::<bool>(&client, &format!("SELECT howdah.set_key_limits({call})")).await, changes, "{call}");
    }
    assert!(!one::<bool>(&client, "SELECT howdah.set_key_limits('t', 'it''s x')").await);
    broker.until("two ready jobs", "SELECT count(*) = 2 FROM howdah.ready").await;
    assert!(one::<bool>(&client, "SELECT howdah.set_key_limits('t', 'it''s x', 0)").await);
    broker.until("three ready jobs", "SELECT count(*) = 3 FROM howdah.ready").await;
    let audit =
        "SELECT string_agg(ids[1] || ' ' || array_to_string(changes, ', '), '; ' ORDER BY time) FROM howdah.audit
        WHERE method = 'howdah.set_key_limits'";
    let changes = one::<String>(&client, audit).await;
    assert_eq!(changes, "it's x max_running: unset -> 2; it's x max_running: 2 -> unset");
    for (arguments, message) in [
        ("'t', ''", "limit_key is empty; name a limit key"),
        ("'t', NULL, 1", "limit_key is empty; name a limit key"),
        ("'t', E'a\\n', 1", "limit_key "),
        ("'t', 'x', -1", "max_running is -1; at most 1000000 is allowed, and 0 for no limit"),
        ("'a b', 'x', 1", "task_type is "),
    ] {
        refused_by_name(&client, &format!("SELECT howdah.set_key_limits({arguments})"), message).await;
    }
}
