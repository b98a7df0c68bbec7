//! Tests permissions of SQL roles on task types.

use howdah_engine::access::Scope;
use proptest::prelude::*;

use super::{rights::login, *};

async fn grant(database: &TestDatabase, client: &Client, operation: &str, pattern: &str) {
    let role: String = one(client, "SELECT session_user::text").await;
    let sql = format!("SELECT howdah.grant_types('{role}', '{operation}', '{pattern}')");
    database.connect().await.query(&sql, &[]).await.expect(&sql);
}

/// Creates two roles that may call all functions.
async fn roles(database: &TestDatabase) -> [Client; 2] {
    database.connect().await.query("SELECT howdah.create_roles()", &[]).await.unwrap();
    let both = "howdah_producer, howdah_worker";
    [login(database, "shop", both).await, login(database, "mail", both).await]
}

async fn denied(client: &Client, sql: &str, scope: &str) {
    let (code, message) = refused(client, sql).await;
    assert_eq!(code, SqlState::INSUFFICIENT_PRIVILEGE, "{sql}: {message}");
    assert!(message.ends_with(&format!("needs the scope {scope} for this call")), "{sql}: {message}");
}

#[tokio::test]
async fn a_role_enqueues_only_what_it_is_granted_on_every_way() {
    let database = database().await;
    let [shop, mail] = roles(&database).await;
    shop.query("SELECT howdah.enqueue('anything')", &[]).await.unwrap();
    grant(&database, &shop, "enqueue", "shop.*").await;
    shop.batch_execute("CREATE TEMP TABLE own (a int); CREATE TEMP TABLE foreign_ (a int)").await.unwrap();
    shop.batch_execute("SELECT howdah.on_change('own', 'shop.own'), howdah.on_change('foreign_', 'mail.x')")
        .await
        .unwrap();
    for own in [
        "SELECT howdah.enqueue('shop.a')",
        "SELECT howdah.enqueue('shop.a', 'x', fallback => 'shop.b', next_stages => '{shop.c}')",
        "SELECT howdah.enqueue_many('shop.a', ARRAY['a'])",
        "SELECT * FROM howdah.enqueue_batch('[{\"task_type\": \"shop.a\"}]'::jsonb)",
        "INSERT INTO own VALUES (1)",
    ] {
        shop.batch_execute(own).await.unwrap_or_else(|error| panic!("{own}: {error:?}"));
    }
    for foreign in [
        "SELECT howdah.enqueue('mail.x')",
        "SELECT howdah.enqueue('mail.x', 'x', priority => 1)",
        "SELECT howdah.enqueue('shop.a', 'x', fallback => 'mail.x')",
        "SELECT howdah.enqueue('shop.a', 'x', next_stages => '{shop.b, mail.x}')",
        "SELECT howdah.enqueue_many('mail.x', ARRAY['a'])",
        "SELECT * FROM howdah.enqueue_batch('[{\"task_type\": \"shop.a\"}, {\"task_type\": \"mail.x\"}]'::jsonb)",
        "INSERT INTO foreign_ VALUES (1)",
    ] {
        denied(&shop, foreign, "enqueue:mail.x").await;
    }
    // A role without grants may enqueue nothing. The owner of the schema may enqueue everything.
    denied(&mail, "SELECT howdah.enqueue('mail.x')", "enqueue:mail.x").await;
    database.sql("SELECT howdah.enqueue('mail.x')").await;
    assert_eq!(database.count("SELECT count(*) FROM howdah.job WHERE task_type = 'mail.x'").await, 1);
}

#[tokio::test]
async fn members_of_a_role_have_its_grants_and_set_role_changes_nothing() {
    let database = database().await;
    let [shop, mail] = roles(&database).await;
    let admin = database.connect().await;
    let (shop_role, mail_role): (String, String) =
        (one(&shop, "SELECT session_user::text").await, one(&mail, "SELECT session_user::text").await);
    admin.query("SELECT howdah.grant_types($1, 'enqueue', 'shop.a')", &[&shop_role]).await.unwrap();
    denied(&mail, "SELECT howdah.enqueue('shop.a')", "enqueue:shop.a").await;
    admin.batch_execute(&format!("GRANT {shop_role} TO {mail_role}")).await.unwrap();
    mail.query("SELECT howdah.enqueue('shop.a')", &[]).await.unwrap();
    mail.batch_execute("SET ROLE howdah_producer").await.unwrap();
    mail.query("SELECT howdah.enqueue('shop.a')", &[]).await.unwrap();
    assert!(one::<bool>(&admin, &format!("SELECT howdah.revoke_types('{shop_role}', 'enqueue', 'shop.a')")).await);
    shop.query("SELECT howdah.enqueue('anything')", &[]).await.unwrap();
}

