//! Tests `howdah doctor` on real databases that have each problem.

use howdah_client::{NewJob, NewSchedule, Plan};
use howdah_core::config::Config;
use howdah_engine::store::Store;
use serde_json::Value;

use crate::support::*;

/// Exit status and findings of a run of `howdah doctor`.
struct Examined {
    status: Option<i32>,
    findings: Vec<Value>,
    stderr: String,
}

impl Examined {
    fn finding(&self, check: &str) -> Option<&Value> {
        self.findings.iter().find(|finding| finding["check"] == check)
    }

    fn level(&self, check: &str) -> &str {
        self.finding(check).map_or("", |finding| finding["level"].as_str().unwrap())
    }

    fn checks(&self) -> Vec<&str> {
        self.findings.iter().map(|finding| finding["check"].as_str().unwrap()).collect()
    }
}

async fn examine_with(url: &str, more: &[&str]) -> Examined {
    let command = ["doctor", "--json", "--database-url", url];
    let (status, out, stderr) = run(&[&command, more].concat(), b"").await;
    let findings = out.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    Examined { status: status.code(), findings, stderr }
}

async fn examine(database: &TestDatabase) -> Examined {
    examine_with(&database.url, &[]).await
}

/// Returns the checks with findings, except those that fail on every test server because it is small and not durable.
fn others(examined: &Examined) -> Vec<&str> {
    let of_the_server = [
        "fsync",
        "full_page_writes",
        "synchronous_commit",
        "autovacuum_naptime",
        "idle_in_transaction_session_timeout",
        "max_wal_size",
        "shared_buffers",
        "files",
    ];
    examined.checks().into_iter().filter(|check| !of_the_server.contains(check)).collect()
}

/// Creates a database with the partitions of all days. A template that was made before midnight lacks the newest day.
async fn complete() -> TestDatabase {
    let database = database().await;
    Store::new(&Config::new(&database.url)).expect("store").make_partitions(3).await.expect("partitions");
    database
}

/// Returns the name of a database for ALTER DATABASE.
async fn name(database: &TestDatabase) -> String {
    let client = database.connect().await;
    client.query_one("SELECT current_database()::text", &[]).await.expect("a name").get(0)
}

#[tokio::test]
async fn a_fresh_database_has_only_findings_about_the_settings_of_its_server() {
    let examined = examine(&complete().await).await;
    assert_eq!(others(&examined), [""; 0]);
    assert_eq!((examined.level("fsync"), examined.level("autovacuum_naptime")), ("problem", "advice"));
    assert_eq!((examined.findings[0]["level"].as_str(), examined.status), (Some("problem"), Some(1)), "problems first");
    assert_eq!(examined.stderr, "howdah: found 3 problems\n");
}

#[tokio::test]
async fn the_text_output_shows_each_finding_with_the_change_to_make() {
    let database = complete().await;
    database.sql("ALTER TABLE howdah.leased SET (autovacuum_enabled = false)").await;
    let (status, out, _) = run(&["doctor", "--database-url", &database.url], b"").await;
    assert_eq!(status.code(), Some(1));
    let shown = "problem  autovacuum_of_table: autovacuum is off for leased\n         \
                 ALTER TABLE howdah.leased RESET (autovacuum_enabled)\n";
    assert!(out.contains(shown), "{out}");
}

#[tokio::test]
async fn settings_of_the_database_are_examined_as_a_broker_gets_them() {
    let database = complete().await;
    let name = name(&database).await;
    for (value, level) in [("off", "problem"), ("on", ""), ("remote_apply", "")] {
        database.sql(&format!("ALTER DATABASE {name} SET synchronous_commit = {value}")).await;
        let examined = examine(&database).await;
        assert_eq!(examined.level("synchronous_commit"), level, "{value}");
        if let Some(finding) = examined.finding("synchronous_commit") {
            let change = finding["change"].as_str().unwrap();
            assert!(change.starts_with(&format!("ALTER DATABASE {name} RESET synchronous_commit")), "{change}");
        }
    }
}

