//! Tests the storage health by gRPC, metrics and the command line: dead rows, the holder of the oldest snapshot,
//! partitions.

use howdah_client::proto::{FindingLevel, ListTaskTypesRequest, SnapshotHolder, SnapshotHolderKind, StorageHealth};
use howdah_core::config::Config;
use howdah_engine::store::Store;
use serde_json::Value;

use crate::support::*;

/// Polls the storage health until `wanted` is true. Polling is necessary, because Postgres's statistics lag behind and
/// transactions of other tests may hold back vacuum.
async fn until_shown(broker: &TestBroker, what: &str, wanted: impl Fn(&StorageHealth) -> bool) -> StorageHealth {
    let client = broker.client().await;
    // Several stores have no common storage health, so ask one of them.
    let client = if let [_, own] = stores::own_store() { client.in_store(own).expect("a name") } else { client };
    let mut shown = StorageHealth::default();
    eventually(what, async || {
        shown = client.storage_health().await.expect("an answer").expect("the storage");
        wanted(&shown)
    })
    .await;
    shown
}

fn holder(health: &StorageHealth) -> SnapshotHolder {
    health.oldest_snapshot.clone().unwrap_or_default()
}

/// Opens a transaction with this first statement, and returns the pid of its session.
async fn hold(client: &tokio_postgres::Client, begin: &str) -> i32 {
    client.batch_execute(begin).await.expect(begin);
    client.query_one("SELECT pg_backend_pid()", &[]).await.expect("pid").get(0)
}

const SNAPSHOT: &str = "SET application_name = 'the holder'; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1";

#[tokio::test]
async fn a_held_snapshot_is_shown_with_its_pid_and_goes_away_when_it_ends() {
    let broker = TestBroker::start().await;
    let session = broker.database.connect().await;
    let pid = hold(&session, SNAPSHOT).await;
    let health = until_shown(&broker, "the snapshot of the open transaction", |health| holder(health).pid == pid).await;
    let shown = holder(&health);
    assert_eq!(shown.kind(), SnapshotHolderKind::Session);
    assert_eq!((shown.application_name.as_str(), shown.state.as_str()), ("the holder", "idle in transaction"));
    assert!(
        broker.database.url.ends_with(&shown.database)
            || broker.database.url.contains(&format!("/{}?", shown.database))
    );
    assert!(shown.age.is_some() && !shown.user.is_empty() && shown.xid_age >= 0, "{shown:?}");
    // Another transaction increases the age of the snapshot by one transaction.
    broker.database.connect().await.execute("SELECT pg_current_xact_id()", &[]).await.expect("a transaction");
    let more = shown.xid_age + 1;
    let later = |health: &StorageHealth| holder(health).pid == pid && holder(health).xid_age >= more;
    until_shown(&broker, "a higher age of the snapshot", later).await;
    session.batch_execute("COMMIT").await.expect("commit");
    until_shown(&broker, "the end of the snapshot", |health| holder(health).pid != pid).await;
}

#[tokio::test]
async fn a_transaction_that_writes_is_shown_without_a_snapshot_even_in_another_database() {
    let (database, elsewhere) = (database().await, crate::support::database().await);
    let broker = TestBroker::on(&database).await;
    for connected in [&database, &elsewhere] {
        let session = connected.connect().await;
        let pid = hold(&session, "BEGIN; SELECT pg_current_xact_id()").await;
        until_shown(&broker, "the writing transaction", |health| holder(health).pid == pid).await;
        session.batch_execute("ROLLBACK").await.expect("rollback");
        until_shown(&broker, "the end of the writing transaction", |health| holder(health).pid != pid).await;
    }
}

#[tokio::test]
async fn a_snapshot_of_another_database_holds_nothing_back_here_and_is_not_shown() {
    let (database, elsewhere) = (database().await, crate::support::database().await);
    let broker = TestBroker::on(&database).await;
    let there = elsewhere.connect().await;
    let far = hold(&there, SNAPSHOT).await;
    let session = database.connect().await;
    // This transaction began after the transaction in the other database, and is still the oldest in this database.
    session.execute("SELECT pg_current_xact_id()", &[]).await.expect("a transaction");
    let pid = hold(&session, SNAPSHOT).await;
    let health = until_shown(&broker, "the snapshot of the open transaction", |health| {
        assert_ne!(holder(health).pid, far);
        holder(health).pid == pid
    });
    health.await;
}

