//! Tests brokers behind PgBouncer in transaction mode, as Debian packages it. Without PgBouncer these tests are skipped with a
//! message.

use std::{os::unix::fs::MetadataExt as _, path::PathBuf, process::Stdio};

use howdah_core::config::{Config, WakeMode};
use howdah_engine::store::Store;
use howdah_server::serve::{self, Listeners, Reload, StartError};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
};

use crate::support::*;

/// A running PgBouncer; killed when dropped.
struct Pooler {
    _process: Child,
    _dir: tempfile::TempDir,
    database: TestDatabase,
}

/// Starts PgBouncer with this many connections to the database. `None` if PgBouncer is not installed.
async fn pooler(database: &TestDatabase, connections: u32) -> Option<Pooler> {
    let (socket_dir, name) = database.socket_dir_and_name();
    let dir = open_directory();
    let owner = std::fs::metadata(&socket_dir).expect("the socket directory");
    let file = dir.path().join("pgbouncer.ini");
    // PgBouncer cannot choose a free port, so its Unix socket is in a separate directory.
    let text = format!(
        "[databases]\n* = host={} port=5432 user=howdah pool_size={connections}\n\
         [pgbouncer]\npool_mode = transaction\nauth_type = any\nlisten_port = 6432\nunix_socket_dir = {}\n\
         max_client_conn = 200\nserver_reset_query =\n",
        socket_dir.display(),
        dir.path().display()
    );
    std::fs::write(&file, text).expect("its configuration");
    std::os::unix::fs::chown(dir.path(), Some(owner.uid()), Some(owner.gid())).expect("chown");
    let mut command = Command::new("pgbouncer");
    command.arg(&file).uid(owner.uid()).gid(owner.gid()).kill_on_drop(true).stderr(Stdio::piped());
    let mut process = match command.spawn() {
        Ok(process) => process,
        Err(error) => {
            eprintln!("!!! PgBouncer cannot be run ({error}): brokers behind a pooler are NOT tested");
            return None;
        }
    };
    let mut log = BufReader::new(process.stderr.take().expect("stderr")).lines();
    with_timeout("PgBouncer", async {
        while !log.next_line().await.expect("its log").expect("it ended").contains("process up") {}
    })
    .await;
    // Keeps reading PgBouncer's log, because PgBouncer would block on a full pipe.
    tokio::spawn(async move { while log.next_line().await.is_ok_and(|line| line.is_some()) {} });
    let host: String = dir.path().to_string_lossy().replace('/', "%2F");
    let database = TestDatabase { url: format!("postgres://howdah@/{name}?host={host}&port=6432") };
    Some(Pooler { _process: process, _dir: dir, database })
}

fn poll(config: &mut Config) {
    config.wake = WakeMode::Poll;
    config.poll_interval = millis(50);
}

#[tokio::test]
async fn jobs_run_behind_a_transaction_pooler_with_polling_or_a_direct_listen_connection() {
    let direct = database().await;
    let Some(pooler) = pooler(&direct, 3).await else { return };
    let one = TestBroker::on_with(&pooler.database, poll).await;
    let url = direct.url.clone();
    let other = TestBroker::on_with(&pooler.database, |config| config.listen_database_url = Some(url)).await;
    let mut worker = one.worker("t").await;
    let keyed = new_job("t", "keyed").key("k");
    let jobs: Vec<_> = (0..50).map(|n| new_job("t", n.to_string())).chain([keyed]).collect();
    for _ in ["first", "again"] {
        assert_eq!(other.enqueue_all(jobs.clone()).request_key("once").await.len(), 51);
    }
    let first = worker.next().await;
    worker.nack(&first, "again").at_once().await;
    for _ in 0..51 {
        let job = worker.next().await;
        worker.ack(&job).await;
    }
    assert_eq!(direct.count("SELECT count(*) FROM howdah.history").await, 51);
    let client = one.client().await;
    let plan = howdah_client::Plan::every(HOUR);
    let schedule = howdah_client::NewSchedule::new("s", howdah_client::NewJob::new("t"), plan);
    client.create_schedule(schedule.overlap(howdah_proto::v1::OverlapPolicy::OneWaiting)).await.unwrap();
    assert_eq!(worker.next().await.headers["howdah-schedule"], "s");
}

