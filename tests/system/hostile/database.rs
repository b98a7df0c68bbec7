//! Tests that neither other logins of the database nor settings of the database can harm a broker.

use howdah_core::config::{Config, WakeMode};
use howdah_engine::store::Store;
use howdah_proto::v1::JobState;
use tokio_postgres::Client;

use crate::support::*;

/// Creates an empty database, and returns it with its name.
async fn empty_database() -> (TestDatabase, String) {
    let database = database().await.empty("other", "").await;
    let client = database.connect().await;
    let name = client.query_one("SELECT current_database()::text", &[]).await.expect("a name").get(0);
    (database, name)
}

/// Creates a login without rights, and returns its connection and name.
async fn login(database: &TestDatabase, name: &str) -> (Client, String) {
    let client = database.connect().await;
    let row = client.query_one("SELECT current_database()::text", &[]).await.expect("a name");
    let name = format!("{name}_{}", row.get::<_, String>(0));
    client
        .batch_execute(&format!("CREATE ROLE {name} LOGIN; SET SESSION AUTHORIZATION {name}"))
        .await
        .expect("a login");
    (client, name)
}

/// Creates functions and operators that match calls better than the built-in ones, and that record the role of their
/// caller.
async fn plant_traps(mallory: &Client) {
    let mut traps = String::from(
        "CREATE TABLE public.caught (who text); GRANT INSERT ON public.caught TO PUBLIC;
         CREATE FUNCTION public.spring(what text) RETURNS void LANGUAGE sql SET search_path = pg_catalog
             AS 'INSERT INTO public.caught VALUES (current_user || '' '' || what)';",
    );
    for (name, args, returns, value) in [
        ("to_timestamp", "numeric", "timestamptz", "pg_catalog.to_timestamp($1::float8)"),
        ("now", "", "timestamptz", "pg_catalog.now()"),
        ("clock_timestamp", "", "timestamptz", "pg_catalog.clock_timestamp()"),
        ("nextval", "regclass", "bigint", "pg_catalog.nextval($1)"),
        ("octet_length", "text", "int", "pg_catalog.octet_length($1)"),
        ("to_regclass", "text", "regclass", "pg_catalog.to_regclass($1)"),
        ("hashtext", "text", "int", "pg_catalog.hashtext($1)"),
        ("array_length", "integer[], integer", "int", "pg_catalog.array_length($1, $2)"),
        ("pg_notify", "text, text", "void", "pg_catalog.pg_notify($1, $2)"),
        ("jsonb_typeof", "jsonb", "text", "pg_catalog.jsonb_typeof($1)"),
        ("quote_ident", "name", "text", "pg_catalog.quote_ident($1::text)"),
    ] {
        let run = if returns == "void" { "PERFORM" } else { "RETURN" };
        traps += &format!(
            "CREATE FUNCTION public.{name}({args}) RETURNS {returns} LANGUAGE plpgsql AS
                 $$ BEGIN PERFORM public.spring('{name}'); {run} {value}; END $$;"
        );
    }
    for (operator, left, right, returns) in [
        ("=", "integer", "integer", "boolean"),
        ("=", "bigint", "bigint", "boolean"),
        ("=", "text", "text", "boolean"),
        ("*", "numeric", "integer", "numeric"),
        ("*", "bigint", "interval", "interval"),
        ("/", "bigint", "numeric", "numeric"),
        ("<=", "timestamptz", "timestamptz", "boolean"),
        ("-", "jsonb", "text", "jsonb"),
        ("||", "jsonb", "jsonb", "jsonb"),
    ] {
        let name: String = operator.bytes().map(|byte| format!("_{byte}")).collect();
        let name = format!("public.op_{left}_{right}{name}");
        traps += &format!(
            "CREATE FUNCTION {name}({left}, {right}) RETURNS {returns} LANGUAGE plpgsql AS
                 $$ BEGIN PERFORM public.spring('{name}'); RETURN $1 OPERATOR(pg_catalog.{operator}) $2; END $$;
             CREATE OPERATOR public.{operator} (LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = {name});"
        );
    }
    mallory.batch_execute(&traps).await.expect("traps");
}