/// Opens a session that listens like the broker with this id, and whose client stops reading. Returns the session and
/// its pid.
async fn frozen_listener(database: &TestDatabase, id: i32) -> (impl Sized, i32) {
    let (client, mut connection) =
        tokio_postgres::connect(&database.url, tokio_postgres::NoTls).await.expect("connect");
    let begin = async {
        let name = format!("SET application_name = 'howdah listener {id} howdah'; LISTEN flood");
        client.batch_execute(&name).await.expect("LISTEN");
        client.query_one("SELECT pg_backend_pid()", &[]).await.expect("a pid").get::<_, i32>(0)
    };
    let pid = tokio::select! {
        pid = begin => pid,
        _ = &mut connection => panic!("the connection ended"),
    };
    ((client, connection), pid)
}

#[tokio::test]
async fn a_listener_that_does_not_read_is_shown_with_its_broker_and_without_an_age() {
    let broker = TestBroker::start().await;
    let id: i32 =
        broker.database.connect().await.query_one("SELECT id FROM howdah.broker", &[]).await.expect("a row").get(0);
    let (_frozen, pid) = frozen_listener(&broker.database, id).await;
    broker.sql("SELECT pg_notify('flood', n || repeat('x', 7900)) FROM generate_series(1, 1000) n").await;
    broker.sql("SELECT pg_current_xact_id()").await;
    let shown =
        holder(&until_shown(&broker, "the listener that reads nothing", |health| holder(health).pid == pid).await);
    assert!(shown.application_name.contains(&format!("howdah listener {id} howdah, of the broker")), "{shown:?}");
    assert_eq!((shown.state.as_str(), shown.age), ("idle", None));
}

#[tokio::test]
async fn the_listen_session_of_a_broker_whose_row_has_expired_is_ended_and_no_other() {
    let broker = TestBroker::start().await;
    let (_of_nobody, pid) = frozen_listener(&broker.database, 999_999).await;
    let (_foreign, foreign) = frozen_listener(&broker.database, 999_999).await;
    broker.sql("SELECT pg_notify('flood', n || repeat('x', 7900)) FROM generate_series(1, 1000) n").await;
    let own = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
               AND application_name = (SELECT format('howdah listener %s howdah', id) FROM howdah.broker)";
    broker.until("the broker's own listener", &format!("SELECT ({own}) = 1")).await;
    let gone = format!("SELECT count(*) = 0 FROM pg_stat_activity WHERE pid IN ({pid}, {foreign})");
    broker.until("the end of the listeners of dead brokers", &gone).await;
    assert_eq!(broker.count(own).await, 1);
}

#[tokio::test]
async fn a_prepared_transaction_is_shown_by_its_name() {
    let broker = TestBroker::start().await;
    let session = broker.database.connect().await;
    session.batch_execute("BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION 'left behind'").await.unwrap();
    let health = until_shown(&broker, "the prepared transaction", |health| holder(health).name == "left behind");
    let shown = holder(&health.await);
    assert_eq!((shown.kind(), shown.pid), (SnapshotHolderKind::PreparedTransaction, 0));
    assert!(shown.age.is_some() && !shown.user.is_empty(), "{shown:?}");
    session.batch_execute("ROLLBACK PREPARED 'left behind'").await.unwrap();
    until_shown(&broker, "the end of the prepared transaction", |health| holder(health).name.is_empty()).await;
}

/// Creates all day partitions, because the template may have been made before midnight. Returns the number of
/// partitions of history.
async fn partitions(database: &TestDatabase) -> i64 {
    Store::new(&Config::new(&database.url)).expect("store").make_partitions(3).await.expect("partitions");
    database.count("SELECT count(*) - 1 FROM pg_inherits WHERE inhparent = 'howdah.history'::regclass").await
}

