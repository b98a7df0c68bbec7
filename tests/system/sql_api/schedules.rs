//! Tests schedules that are created, changed and deleted by SQL functions.

use howdah_client::{NewSchedule, Plan};
use howdah_proto::v1::{KeyPolicy, MissedPolicy, OverlapPolicy, RetryPolicyKind, new_job::Start, schedule};

use super::{rights::login, *};

/// Waits until a broker has planned the schedule, and returns it.
async fn planned(broker: &TestBroker, name: &str) -> v1::Schedule {
    let sql = format!("SELECT next_planned IS NOT NULL FROM howdah.schedule WHERE name = '{name}'");
    broker.until("a planned time", &sql).await;
    broker.client().await.get_schedule(name).await.expect("get").expect("a schedule")
}

#[tokio::test]
async fn a_schedule_by_sql_is_planned_within_a_second_and_has_every_option() {
    let broker = without_polls().await;
    let client = broker.database.connect().await;
    let sql = "SELECT howdah.schedule('nightly', 'report', '{\"a\": 1}'::jsonb, cron => '0 3 * * *', time_zone => 'Europe/Berlin',
        overlap => 'skip', missed => 'all', missed_limit => 3, end_time => '2096-01-01', jitter => '90 s',
        headers => '{\"tenant\": \"b\"}', priority => -5, key => 'k', key_policy => 'replace', key_hold => '1.5 s', max_attempts => 3,
        timeout => '30 s', delay => '2 min', retry_policy => '{\"kind\": \"list\", \"delays\": [\"1 min\", \"2 h\"], \"jitter\": 0.5}',
        fallback => 'f', next_stages => '{s1,s2}', tags => '{one,two}', limit_key => 'l')";
    assert!(one::<bool>(&client, sql).await);
    let made = planned(&broker, "nightly").await;
    assert_eq!(made.next_times.len(), 10);
    let cron = v1::Cron { expression: "0 3 * * *".into(), time_zone: "Europe/Berlin".into() };
    assert_eq!(made.plan, Some(schedule::Plan::Cron(cron)));
    assert_eq!((made.overlap(), made.missed(), made.missed_limit), (OverlapPolicy::Skip, MissedPolicy::All, 3));
    assert_eq!((made.jitter, made.end_time.is_some()), (Some(wire(secs(90))), true));
    let job = made.template.expect("a job");
    assert_eq!((job.task_type.as_str(), &job.payload[..]), ("report", &br#"{"a": 1}"#[..]));
    assert_eq!((job.priority, job.key.as_str(), job.key_policy()), (-5, "k", KeyPolicy::Replace));
    assert_eq!((job.key_hold, job.timeout), (Some(wire(millis(1_500))), Some(wire(secs(30)))));
    assert_eq!((job.start, job.max_attempts), (Some(Start::Delay(wire(secs(120)))), 3));
    let retry = job.retry_policy.expect("a policy");
    assert_eq!((retry.kind(), retry.jitter), (RetryPolicyKind::List, Some(0.5)));
    assert_eq!(retry.delays, [wire(MINUTE), wire(HOUR * 2)]);
    assert_eq!(
        (job.fallback.as_str(), job.next_stages, job.tags),
        ("f", vec!["s1".into(), "s2".into()], vec!["one".into(), "two".into()])
    );
    assert_eq!((job.headers["tenant"].as_str(), job.limit_key.as_str()), ("b", "l"));
    // A repeated call changes nothing.
    assert!(!one::<bool>(&client, sql).await);
    let audit = "SELECT string_agg(principal || ' ' || array_to_string(ids || types, ' '), ', ') FROM howdah.audit WHERE method = 'howdah.schedule'";
    let role: String = one(&client, "SELECT session_user::text").await;
    assert_eq!(one::<String>(&client, audit).await, format!("sql:{role} nightly report"));
}

#[tokio::test]
async fn a_schedule_exists_when_its_transaction_commits_and_its_period_fires_at_once() {
    let broker = without_polls().await;
    let mut worker = broker.worker("t").await;
    let client = broker.database.connect().await;
    client.batch_execute("BEGIN; SELECT howdah.schedule('gone', 't', every => '1 s'); ROLLBACK").await.unwrap();
    client.batch_execute("BEGIN; SELECT howdah.schedule('s', 't', 'p', every => '1 hour')").await.unwrap();
    assert_eq!(broker.count("SELECT count(*) FROM howdah.schedule").await, 0, "visible before the commit");
    client.batch_execute("COMMIT").await.unwrap();
    let job = worker.next().await;
    assert_eq!((job.headers["howdah-schedule"].as_str(), &job.payload[..]), ("s", &b"p"[..]));
    assert_eq!(planned(&broker, "s").await.fired, 1);
    for found in [true, false] {
        assert_eq!(one::<bool>(&client, "SELECT howdah.unschedule('s')").await, found);
    }
    assert_eq!(broker.count("SELECT count(*) FROM howdah.schedule").await, 0);
    assert_eq!(
        broker.count("SELECT count(*) FROM howdah.audit WHERE method = 'howdah.unschedule' AND ids = '{s}'").await,
        1
    );
}

#[tokio::test]
async fn a_change_by_sql_keeps_the_planned_times_unless_the_plan_changes() {
    let broker = without_polls().await;
    let client = broker.database.connect().await;
    let job = howdah_client::NewJob::new("t");
    broker.client().await.create_schedule(NewSchedule::new("s", job, Plan::every(HOUR))).await.expect("create");
    broker.until("the first job", "SELECT fired = 1 FROM howdah.schedule").await;
    let first = planned(&broker, "s").await.next_times[0];
    // Another payload, and a jitter.
    assert!(one::<bool>(&client, "SELECT howdah.schedule('s', 't', 'new', every => '1 h', jitter => '1 min')").await);
    broker.until("the jitter", "SELECT next_at >= next_planned AND next_at <> next_planned FROM howdah.schedule").await;
    let kept = planned(&broker, "s").await;
    assert_eq!((kept.next_times[0], &kept.template.unwrap().payload[..]), (first, &b"new"[..]));
    // The changed period counts from the last planned time.
    assert!(
        one::<bool>(
            &client,
            "SELECT howdah.schedule('s', 't', 'new', every => '2 h', overlap => 'skip', jitter => '1 min')"
        )
        .await
    );
    assert_eq!(planned(&broker, "s").await.next_times[0].seconds, first.seconds + 3600);
    let changes = "SELECT array_to_string(changes, ', ') FROM howdah.audit WHERE method = 'howdah.schedule' ORDER BY time DESC, id DESC LIMIT 1";
    assert_eq!(one::<String>(&client, changes).await, "overlap: allow -> skip, period_ms: 3600000 -> 7200000");
    // A calendar is planned from now, and the end is applied.
    let nightly = "SELECT howdah.schedule('s', 't', 'new', cron => '@daily', end_time => now() + interval '24 hours')";
    assert!(one::<bool>(&client, nightly).await);
    assert_eq!(planned(&broker, "s").await.next_times.len(), 1);
    // A paused schedule stays paused.
    broker.client().await.pause_schedule("s").await.expect("pause");
    assert!(one::<bool>(&client, "SELECT howdah.schedule('s', 't', every => '3 h')").await);
    broker
        .until("the plan", "SELECT paused AND next_planned IS NOT NULL AND next_at IS NULL FROM howdah.schedule")
        .await;
}

#[tokio::test]
async fn a_schedule_that_had_ended_goes_on_at_the_times_of_its_period_as_with_a_call() {
    let broker = without_polls().await;
    let client = broker.database.connect().await;
    let calls = broker.client().await;
    let hourly = |name: &str| NewSchedule::new(name, howdah_client::NewJob::new("t"), Plan::every(HOUR));
    for name in ["call", "sql"] {
        calls.create_schedule(hourly(name)).await.expect("create");
    }
    broker.until("the first jobs", "SELECT sum(fired) = 2 FROM howdah.schedule").await;
    broker
        .sql(
            "UPDATE howdah.schedule SET anchor = n.past, last_planned = n.past, end_time = now(), next_planned = NULL, next_at = NULL
             FROM (SELECT date_trunc('second', now()) - interval '90 min' AS past) n",
        )
        .await;
    let never = "SELECT howdah.schedule('sql', 't', ''::bytea, every => '1 h', end_time => now() + interval '20 min')";
    let refused = client.query(never, &[]).await.expect_err("an end before the next time");
    let message = refused.as_db_error().expect("an error of Postgres").message();
    assert!(message.starts_with("end_time is not after the next planned time"), "{message}");
    calls.apply_schedule(hourly("call")).await.expect("apply");
    assert!(one::<bool>(&client, "SELECT howdah.schedule('sql', 't', ''::bytea, every => '1 h')").await);
    let (by_call, by_sql) = (planned(&broker, "call").await, planned(&broker, "sql").await);
    assert_eq!((&by_sql.next_times, by_sql.fired), (&by_call.next_times, 1));
    broker.until("the next time", "SELECT bool_and(next_at = next_planned) FROM howdah.schedule").await;
}

#[tokio::test]
async fn a_calendar_that_only_a_broker_can_refuse_leaves_an_error_in_the_schedule() {
    let broker = without_polls().await;
    let client = broker.database.connect().await;
    assert!(one::<bool>(&client, "SELECT howdah.schedule('never', 't', cron => '0 0 30 2 *')").await);
    broker.until("an error", "SELECT coalesce(last_error LIKE '%cron.expression is \"0 0 30 2 *\", which no date matches%', false) FROM howdah.schedule").await;
    assert!(one::<bool>(&client, "SELECT howdah.schedule('never', 't', cron => '0 0 28 2 *')").await);
    assert_eq!(planned(&broker, "never").await.last_error, "");
}

#[tokio::test]
async fn invalid_arguments_of_a_schedule_are_refused_by_name_and_store_nothing() {
    let database = database().await;
    let client = database.connect().await;
    for (arguments, message) in [
        ("'a b', 't', every => '1 h'", "name is \"a b\"; 1 to 200 of A-Z a-z 0-9 . _ : / - are allowed"),
        ("NULL, 't', every => '1 h'", "name is null; 1 to 200"),
        ("'s', 'a b', every => '1 h'", "task_type is \"a b\"; 1 to 200"),
        ("'s', 't'", "every is not set; set every or cron"),
        ("'s', 't', every => '1 h', cron => '@daily'", "every is set together with cron; set one of them"),
        ("'s', 't', every => '0.5 s'", "every is 00:00:00.5; 00:00:01 to 3650 days is allowed"),
        ("'s', 't', every => '1 h', time_zone => 'UTC'", "time_zone is set without cron; set cron too"),
        ("'s', 't', cron => '@daily', time_zone => 'Mars'", "time_zone is \"Mars\", which is not in the IANA database"),
        ("'s', 't', cron => '@daily', time_zone => 'localtime'", "time_zone is not the name of a time zone"),
        ("'s', 't', cron => '* * * *'", "cron is \"* * * *\", which cron does not understand (4 fields); write five"),
        ("'s', 't', cron => ''", "cron is \"\", which cron does not understand"),
        ("'s', 't', cron => '60 * * * *'", "cron is \"60 * * * *\", which cron does not understand (60)"),
        ("'s', 't', cron => '* * * JAM *'", "cron is \"* * * JAM *\", which cron does not understand (JAM)"),
        ("'s', 't', cron => '* * 1,,2 * *'", "cron is \"* * 1,,2 * *\", which cron does not understand (1,,2)"),
        ("'s', 't', cron => 'é * * * *'", "cron has a character that cron does not know; write five fields"),
        ("'s', 't', cron => '@often'", "cron is \"@often\", which cron does not know; write one of @yearly"),
        ("'s', 't', cron => '@reboot'", "cron is @reboot, which names no time"),
        ("'s', 't', cron => repeat('1', 201)", "cron has 201 bytes; at most 200 are allowed"),
        ("'s', 't', cron => '@daily', drift => 'end'", "drift is end, which is for periods only"),
        ("'s', 't', every => '1 h', drift => 'x'", "drift is \"x\"; allowed are plan, end"),
        ("'s', 't', every => '1 h', overlap => 'x'", "overlap is \"x\"; allowed are allow, skip, one-waiting"),
        ("'s', 't', every => '1 h', missed => 'x'", "missed is \"x\"; allowed are skip, one, all"),
        ("'s', 't', every => '1 h', missed_limit => 7", "missed_limit is 7, but missed is not all"),
        ("'s', 't', every => '1 h', missed => 'all', missed_limit => 0", "missed_limit is 0; 1 to 1000 is allowed"),
        (
            "'s', 't', every => '1 h', start_time => 'infinity'",
            "start_time is infinity; years 1970 to 9999 are allowed",
        ),
        ("'s', 't', every => '1 h', end_time => '2001-01-01'", "end_time is not after the next planned time"),
        (
            "'s', 't', every => '1 h', start_time => '2090-01-01', end_time => '2090-01-01'",
            "end_time is not after start_time",
        ),
        ("'s', 't', every => '1 min', jitter => '2 min'", "jitter is 00:02:00; 00:00:00 to 00:01:00 is allowed"),
        (
            "'s', 't', every => '1 h', headers => '{\"howdah-schedule\": \"x\"}'",
            "headers have \"howdah-schedule\", which the broker sets",
        ),
        ("'s', 't', every => '1 h', priority => 1001", "priority is 1001; -1000 to 1000 is allowed"),
        ("'s', 't', every => '1 h', key_policy => 'replace'", "key_policy is set without key; set that too"),
        ("'s', 't', NULL::text, every => '1 h'", "payload is null"),
    ] {
        refused_by_name(&client, &format!("SELECT howdah.schedule({arguments})"), message).await;
    }
    assert_eq!(database.count("SELECT count(*) FROM howdah.schedule").await, 0);
}

#[tokio::test]
async fn cron_expressions_that_brokers_accept_are_accepted_by_sql() {
    let database = database().await;
    let client = database.connect().await;
    for expression in [
        "30 2 * * MON-FRI",
        " 0  0 L * ? ",
        "0 0 15W * *",
        "0 0 LW * *",
        "0 0 * * 5L",
        "0 0 * * fri#2",
        "*/15 2,4 1-31/2 JAN,dec +7",
        "59 59 23 31 12 7",
        "10-50/10 * * * *",
        "@Hourly",
        "0 0 L * FRI#2",
    ] {
        assert!(
            one::<bool>(&client, &format!("SELECT howdah.schedule('s', 't', cron => '{expression}')")).await,
            "{expression}"
        );
    }
    let broker = TestBroker::on(&database).await;
    assert!(!planned(&broker, "s").await.next_times.is_empty());
}

#[tokio::test]
async fn a_role_keeps_only_schedules_of_types_that_it_is_granted() {
    let database = database().await;
    let admin = database.connect().await;
    admin.query("SELECT howdah.create_roles()", &[]).await.unwrap();
    let shop = login(&database, "shop", "howdah_producer").await;
    let worker = login(&database, "work", "howdah_worker").await;
    let calls = [
        "schedule('s', 'shop.a', every => '1 h')",
        "unschedule('s')",
        "set_limits('shop.a', max_running => 1)",
        "set_key_limits('shop.a', 'k', 1)",
    ];
    for call in calls {
        let sql = format!("SELECT howdah.{call}");
        assert_eq!(refused(&worker, &sql).await.0, SqlState::INSUFFICIENT_PRIVILEGE, "{call}");
        assert!(one::<bool>(&shop, &sql).await, "{call}");
    }
    assert_eq!(
        refused(&shop, "SELECT howdah.schedule_any('s', 't', '', every => '0 s')").await.0,
        SqlState::INVALID_PARAMETER_VALUE
    );
    admin.batch_execute("SELECT howdah.schedule('theirs', 'mail.x', every => '1 h')").await.unwrap();
    let role: String = one(&shop, "SELECT session_user::text").await;
    for operation in ["enqueue", "operate"] {
        admin.query("SELECT howdah.grant_types($1, $2, 'shop.*')", &[&role, &operation]).await.unwrap();
    }
    for call in calls {
        shop.batch_execute(&format!("SELECT howdah.{call}")).await.unwrap_or_else(|error| panic!("{call}: {error:?}"));
    }
    for (call, scope) in [
        ("schedule('s', 'mail.x', every => '1 h')", "enqueue:mail.x"),
        ("schedule('s', 'shop.a', every => '1 h', fallback => 'mail.x')", "enqueue:mail.x"),
        ("set_limits('mail.x', max_running => 1)", "operate:mail.x"),
        ("set_key_limits('mail.x', 'k', 1)", "operate:mail.x"),
    ] {
        let (code, message) = refused(&shop, &format!("SELECT howdah.{call}")).await;
        assert_eq!(code, SqlState::INSUFFICIENT_PRIVILEGE, "{call}: {message}");
        assert!(message.ends_with(&format!("needs the scope {scope} for this call")), "{call}: {message}");
    }
    assert!(!one::<bool>(&shop, "SELECT howdah.unschedule('theirs')").await);
    let (_, message) = refused(&shop, "SELECT howdah.schedule('theirs', 'shop.a', every => '1 h')").await;
    assert_eq!(message, "name is \"theirs\", and another schedule has this name; use another name");
}