#[tokio::test]
async fn a_foreign_job_is_like_a_missing_one_and_a_foreign_lease_is_lost() {
    let broker = TestBroker::start().await;
    let database = &broker.database;
    let [shop, mail] = roles(database).await;
    grant(database, &shop, "enqueue", "shop.*").await;
    denied(&shop, "SELECT howdah.cancel(1)", "operate:TYPES").await;
    denied(&shop, "SELECT howdah.complete(1, 1)", "work:TYPES").await;
    for client in [&shop, &mail] {
        let own = if std::ptr::eq(client, &shop) { "shop.*" } else { "mail.*" };
        grant(database, client, "operate", own).await;
        grant(database, client, "work", own).await;
    }
    let waiting = broker.enqueue("shop.a").await;
    for call in ["cancel({})", "retry_now({})", "reprioritize({}, 1)"] {
        let sql = format!("SELECT howdah.{}", call.replace("{}", &waiting.to_string()));
        assert!(!one::<bool>(&mail, &sql).await, "{sql}");
    }
    assert!(one::<bool>(&shop, &format!("SELECT howdah.reprioritize({waiting}, 1)")).await);
    assert!(one::<bool>(&shop, &format!("SELECT howdah.cancel({waiting})")).await);
    broker.enqueue("shop.b").await;
    let mut worker = broker.worker("shop.b").await;
    let job = worker.next().await;
    for call in ["complete({}, {t})", "fail({}, {t}, 'e')", "snooze({}, {t}, '0')", "extend({}, {t}, '1 s')"] {
        let sql = format!("SELECT howdah.{call}");
        let sql = sql.replace("{}", &job.id.to_string()).replace("{t}", &job.token.to_string());
        assert_eq!(refused(&mail, &sql).await.0.code(), "HW003", "{sql}");
    }
    let ended: Option<String> = one(&mail, &format!("SELECT howdah.end_lease({})", job.id)).await;
    assert_eq!(ended, None);
    // Continuing a job in a next stage needs the permission to enqueue.
    let complete = |stage| format!("SELECT howdah.complete({}, {}, 'r', next_stage => '{stage}')", job.id, job.token);
    denied(&shop, &complete("mail.x"), "enqueue:mail.x").await;
    shop.query(&complete("shop.c"), &[]).await.unwrap();
}

#[tokio::test]
async fn request_keys_belong_to_a_role_where_grants_limit_it() {
    let database = database().await;
    let [shop, mail] = roles(&database).await;
    let sql = "SELECT howdah.enqueue('t', 'x', request_key => 'k')";
    let first: i64 = one(&shop, sql).await;
    assert_eq!(one::<i64>(&mail, sql).await, first);
    for client in [&shop, &mail] {
        grant(&database, client, "enqueue", "t").await;
    }
    let own: i64 = one(&shop, sql).await;
    assert_ne!(one::<i64>(&mail, sql).await, own);
    assert_eq!(one::<i64>(&shop, sql).await, own);
    let other = refused(&shop, "SELECT howdah.enqueue('t', 'y', request_key => 'k')").await.1;
    assert!(other.starts_with("request_key \"k\" was used"), "{other}");
}

/// Checks which tables each role may read, and for some tables which columns.
#[tokio::test]
async fn each_role_can_read_only_the_listed_tables() {
    let database = database().await;
    let admin = database.connect().await;
    admin.query("SELECT howdah.create_roles()", &[]).await.unwrap();
    let sql = "SELECT coalesce(string_agg(c.relname, ' ' ORDER BY c.relname), '') FROM pg_class c
               WHERE c.relnamespace = 'howdah'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm')
                 AND c.relname !~ '_[0-9]{8}$' AND has_any_column_privilege($1::text, c.oid, 'SELECT')";
    let readable = async |role: &str| -> String { admin.query_one(sql, &[&role]).await.unwrap().get(0) };
    assert_eq!(readable("howdah_producer").await, "");
    assert_eq!(readable("howdah_worker").await, "");
    let reader = readable("howdah_reader").await;
    assert_eq!(
        reader,
        "archive archive_file archive_late archive_target arrived backlog backlog_sample brake broker bulk_change dead dependency expiry fair_share grants history history_pruned id_range identity job job_key job_tag key_version \
         leased leaving \
         limit_change limit_state moved payload pull ready schedule scheduled schema_part settings \
         statistics \
         statistics_change statistics_sum task_type type_arrival waiting"
    );
    let hidden =
        "SELECT count(*) FROM pg_class c WHERE c.relnamespace = 'howdah'::regnamespace AND c.relname ~ '^audit'
                  AND c.relkind IN ('r', 'p') AND has_any_column_privilege('howdah_reader', c.oid, 'SELECT')";
    assert_eq!(database.count(hidden).await, 0);
    let tokens = "SELECT count(*) FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
                  WHERE c.relnamespace = 'howdah'::regnamespace AND c.relname = 'leased' AND a.attname = 'token'
                    AND has_column_privilege('howdah_reader', c.oid, a.attnum, 'SELECT')";
    assert_eq!(database.count(tokens).await, 0);
}