#[tokio::test]
async fn partitions_are_counted_by_grpc_and_in_the_metrics() {
    let database = database().await;
    let before = partitions(&database).await;
    let made = "SELECT count(*) FILTER (WHERE howdah.make_day_partition('history', 'finished', current_date + 30)) FROM (VALUES (1)) v";
    assert_eq!(database.count(made).await, 1);
    let broker = TestBroker::on(&database).await;
    let counted = |health: &StorageHealth| i64::from(health.history_partitions) == before + 1;
    let health = until_shown(&broker, "one more partition of history", counted).await;
    assert!((0.0..=1.0).contains(&health.notification_queue_usage));
    let wanted = format!("howdah_history_partitions {}\n", before + 1);
    let mut metrics = String::new();
    eventually("the new partition in the metrics", async || {
        metrics = broker.metrics().await;
        metrics.contains(&wanted)
    })
    .await;
    for name in [
        "howdah_dead_rows{table=\"ready\"} ",
        "howdah_live_rows{table=\"waiting\"} ",
        "howdah_oldest_snapshot_age_seconds ",
        "howdah_oldest_snapshot_transactions ",
        "howdah_snapshot_bloat 0",
        "howdah_notification_queue_usage ",
    ] {
        assert!(metrics.contains(name), "{name} is not in {metrics}");
    }
}

#[tokio::test]
async fn dead_rows_appear_after_jobs_were_settled() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("s").window(50).await;
    broker.enqueue_all(["s"; 50]).await;
    for _ in 0..50 {
        let job = worker.next().await;
        worker.ack(&job).await;
    }
    let dead = |health: &StorageHealth| health.tables.get(1).is_some_and(|leased| leased.dead_rows >= 50);
    let health = until_shown(&broker, "dead rows", dead).await;
    let names: Vec<_> = health.tables.iter().map(|table| table.name.as_str()).collect();
    assert_eq!(names, ["ready", "leased", "scheduled", "waiting"]);
    // The migration sets this autovacuum threshold on the tables.
    assert!(health.tables.iter().all(|table| table.autovacuum_threshold >= 2_000), "{health:?}");
}

#[tokio::test]
async fn the_storage_comes_with_the_first_page_of_all_types_only() {
    let broker = TestBroker::start().await;
    broker.enqueue_all(["a", "b"]).await;
    let mut types = broker.task_types();
    let mut list = async |request| types.list_task_types(request).await.expect("a list").into_inner();
    let first = list(ListTaskTypesRequest { page_size: 1, ..Default::default() }).await;
    assert!(first.storage.is_some() && first.task_types.len() == 1);
    let page_token = first.next_page_token;
    let second = list(ListTaskTypesRequest { page_token, ..Default::default() }).await;
    assert!(second.storage.is_none() && second.task_types.len() == 1);
    let one = list(ListTaskTypesRequest { task_type: "a".into(), ..Default::default() }).await;
    assert!(one.storage.is_none() && one.task_types.len() == 1);
}

async fn types(broker: &TestBroker, more: &[&str]) -> String {
    let (status, out, err) =
        run(&[&["types", "--server", &broker.grpc], stores::own_store(), more].concat(), b"").await;
    assert!(status.success(), "{more:?}: {err}");
    stores::own_table(&out)
}