#[tokio::test]
async fn a_broker_leaves_no_statements_or_settings_in_the_sessions_of_a_pooler() {
    let direct = database().await;
    let Some(pooler) = pooler(&direct, 2).await else { return };
    let broker = TestBroker::on_with(&pooler.database, poll).await;
    let mut worker = broker.worker("t").await;
    broker.enqueue("t").await;
    let job = worker.next().await;
    worker.ack(&job).await;
    drop(worker);
    broker.stop().await;
    // Uses both connections of the pool at the same time, to check the settings of each.
    let (a, b) = (pooler.database.connect().await, pooler.database.connect().await);
    for client in [&a, &b] {
        client.batch_execute("BEGIN").await.unwrap();
        let left = "SELECT (SELECT count(*) FROM pg_prepared_statements)
                      || current_setting('enable_seqscan') || current_setting('statement_timeout')";
        let answer = client.simple_query(left).await.unwrap();
        let row = answer.iter().find_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        });
        assert_eq!(row.as_deref(), Some("0on0"));
    }
}

#[tokio::test]
async fn brokers_that_start_together_behind_two_connections_migrate_once() {
    let direct = database().await;
    let Some(pooler) = pooler(&direct, 2).await else { return };
    direct.connect().await.batch_execute("DROP SCHEMA howdah CASCADE").await.unwrap();
    let migrations = (0..5).map(|_| async {
        let mut config = Config::new(&pooler.database.url);
        poll(&mut config);
        // Migrations of several brokers run one after the other, so the last one may wait long for the pooler.
        config.database_timeout = PATIENCE;
        Store::new(&config).unwrap().migrate().await.unwrap().created
    });
    let created = with_timeout("the migrations", futures::future::join_all(migrations)).await;
    assert_eq!(
        created.iter().filter(|created| **created).count(),
        1,
        "more than one migration created the schema: {created:?}"
    );
    assert_eq!(direct.count("SELECT count(*) FROM howdah.schema_part").await, 3);
}

#[tokio::test]
async fn a_broker_that_listens_through_a_transaction_pooler_does_not_start() {
    let direct = database().await;
    let Some(pooler) = pooler(&direct, 3).await else { return };
    let mut config = Config::new(&pooler.database.url);
    config.listen = ([127, 0, 0, 1], 0).into();
    config.http = ([127, 0, 0, 1], 0).into();
    config.migrate = false;
    let listeners = Listeners::bind(&config).await.unwrap();
    let reload = Reload::fixed(&config);
    let ended =
        with_timeout("the refusal", serve::run(config, listeners, reload, |_| {}, std::future::pending())).await;
    assert!(matches!(ended, Err(StartError::NoNotifications | StartError::Store(_))), "{ended:?}");
    // A broker with the right setting uses the same sessions, and would fail if they contained prepared statements.
    let broker = TestBroker::on_with(&pooler.database, poll).await;
    broker.enqueue("t").await;
}

#[tokio::test]
async fn statements_that_others_have_left_in_the_sessions_of_a_pooler_do_no_harm() {
    let direct = database().await;
    let Some(pooler) = pooler(&direct, 1).await else { return };
    let other = pooler.database.connect().await;
    for n in 0..20 {
        other.batch_execute(&format!("PREPARE s{n} AS SELECT 1")).await.unwrap();
    }
    drop(other);
    let broker = TestBroker::on_with(&pooler.database, poll).await;
    broker.enqueue("t").await;
}

/// Returns the directory of the database server's Unix socket, and the name of the database.
impl TestDatabase {
    fn socket_dir_and_name(&self) -> (PathBuf, String) {
        let rest = self.url.split_once("@/").expect("a URL").1;
        let (name, host) = rest.split_once("?host=").expect("a socket");
        let host = host.split('&').next().unwrap_or_default().replace("%2F", "/").replace("%2f", "/");
        (host.into(), name.to_owned())
    }
}