/// Runs jobs through every transition that a broker performs.
async fn work(broker: &TestBroker) {
    let mut worker = broker.worker("t").window(20).await;
    broker.set("t", howdah_proto::v1::TaskTypeSettings { key_max_running: 1, ..Default::default() }).await;
    let ids = broker
        .enqueue_all([
            new_job("t", "plain"),
            new_job("t", "keyed").key("k"),
            new_job("t", "delayed").delay(millis(50)),
            new_job("t", "limited").limit_key("l").fair_key("f"),
            new_job("t", "expires").expire_after(HOUR),
            new_job("t", "x".repeat(2_000)),
        ])
        .await;
    let after = broker.enqueue(new_job("t", "after").after(&ids[..1])).await;
    let later = broker.enqueue(new_job("t", "later").delay(HOUR)).await;
    broker.cancel(&[later]).await;
    for n in 0..7 {
        let job = worker.next().await;
        match n {
            1 => worker.nack(&job, "again 17").at_once().await,
            2 => worker.nack(&job, "'no' 17").no_retry().await,
            3 => worker.snooze(&job, millis(10)).await,
            _ => worker.ack(&job).await,
        }
    }
    for _ in 0..2 {
        let job = worker.next().await;
        worker.ack(&job).await;
    }
    broker.until_state(after, JobState::Succeeded).await;
    broker.until("a dead job", "SELECT count(*) = 1 FROM howdah.dead").await;
    let dead = broker.count("SELECT id FROM howdah.dead").await;
    broker.retry(&[dead]).await;
    let job = worker.next().await;
    worker.ack(&job).await;
}

#[tokio::test]
async fn nothing_that_others_created_is_called_by_a_broker_or_a_migration() {
    for wake in [WakeMode::Listen, WakeMode::Poll] {
        let (database, _) = empty_database().await;
        database.sql("GRANT CREATE ON SCHEMA public TO PUBLIC").await;
        let (mallory, _) = login(&database, "mallory").await;
        plant_traps(&mallory).await;
        // A role or a database may have such a search_path. With `pg_catalog` first, Postgres would use the traps only as
        // better overload matches.
        for path in ["public", "public,pg_catalog"] {
            let url = format!("{}&options=-c%20search_path%3D{path}", database.url);
            let broker = TestBroker::on_with(&database, |config| {
                config.database_url = url.clone();
                config.wake = wake;
                config.poll_interval = millis(100);
            })
            .await;
            work(&broker).await;
            let mut config = Config::new(&url);
            config.wake = wake;
            let store = Store::new(&config).expect("store");
            store.create_roles().await.expect("roles");
            database.sql("UPDATE howdah.schema_part SET hash = '' WHERE part <> 'tables'").await;
            assert_eq!(store.migrate().await.expect("migrate").replaced, ["functions", "view"]);
            broker.stop().await;
            let client = database.connect().await;
            let caught = client.query_one("SELECT string_agg(DISTINCT who, ', ') FROM public.caught", &[]).await;
            assert_eq!(caught.expect("the traps").get::<_, Option<String>>(0), None, "{wake:?}, {path}");
        }
    }
}

#[tokio::test]
async fn a_broker_works_with_unusual_database_settings_for_texts_times_and_numbers() {
    let (database, name) = empty_database().await;
    let odd = [
        ("standard_conforming_strings", "off"),
        ("transform_null_equals", "on"),
        ("array_nulls", "off"),
        ("datestyle", "'SQL, DMY'"),
        ("intervalstyle", "sql_standard"),
        ("timezone", "'Asia/Kathmandu'"),
        ("bytea_output", "escape"),
        ("extra_float_digits", "-15"),
        ("default_transaction_isolation", "serializable"),
        ("default_transaction_deferrable", "on"),
        ("plpgsql.extra_errors", "'all'"),
    ];
    for (setting, value) in odd {
        database.sql(&format!("ALTER DATABASE {name} SET {setting} = {value}")).await;
    }
    let broker = TestBroker::on(&database).await;
    work(&broker).await;
    // The error group of an error text must not depend on the caller's session settings.
    let errors = "SELECT string_agg(howdah.error_group(e), ' | ') FROM unnest(ARRAY[
        'job 17 is not ''there'' at 10:30', E'can''t read\\tfile_1x2\\nmore', '0xdeadbeef in 7e57a9c1']) e";
    let client = database.connect().await;
    let group = |row: tokio_postgres::Row| row.get::<_, String>(0);
    let odd = group(client.query_one(errors, &[]).await.expect(errors));
    client.batch_execute("SET standard_conforming_strings = on").await.expect("set");
    let usual = "job # is not '#' at # | can't read file_# | # in #";
    assert_eq!(odd, group(client.query_one(errors, &[]).await.expect(errors)));
    assert!(odd.starts_with("job # is not '#' at # | can't read "), "{odd} is not {usual}");
    let bad = "SELECT howdah.enqueue('t', 'x', key => E'a\\u0001b')";
    client.batch_execute("SET standard_conforming_strings = off").await.expect("set");
    let refused = client.query(bad, &[]).await.expect_err(bad);
    assert!(refused.as_db_error().expect("an answer").message().contains("control character"), "{refused:?}");
}