#[tokio::test]
async fn tables_whose_statistics_or_catalog_show_trouble_are_found() {
    let database = complete().await;
    database
        .sql(
            "UPDATE pg_class SET relpages = 100000 WHERE oid = 'howdah.ready'::regclass;
             UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'howdah.payload_pkey'::regclass;
             INSERT INTO howdah.payload (id, created, data) VALUES (1, '2001-01-01', 'x');
             UPDATE howdah.schema_part SET release = '0.0.9' WHERE part = 'view'",
        )
        .await;
    let examined = examine(&database).await;
    let level = |check| examined.level(check);
    assert_eq!([level("bloat"), level("default_partition"), level("release")], ["advice"; 3]);
    assert_eq!(level("indexes"), "problem");
    let bloat = examined.finding("bloat").unwrap()["found"].as_str().unwrap();
    assert!(bloat.starts_with("ready has 78"), "{bloat}");
}

#[tokio::test]
async fn dead_rows_that_vacuum_should_have_removed_are_found() {
    let database = complete().await;
    let session = database.connect().await;
    session
        .batch_execute(
            "ALTER TABLE howdah.ready SET (autovacuum_vacuum_threshold = 10, autovacuum_vacuum_scale_factor = 0,
                                           autovacuum_enabled = false);
             SELECT count(howdah.enqueue('t', 'x')) FROM generate_series(1, 100);
             DELETE FROM howdah.ready",
        )
        .await
        .expect("dead rows");
    eventually("the dead rows in the statistics", async || examine(&database).await.level("dead_rows") == "problem")
        .await;
}

#[tokio::test]
async fn the_recommended_changes_resolve_findings_about_autovacuum_and_missing_statistics() {
    let database = complete().await;
    // TRUNCATE discards the statistics of the table, which then looks as if it had never been analyzed.
    database
        .sql(
            "TRUNCATE howdah.scheduled; ALTER TABLE howdah.scheduled SET (autovacuum_enabled = false);
             INSERT INTO howdah.task_type (name) VALUES ('t');
             INSERT INTO howdah.scheduled (id, rank, created, run_at, type_id, attempt, max_attempts, priority, payload)
             SELECT i, i, now(), now() + interval '1 day', (SELECT id FROM howdah.task_type), 0, 1, 0, ''
             FROM generate_series(1, 100001) i",
        )
        .await;
    eventually("the new rows in the statistics", async || examine(&database).await.level("analyze") == "advice").await;
    let examined = examine(&database).await;
    for (check, level) in [("autovacuum_of_table", "problem"), ("analyze", "advice")] {
        assert_eq!(examined.level(check), level, "{check}");
        database.sql(examined.finding(check).unwrap()["change"].as_str().unwrap()).await;
        assert_eq!(examine(&database).await.level(check), "", "{check}");
    }
}

#[tokio::test]
async fn missing_objects_of_the_schema_and_foreign_triggers_are_found_with_statements_that_mend_them() {
    let database = complete().await;
    database
        .sql(
            "DROP INDEX howdah.dead_by_key; ALTER TABLE howdah.job_key DROP CONSTRAINT job_key_pkey;
             ALTER TABLE howdah.grants DISABLE TRIGGER first_grant;
             CREATE FUNCTION public.swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
             CREATE TRIGGER swallow BEFORE INSERT ON howdah.ready FOR EACH ROW EXECUTE FUNCTION public.swallow()",
        )
        .await;
    let examined = examine(&database).await;
    let text = |check: &str, part: &str| examined.finding(check).expect(check)[part].as_str().unwrap().to_owned();
    assert_eq!(examined.level("structure"), "problem");
    let found = text("structure", "found");
    assert!(
        found.contains("constraint job_key_pkey of job_key, index dead_by_key of dead, trigger first_grant of grants"),
        "{found}"
    );
    assert!(text("foreign_triggers", "found").contains("trigger swallow of ready"));
    let change = text("structure", "change");
    let (_, statements) = change.split_once("or run: ").expect("statements");
    database.sql(&format!("DROP TRIGGER swallow ON howdah.ready; {statements}")).await;
    assert_eq!(others(&examine(&database).await), [""; 0]);
}

