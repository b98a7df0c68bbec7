//! Tests the database roles and their limits.

use super::*;

/// Creates a login that is a member of these roles, and connects with it.
pub(super) async fn login(database: &TestDatabase, name: &str, roles: &str) -> Client {
    let name = format!("{name}_{}", database.url.split("test_").nth(1).unwrap().split(['?', '&']).next().unwrap());
    let admin = database.connect().await;
    admin.batch_execute(&format!("CREATE ROLE {name} LOGIN; GRANT {roles} TO {name}")).await.unwrap();
    let client = database.connect().await;
    client.batch_execute(&format!("SET SESSION AUTHORIZATION {name}")).await.unwrap();
    client
}

#[tokio::test]
async fn each_role_may_do_its_part_and_no_more() {
    let database = database().await;
    let admin = database.connect().await;
    for _ in 0..2 {
        let roles: String = one(&admin, "SELECT string_agg(r, ' ') FROM howdah.create_roles() r").await;
        assert_eq!(roles, "howdah_producer howdah_worker howdah_reader");
    }
    let producer = login(&database, "ann", "howdah_producer").await;
    let worker = login(&database, "bob", "howdah_worker").await;
    let reader = login(&database, "eve", "howdah_reader").await;
    for sql in [
        "SELECT howdah.enqueue('t', 'text'), howdah.enqueue('t', '{}'::jsonb), howdah.enqueue('t', '\\x00'::bytea)",
        "SELECT howdah.enqueue('new.type', key => 'k', limit_key => 'l', after => '{FIRST}', next_stages => '{another}')",
        "SELECT howdah.enqueue_many('t', ARRAY['a']), howdah.enqueue_many('t', ARRAY['{}'::jsonb])",
        "SELECT * FROM howdah.enqueue_batch('[{\"task_type\": \"t\"}]'::jsonb)",
        "SELECT howdah.cancel(1), howdah.retry_now(2), howdah.reprioritize(2, 1)",
        "CREATE TEMP TABLE mine (a int)",
        "SELECT howdah.on_change('mine', 't')",
        "INSERT INTO mine VALUES (1)",
    ] {
        let first = database.count("SELECT coalesce(min(id), 0) FROM howdah.ready").await;
        let sql = sql.replace("FIRST", &first.to_string());
        producer.query(&sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
    assert_eq!(refused(&worker, "SELECT howdah.complete(1, 1)").await.0.code(), "HW003");
    for view in ["job", "history", "task_type"] {
        reader.query(&format!("SELECT * FROM howdah.{view}"), &[]).await.unwrap();
    }
    reader.query("SELECT id, leased_at, broker_id FROM howdah.leased", &[]).await.unwrap();
    reader.query("SELECT r.id, count(*) OVER (), d.died FROM howdah.ready r, howdah.dead d", &[]).await.unwrap();
    let nobody = login(&database, "nil", "pg_monitor").await;
    for (client, what) in [
        (&producer, "SELECT * FROM howdah.job"),
        (&producer, "SELECT * FROM howdah.ready"),
        (&producer, "SELECT nextval('howdah.job_id')"),
        (&producer, "DELETE FROM howdah.ready"),
        (&producer, "SELECT howdah.complete(1, 1)"),
        (&producer, "SELECT howdah.store_jobs('{}', NULL, NULL, false)"),
        (&producer, "SELECT howdah.store_checked('{}', NULL, NULL)"),
        (&producer, "SELECT howdah.take_job(1, '{ready}')"),
        (&producer, "SELECT howdah.admit(1)"),
        (&worker, "SELECT howdah.enqueue('t')"),
        (&worker, "SELECT howdah.enqueue('t', 'text')"),
        (&worker, "SELECT howdah.enqueue_changed('t', 'x', '{}')"),
        (&worker, "SELECT howdah.cancel(1)"),
        (&worker, "SELECT howdah.nack(1, 1, false, false, 0, '')"),
        (&reader, "SELECT howdah.enqueue('t')"),
        (&reader, "DELETE FROM howdah.ready"),
        (&reader, "SELECT token FROM howdah.leased"),
        // A worker that was lost can still settle its job with the token of its lease.
        (&reader, "SELECT last_token FROM howdah.ready"),
        (&reader, "SELECT * FROM howdah.dead"),
        (&reader, "SELECT last_token FROM howdah.bulk_change"),
        (&reader, "SELECT * FROM howdah.secret"),
        (&nobody, "SELECT howdah.enqueue('t')"),
        (&nobody, "SELECT * FROM howdah.job"),
    ] {
        let (code, message) = refused(client, what).await;
        assert_eq!(code, SqlState::INSUFFICIENT_PRIVILEGE, "{what}: {message}");
    }
}

#[tokio::test]
async fn migrate_without_the_right_to_create_roles_grants_rights_to_existing_roles() {
    let database = database().await;
    let admin = database.connect().await;
    // The owner of the schema may not create roles. Roles exist once per server, so another test may have created the
    // roles already.
    admin.batch_execute("CREATE ROLE poor_owner LOGIN; CREATE SCHEMA poor AUTHORIZATION poor_owner").await.unwrap();
    let url = database.url.replacen("howdah@", "poor_owner@", 1);
    let args = ["migrate", "--database-url", &url, "--schema", "poor", "--roles"];
    let roles = "SELECT FROM pg_roles WHERE rolname IN ('howdah_producer', 'howdah_worker', 'howdah_reader')";
    let there = admin.query(roles, &[]).await.unwrap().len();
    let (status, stdout, stderr) = crate::support::run(&args, b"").await;
    assert!(stdout.contains("schema poor is up to date"), "{stdout}{stderr}");
    let granted = stdout.matches("has the required rights in schema poor").count();
    // Another test may create the roles while the command runs, and then the command succeeds.
    let expected = if status.success() { 3..4 } else { there..3 };
    assert!(expected.contains(&granted), "{granted}, {there} were there: {stdout}{stderr}");
    // The command succeeds once the roles exist.
    admin.query("SELECT howdah.create_roles()", &[]).await.unwrap();
    let (status, stdout, stderr) = crate::support::run(&args, b"").await;
    assert!(status.success(), "{stderr}");
    assert_eq!(stdout.matches("has the required rights in schema poor").count(), 3);
}

#[tokio::test]
async fn sql_in_payloads_keys_headers_and_table_names_is_never_executed() {
    let database = database().await;
    let client = database.connect().await;
    let nasty = "'; DROP TABLE howdah.ready; -- \" $$ %s %L \\ ${x}";
    let headers = serde_json::json!({ nasty: nasty });
    let sql = "SELECT howdah.enqueue('t', $1::text, headers => $2, key => $1::text, limit_key => $1::text, fair_key => $1::text, request_key => $1::text)";
    client.query(sql, &[&nasty, &headers]).await.unwrap();
    let set = serde_json::json!([{"task_type": "t", "payload": nasty, "key": nasty, "local_name": nasty},
                                 {"task_type": "t", "after_local": [nasty]}]);
    client.query("SELECT * FROM howdah.enqueue_batch($1::jsonb)", &[&set]).await.unwrap();
    let row = client.query_one("SELECT headers, key, payload FROM howdah.job ORDER BY id LIMIT 1", &[]).await.unwrap();
    assert_eq!(row.get::<_, serde_json::Value>(0), headers);
    assert_eq!((row.get::<_, &str>(1), row.get::<_, &[u8]>(2)), (nasty, nasty.as_bytes()));
    for call in
        ["enqueue($1::text)", "enqueue('t', next_stages => ARRAY[$1::text])", "on_change('howdah.task_type', $1::text)"]
    {
        let error = client.query(&format!("SELECT howdah.{call}"), &[&nasty]).await.expect_err(call);
        assert_eq!(error.code(), Some(&SqlState::INVALID_PARAMETER_VALUE), "{call}");
    }
    // Creates a table with a hostile name.
    client
        .batch_execute(
            "CREATE TABLE \"x; DROP TABLE howdah.ready; --\" (a int);
             SELECT howdah.on_change('\"x; DROP TABLE howdah.ready; --\"', 'nasty:table');
             INSERT INTO \"x; DROP TABLE howdah.ready; --\" VALUES (1)",
        )
        .await
        .unwrap();
    assert_eq!(database.count("SELECT count(*) FROM howdah.job WHERE task_type = 'nasty:table'").await, 1);
}

/// Functions that run with their owner's rights must not call functions planted by the caller.
#[tokio::test]
async fn a_hostile_search_path_gets_no_rights() {
    let database = database().await;
    let admin = database.connect().await;
    admin.batch_execute("SELECT howdah.create_roles()").await.unwrap();
    let mallory = login(&database, "mallory", "howdah_producer, howdah_worker").await;
    let user: String = one(&mallory, "SELECT session_user").await;
    admin.batch_execute(&format!("CREATE SCHEMA trap AUTHORIZATION {user}")).await.unwrap();
    // Creates traps: functions that match calls better than the functions of pg_catalog, and that record the role that
    // calls them.
    let mut traps = String::from(
        "CREATE TABLE trap.caught (who text); GRANT INSERT ON trap.caught TO PUBLIC; GRANT USAGE ON SCHEMA trap TO PUBLIC;
         CREATE FUNCTION trap.spring() RETURNS void LANGUAGE sql AS 'INSERT INTO trap.caught SELECT current_user::text';",
    );
    for (name, args, returns, value) in [
        ("now", "", "timestamptz", "pg_catalog.now()"),
        ("clock_timestamp", "", "timestamptz", "pg_catalog.clock_timestamp()"),
        ("octet_length", "bytea", "int", "1"),
        ("convert_to", "text, name", "bytea", "''::bytea"),
        ("nextval", "regclass", "bigint", "7::bigint"),
        ("setval", "regclass, bigint", "bigint", "7::bigint"),
        ("pg_notify", "text, text", "void", "NULL"),
        ("pg_sequence_last_value", "regclass", "bigint", "7::bigint"),
        ("rtrim", "text, text", "text", "''::text"),
        ("num_nonnulls", "VARIADIC \"any\"", "", ""),
        ("sha256", "bytea", "bytea", "''::bytea"),
        ("jsonb_strip_nulls", "jsonb", "jsonb", "$1"),
    ] {
        if !returns.is_empty() {
            traps += &format!("CREATE FUNCTION trap.{name}({args}) RETURNS {returns} LANGUAGE plpgsql AS 'BEGIN PERFORM trap.spring(); RETURN {}; END';",
                if returns == "void" { "".to_owned() } else { value.replace('\'', "''") }).replace("RETURN ; ", "");
        }
    }
    for (operator, left, right, returns) in [
        ("=", "integer", "integer", "boolean"),
        ("=", "text", "text", "boolean"),
        ("<=", "integer", "integer", "boolean"),
        ("<", "timestamptz", "timestamptz", "boolean"),
        ("&", "integer", "integer", "integer"),
        ("<<", "bigint", "integer", "bigint"),
        ("*", "numeric", "integer", "numeric"),
        ("=", "bigint", "bigint", "boolean"),
    ] {
        let name = format!("trap.op_{left}_{}", operator.bytes().map(|b| b.to_string()).collect::<String>());
        traps += &format!(
            "CREATE FUNCTION {name}({left}, {right}) RETURNS {returns} LANGUAGE plpgsql AS 'BEGIN PERFORM trap.spring(); RETURN {}; END';
             CREATE OPERATOR trap.{operator} (LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = {name});",
            if returns == "boolean" { "true" } else { "$1" });
    }
    mallory.batch_execute(&traps).await.unwrap();
    mallory.batch_execute("SET search_path = trap, pg_catalog").await.unwrap();
    for sql in [
        "SELECT howdah.enqueue('t')",
        "SELECT howdah.enqueue('t', 'text')",
        "SELECT howdah.enqueue('t', 'text', fair_key => 'f')",
        "SELECT howdah.enqueue('t', '{}'::jsonb, key => 'k', delay => '1 s', headers => '{\"a\": \"b\"}')",
        "SELECT howdah.enqueue_many('t', ARRAY['a'])",
        "SELECT * FROM howdah.enqueue_batch('[{\"task_type\": \"t\"}]'::jsonb)",
        "SELECT howdah.cancel(1)",
        "SELECT howdah.retry_now(3)",
        "SELECT howdah.reprioritize(2, 1)",
    ] {
        mallory.query(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
    let _ = mallory.query("SELECT howdah.complete(1, 1)", &[]).await;
    let caught = format!("SELECT count(*) FROM trap.caught WHERE who <> '{user}'");
    assert_eq!(database.count(&caught).await, 0, "a trap was called with another role's rights");
    // Every function that runs with its owner's rights sets a search_path, except one that qualifies all names instead.
    let unpinned = "SELECT string_agg(DISTINCT proname, ' ') FROM pg_proc WHERE prosecdef AND pronamespace = 'howdah'::regnamespace
                    AND NOT coalesce(proconfig::text LIKE '%search_path=pg_catalog, pg_temp%', false)";
    assert_eq!(one::<String>(&admin, unpinned).await, "enqueue_plain");
    let public = "SELECT count(*) FROM pg_proc WHERE prosecdef AND pronamespace = 'howdah'::regnamespace
                  AND (proacl IS NULL OR proacl::text ~ '[{,]=')";
    assert_eq!(database.count(public).await, 0, "PUBLIC may call a function with its owner's rights");
}

/// Postgres converts a row to JSON by casts of the column types, and the owner of a type defines these casts.
#[tokio::test]
async fn casts_of_a_row_that_changes_run_with_the_rights_of_the_writer() {
    let database = database().await;
    let admin = database.connect().await;
    admin
        .batch_execute(
            "SELECT howdah.create_roles();
             CREATE TABLE public.caught (who text); GRANT INSERT ON public.caught TO PUBLIC",
        )
        .await
        .unwrap();
    let mallory = login(&database, "casts", "howdah_producer").await;
    mallory
        .batch_execute(
            "CREATE TYPE pg_temp.evil AS ENUM ('a');
             CREATE FUNCTION pg_temp.spring(pg_temp.evil) RETURNS json LANGUAGE plpgsql AS
                 'BEGIN INSERT INTO public.caught VALUES (current_user); RETURN ''1''; END';
             CREATE CAST (pg_temp.evil AS json) WITH FUNCTION pg_temp.spring(pg_temp.evil);
             CREATE TEMP TABLE mine (a pg_temp.evil, b pg_temp.evil[]);
             SELECT howdah.on_change('mine', 't');
             INSERT INTO mine VALUES ('a', '{a}'); UPDATE mine SET a = 'a'; DELETE FROM mine",
        )
        .await
        .unwrap();
    assert_eq!(database.count("SELECT count(*) FROM howdah.ready").await, 3);
    let who: String = one(&admin, "SELECT string_agg(DISTINCT who, ' ') FROM public.caught").await;
    assert_eq!(who, one::<String>(&mallory, "SELECT session_user::text").await);
}

#[tokio::test]
async fn a_writer_of_a_table_with_on_change_needs_the_right_to_enqueue() {
    let database = database().await;
    let admin = database.connect().await;
    admin
        .batch_execute(
            "SELECT howdah.create_roles();
             CREATE TABLE public.orders (id int); GRANT ALL ON public.orders TO PUBLIC;
             SELECT howdah.on_change('public.orders', 'order.changed')",
        )
        .await
        .unwrap();
    let clerk = login(&database, "clerk", "pg_monitor").await;
    let user: String = one(&clerk, "SELECT session_user::text").await;
    let message = format!("a change of public.orders enqueues a job of \"order.changed\", and {user} may not enqueue");
    for grant in [format!("GRANT USAGE ON SCHEMA howdah TO {user}"), format!("GRANT howdah_producer TO {user}")] {
        assert_eq!(
            refused(&clerk, "INSERT INTO public.orders VALUES (1)").await,
            (SqlState::INSUFFICIENT_PRIVILEGE, message.clone())
        );
        admin.batch_execute(&grant).await.unwrap();
    }
    clerk.batch_execute("INSERT INTO public.orders VALUES (1)").await.unwrap();
    assert_eq!(database.count("SELECT count(*) FROM howdah.ready").await, 1);
    assert_eq!(database.count("SELECT count(*) FROM public.orders").await, 1);
}