#[tokio::test]
async fn a_first_start_that_fails_leaves_nothing_behind() {
    let (database, _) = empty_database().await;
    // Creates a table with the name of a view that the migration creates last, so that the migration fails late.
    database.sql("CREATE SCHEMA taken; CREATE TABLE taken.job (id int)").await;
    let mut config = Config::new(&database.url);
    config.schema = "taken".into();
    let error = Store::new(&config).expect("store").migrate().await.expect_err("a refusal");
    assert!(error.to_string().contains("job_view.sql"), "{error}");
    let made = "SELECT (SELECT count(*) FROM pg_class WHERE relnamespace = 'taken'::regnamespace)
                     + (SELECT count(*) FROM pg_proc WHERE pronamespace = 'taken'::regnamespace)";
    assert_eq!(database.count(made).await, 1);
    database.sql("DROP TABLE taken.job").await;
    assert!(Store::new(&config).expect("store").migrate().await.expect("migrate").created);
}

#[tokio::test]
async fn locks_that_any_role_may_take_keep_no_broker_from_starting() {
    let (database, _) = empty_database().await;
    let (mallory, _) = login(&database, "locks").await;
    // Takes the advisory locks that earlier versions used for migrations and partitions, as any login can.
    mallory
        .batch_execute(
            "SELECT pg_advisory_lock(1752135524, hashtext('howdah')), pg_advisory_lock(1752135524, hashtext('other')),
                    pg_advisory_lock(hashtext('howdah.make_history_partition')), pg_advisory_lock(hashtext('howdah'))",
        )
        .await
        .expect("locks");
    let broker = TestBroker::on(&database).await;
    broker
        .until("partitions", "SELECT count(*) >= 8 FROM pg_inherits WHERE inhparent::regclass::text LIKE 'howdah.%'")
        .await;
    let store = Store::new(&Config::new(&database.url)).expect("store");
    // When nothing needs to be changed, starting and migrating take no locks, so not even a reader's locks block the
    // broker.
    mallory.batch_execute("SELECT pg_advisory_unlock_all()").await.expect("unlock");
    store.create_roles().await.expect("roles");
    let role: String = mallory.query_one("SELECT session_user::text", &[]).await.expect("a name").get(0);
    database.sql(&format!("GRANT howdah_reader TO {role}")).await;
    mallory
        .batch_execute(
            "BEGIN; LOCK TABLE howdah.schema_part, ONLY howdah.history IN ACCESS SHARE MODE; SELECT version FROM howdah.settings",
        )
        .await
        .expect("a read as a member of howdah_reader");
    let another = TestBroker::on(&database).await;
    database.sql("UPDATE howdah.schema_part SET hash = '' WHERE part = 'functions'").await;
    assert_eq!(store.migrate().await.expect("migrate").replaced, ["functions"]);
    assert_eq!(store.make_partitions(6).await.expect("partitions"), 15);
    drop((broker, another));
}

#[tokio::test]
async fn a_start_without_a_migration_waits_for_no_lock() {
    let database = database().await;
    let client = database.connect().await;
    client
        .batch_execute(
            "BEGIN; LOCK TABLE howdah.schema_part IN ROW EXCLUSIVE MODE; LOCK TABLE howdah.history IN SHARE MODE",
        )
        .await
        .expect("locks");
    let store = Store::new(&Config::new(&database.url)).expect("store");
    assert!(with_timeout("an answer", store.migrate()).await.expect("migrate").replaced.is_empty());
    assert_eq!(with_timeout("an answer", store.make_partitions(3)).await.expect("partitions"), 0);
    drop(client);
}

#[tokio::test]
async fn a_database_that_ends_idle_sessions_does_not_end_the_one_that_listens() {
    let (database, name) = empty_database().await;
    database.sql(&format!("ALTER DATABASE {name} SET idle_session_timeout = '300ms'")).await;
    Store::new(&Config::new(&database.url)).expect("a store").migrate().await.expect("migrations");
    let _broker = TestBroker::on(&database).await;
    // The database ends sessions that are idle for 300 ms (`idle_session_timeout`). The listening session must survive: waits
    // until it has been idle for 2 s.
    let listens = format!(
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = '{name}' AND query LIKE 'LISTEN howdah_wake%'
                        AND state = 'idle' AND clock_timestamp() - state_change > interval '2 s')"
    );
    crate::support::database().await.until("a session that listens", &listens).await;
}