#[tokio::test]
async fn a_missing_partition_and_a_failing_schedule_are_found() {
    let broker = TestBroker::on(&complete().await).await;
    let client = broker.client().await;
    let nightly = NewSchedule::new("nightly", NewJob::new("t"), Plan::every(HOUR)).start(far());
    client.create_schedule(nightly).await.expect("create");
    let database = broker.database.clone();
    broker.stop().await;
    let before = examine(&database).await;
    assert_eq!([before.level("partitions"), before.level("schedules"), before.level("schedules_late")], [""; 3]);
    let day = "to_char((now() AT TIME ZONE 'UTC')::date + 1, 'YYYYMMDD')";
    let broken = format!(
        "DO $$ BEGIN EXECUTE 'DROP TABLE howdah.history_' || {day}; END $$;
         UPDATE howdah.schema_part SET changed = now() - interval '1 day';
         UPDATE howdah.schedule SET last_error = 'refused', next_planned = now() - interval '1 hour'"
    );
    database.sql(&broken).await;
    let after = examine(&database).await;
    let found = [after.level("partitions"), after.level("schedules"), after.level("schedules_late")];
    assert_eq!(found, ["problem"; 3], "{:?}", after.checks());
}

#[tokio::test]
async fn problems_with_logical_replication_are_found_and_resolved_by_the_recommended_changes() {
    let database = complete().await;
    // Adds a table of an operator, and changes the replica identity of one of Howdah's tables.
    database
        .sql(
            "SELECT howdah.enqueue('t', 'x'); SELECT howdah.enqueue('t', 'x');
             CREATE TABLE howdah.theirs (id int); ALTER TABLE howdah.job_tag REPLICA IDENTITY DEFAULT",
        )
        .await;
    let examined = examine(&database).await;
    assert_eq!(others(&examined), ["replica_identity", "replica_identity"]);
    assert_eq!(examined.level("replica_identity"), "advice");
    database.sql("CREATE PUBLICATION everything FOR ALL TABLES; ALTER SEQUENCE howdah.job_id RESTART").await;
    let examined = examine(&database).await;
    assert_eq!((examined.level("replica_identity"), examined.level("sequences")), ("problem", "problem"));
    for finding in examined.findings.iter().filter(|finding| finding["check"] == "replica_identity") {
        database.sql(finding["change"].as_str().unwrap()).await;
    }
    let (status, out, err) = run(&["migrate", "--database-url", &database.url], b"").await;
    assert!(status.success(), "{out}{err}");
    assert!(err.contains("sequence howdah.job_id continues after "), "{err}");
    assert_eq!(others(&examine(&database).await), [""; 0]);
}

#[tokio::test]
async fn a_collation_of_another_version_is_found() {
    let database = complete().await;
    if !database.has_icu().await {
        return;
    }
    let other = database.empty("collated", "ENCODING 'UTF8' LOCALE_PROVIDER icu ICU_LOCALE 'und' LOCALE 'C'").await;
    let (status, out, err) = run(&["migrate", "--database-url", &other.url], b"").await;
    assert!(status.success(), "{out}{err}");
    assert_eq!(others(&examine(&other).await), [""; 0]);
    other.sql("UPDATE pg_database SET datcollversion = '1' WHERE datname = current_database()").await;
    assert_eq!(examine(&other).await.level("collation"), "advice", "none of Howdah's indexes depends on the collation");
    other.sql("CREATE INDEX theirs ON howdah.dead ((options ->> 'x'))").await;
    let examined = examine(&other).await;
    assert_eq!(examined.level("collation"), "problem");
    let change = examined.finding("collation").unwrap()["change"].as_str().unwrap();
    assert!(change.starts_with("REINDEX INDEX howdah.theirs; "), "{change}");
}