#[tokio::test]
async fn howdah_types_shows_the_storage_under_the_types_and_as_json_when_asked() {
    let database = database().await;
    let days = partitions(&database).await;
    let broker = TestBroker::on(&database).await;
    let empty = types(&broker, &[]).await;
    assert!(empty.starts_with("dead rows "), "{empty}");
    let request = howdah_proto::v1::EnqueueJobsRequest { jobs: vec![new_job("a", "")], ..Default::default() };
    broker.jobs().enqueue_jobs(request).await.expect("enqueue");
    let shown = types(&broker, &[]).await;
    let lines: Vec<&str> = shown.lines().collect();
    let begins = ["TYPE ", "a ", "", "dead rows ", "oldest snapshot ", "notifications ", "history "];
    assert!(lines.len() == 7 && lines.iter().zip(begins).all(|(line, begin)| line.starts_with(begin)), "{shown}");
    assert!(types(&broker, &["--storage"]).await.starts_with("dead rows "));
    assert_eq!(types(&broker, &["a"]).await.lines().count(), 2);

    let json = |text: &str| text.lines().map(|line| serde_json::from_str(line).expect(line)).collect::<Vec<Value>>();
    let all = json(&types(&broker, &["--json"]).await);
    assert_eq!((all.len(), &all[0]["name"]), (1, &Value::from("a")));
    let storage = json(&types(&broker, &["--storage", "--json"]).await);
    assert_eq!((storage.len(), &storage[0]["tables"][0]["name"]), (1, &Value::from("ready")));
    assert_eq!(storage[0]["history_partitions"].as_i64(), Some(days));
    let (status, ..) = run(&["types", "a", "--storage", "--server", &broker.grpc], b"").await;
    assert_eq!(status.code(), Some(2));
}

#[tokio::test]
async fn a_role_that_may_not_see_other_sessions_gets_the_storage_without_their_details() {
    let database = database().await;
    let admin = database.connect().await;
    let name: String = admin.query_one("SELECT current_database()", &[]).await.unwrap().get(0);
    let role = format!("blind_{name}");
    let sql = format!("CREATE ROLE {role} LOGIN; CREATE SCHEMA own AUTHORIZATION {role}");
    admin.batch_execute(&sql).await.unwrap();
    let blind = TestDatabase { url: database.url.replacen("howdah@", &format!("{role}@"), 1) };
    let broker = TestBroker::on_with(&blind, |config| config.schema = "own".into()).await;
    let pid = hold(&admin, SNAPSHOT).await;
    // Also waits for all partitions, because a broker creates them after it has begun to serve.
    let is_complete = |health: &StorageHealth| holder(health).pid == pid && health.history_partitions == 5;
    let health = until_shown(&broker, "the snapshot and all partitions", is_complete).await;
    let shown = holder(&health);
    assert!(shown.state.is_empty() && shown.age.is_none() && !shown.user.is_empty(), "{shown:?}");
    assert!(types(&broker, &[]).await.contains(" transactions: pid "));
    assert_eq!(health.tables.len(), 4);

    // A broker that may not read the list of sessions lists task types without the storage health.
    admin.batch_execute("COMMIT; REVOKE SELECT ON pg_stat_activity FROM public").await.unwrap();
    let list = broker.task_types().list_task_types(ListTaskTypesRequest::default()).await;
    assert_eq!(list.expect("a list").into_inner().storage, None);
    assert_eq!(types(&broker, &[]).await, "");
    let (status, _, err) = run(&["types", "--storage", "--server", &broker.grpc], b"").await;
    assert!(status.code() == Some(1) && err.contains("storage"), "{err}");
}

#[tokio::test]
async fn findings_of_doctor_are_shown_by_call_metric_and_command() {
    let database = database().await;
    database.sql("ALTER TABLE howdah.ready SET (autovacuum_enabled = false)").await;
    let broker = TestBroker::on(&database).await;
    let is_found = |health: &StorageHealth| health.findings.iter().any(|one| one.check == "autovacuum_of_table");
    let health = until_shown(&broker, "a finding", is_found).await;
    let finding = health.findings.iter().find(|one| one.check == "autovacuum_of_table").expect("the finding");
    assert_eq!(finding.level(), FindingLevel::Problem);
    assert_eq!(finding.change, "ALTER TABLE howdah.ready RESET (autovacuum_enabled)");
    let metrics = broker.metrics().await;
    let is_series = |line: &str| line.starts_with("howdah_findings{") && line.contains("check=\"autovacuum_of_table\"");
    assert!(metrics.lines().any(is_series), "{metrics}");
    let args = [&["types", "--storage", "--server", &*broker.grpc], stores::own_store()].concat();
    let (_, shown, stderr) = run(&args, b"").await;
    assert!(shown.contains("problem          autovacuum_of_table: autovacuum is off for ready"), "{shown}{stderr}");
}