#[tokio::test]
async fn after_names_only_jobs_of_types_for_which_the_role_has_a_grant() {
    let broker = TestBroker::start().await;
    let database = &broker.database;
    let [shop, mail] = roles(database).await;
    grant(database, &shop, "enqueue", "shop.*").await;
    grant(database, &shop, "work", "stock").await;
    grant(database, &mail, "enqueue", "mail.*").await;
    let foreign = broker.enqueue("mail.x").await;
    let missing = foreign + 5;
    let refusal = async |sql: String, id: i64| {
        let sql = sql.replace("{}", &id.to_string());
        let (code, message) = refused(&shop, &sql).await;
        assert_eq!(code.code(), "HW001", "{sql}: {message}");
        message.replace(&format!("job {id},"), "job ID,")
    };
    for sql in [
        "SELECT howdah.enqueue('shop.a', 'x', after => '{{}}')",
        "SELECT howdah.enqueue_batch('[{\"task_type\": \"shop.a\"}, {\"task_type\": \"shop.a\", \"after\": [{}]}]')",
    ] {
        assert_eq!(refusal(sql.to_owned(), foreign).await, refusal(sql.to_owned(), missing).await);
    }
    assert_eq!(broker.count("SELECT count(*) FROM howdah.job WHERE task_type = 'shop.a'").await, 0);
    for own in [broker.enqueue("shop.b").await, broker.enqueue("stock").await] {
        shop.query(&format!("SELECT howdah.enqueue('shop.a', 'x', after => '{{{own}}}')"), &[]).await.unwrap();
    }
    // A member of howdah_reader may see all jobs.
    let role: String = one(&shop, "SELECT session_user::text").await;
    database.sql(&format!("GRANT howdah_reader TO {role}")).await;
    shop.query(&format!("SELECT howdah.enqueue('shop.a', 'x', after => '{{{foreign}}}')"), &[]).await.unwrap();
}

#[tokio::test]
async fn a_role_with_grants_creates_at_most_a_quarter_of_the_task_types() {
    let database = database().await;
    let [shop, mail] = roles(&database).await;
    database.sql("UPDATE howdah.settings SET task_types = 100").await;
    for client in [&shop, &mail] {
        grant(&database, client, "enqueue", "*").await;
    }
    shop.batch_execute("SELECT howdah.enqueue('shop.' || n) FROM generate_series(1, 25) n").await.unwrap();
    let (code, message) = refused(&shop, "SELECT howdah.enqueue('shop.26')").await;
    assert!(code.code() == "HW004" && message.contains("has created 25 task types"), "{code:?} {message}");
    shop.query("SELECT howdah.enqueue('shop.25')", &[]).await.unwrap();
    mail.query("SELECT howdah.enqueue('shop.26')", &[]).await.unwrap();
    // The limit on new task types does not apply to the owner of the schema.
    database.sql("SELECT howdah.enqueue('owner.' || n) FROM generate_series(1, 50) n").await;
}

#[tokio::test]
async fn a_producer_without_grants_creates_at_most_a_quarter_of_the_task_types() {
    let database = database().await;
    database.sql("SELECT howdah.create_roles(); UPDATE howdah.settings SET task_types = 100").await;
    let ann = login(&database, "ann", "howdah_producer").await;
    ann.batch_execute("SELECT howdah.enqueue('shop.' || n) FROM generate_series(1, 25) n").await.unwrap();
    let (code, message) = refused(&ann, "SELECT howdah.enqueue('shop.26')").await;
    assert!(code.code() == "HW004" && message.contains("has created 25 task types"), "{code:?} {message}");
    database.sql("SELECT howdah.enqueue('owner.' || n) FROM generate_series(1, 50) n").await;
}

#[test]
fn patterns_match_in_sql_as_over_grpc() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let client = runtime.block_on(async { database().await.connect().await });
    let strategy = (prop::collection::vec("[ab._:/-]{0,3}\\*?", 1..8), prop::collection::vec("[ab._:/-]{1,4}", 1..8));
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(40));
    let all = "SELECT p ~ '^([A-Za-z0-9._:/-]{1,200}|[A-Za-z0-9._:/-]{0,200}[*])$', howdah.matches(p, n)
               FROM unnest($1::text[]) WITH ORDINALITY a(p, i), unnest($2::text[]) WITH ORDINALITY b(n, j) ORDER BY i, j";
    runner
        .run(&strategy, |(patterns, names)| {
            let rows = runtime.block_on(client.query(all, &[&patterns, &names])).expect(all);
            let pairs = patterns.iter().flat_map(|pattern| names.iter().map(move |name| (pattern, name)));
            for (row, (pattern, name)) in rows.iter().zip(pairs) {
                let scope = Scope::parse(&format!("work:{pattern}"));
                prop_assert_eq!(row.get::<_, bool>(0), scope.is_ok(), "{}", pattern);
                if let Ok(scope) = scope {
                    prop_assert_eq!(row.get::<_, bool>(1), scope.pattern.matches(name), "{} {}", pattern, name);
                }
            }
            Ok(())
        })
        .unwrap();
}