#[tokio::test]
async fn a_role_that_owns_nothing_is_found() {
    let database = complete().await;
    let role = format!("doctor_{}", name(&database).await);
    database
        .sql(&format!(
            "CREATE ROLE {role} LOGIN PASSWORD 'x'; GRANT USAGE ON SCHEMA howdah TO {role};
             GRANT SELECT ON ALL TABLES IN SCHEMA howdah TO {role};
             GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA howdah TO {role}"
        ))
        .await;
    let client = database.connect().await;
    let owner: String = client.query_one("SELECT current_user::text", &[]).await.expect("a role").get(0);
    let url = format!("{}&user={role}&password=x", database.url.replace(&format!("{owner}@"), ""));
    let examined = examine_with(&url, &[]).await;
    assert_eq!((examined.level("owner"), examined.level("statistics")), ("problem", "advice"), "{}", examined.stderr);
}

#[tokio::test]
async fn too_few_connections_too_few_open_files_and_missing_certificate_files_are_found() {
    let database = complete().await;
    assert_eq!(examine(&database).await.level("connections"), "");
    let examined = examine_with(&database.url, &["--pool-size", "1000"]).await;
    assert_eq!(examined.level("connections"), "advice");
    let examined =
        examine_with(&database.url, &["--tls-cert", "/nowhere/cert.pem", "--tls-key", "/nowhere/key.pem"]).await;
    assert_eq!(examined.level("tls"), "problem");
    let script = "ulimit -n 512 && exec \"$0\" \"$@\"";
    let program = howdah();
    let output = tokio::process::Command::new("sh")
        .args(["-c", script, program.to_str().unwrap(), "doctor", "--json", "--database-url", &database.url])
        .output();
    let output = with_timeout("the doctor", output).await.expect("sh");
    assert!(String::from_utf8_lossy(&output.stdout).contains(r#""check":"files","#), "{output:?}");
}

#[tokio::test]
async fn a_certificate_that_ends_soon_is_found_and_one_that_has_ended_is_a_problem() {
    let database = complete().await;
    let folder = open_directory();
    for (days, level) in [(60, ""), (3, "advice"), (-1, "problem")] {
        let mut params = rcgen::CertificateParams::new(vec!["localhost".into()]).expect("a name");
        let now = std::time::SystemTime::now();
        params.not_before = (now - HOUR * 24 * 30).into();
        params.not_after = (now - HOUR * 24 * 2 + HOUR * 24 * u32::try_from(days + 2).unwrap()).into();
        let key = rcgen::KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        let (cert_path, key_path) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
        std::fs::write(&cert_path, certificate.pem()).expect("write");
        std::fs::write(&key_path, key.serialize_pem()).expect("write");
        let files = ["--tls-cert", cert_path.to_str().unwrap(), "--tls-key", key_path.to_str().unwrap()];
        let examined = examine_with(&database.url, &files).await;
        assert_eq!(examined.level("tls_expires"), level, "{days} days: {:?}", examined.findings);
    }
}

#[tokio::test]
async fn a_missing_schema_is_advice_and_an_unreachable_server_exits_with_69() {
    let empty = database().await.empty("doctor", "ENCODING 'UTF8'").await;
    let examined = examine(&empty).await;
    assert_eq!((examined.status, examined.level("schema"), examined.level("fsync")), (Some(1), "advice", "problem"));
    assert_eq!(examined.finding("schema").unwrap()["change"], "run howdah migrate, or start a broker: both create it");
    let (status, out, err) = run(&["migrate", "--database-url", &empty.url], b"").await;
    assert!(status.success(), "{out}{err}");
    assert_eq!(others(&examine(&empty).await), [""; 0], "what no broker has served yet");
    let nobody = examine_with("postgres://nobody@127.0.0.1:1/none", &[]).await;
    assert_eq!(nobody.status, Some(69), "{}", nobody.stderr);
}
