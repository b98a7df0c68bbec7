//! One Postgres for all tests, a database for each.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::{
        LazyLock,
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    time::{Duration, UNIX_EPOCH},
};

use howdah_cli::postgres::{Binaries, Cluster, ClusterConfig, Fetch};
use howdah_server::{config::Config, job::StoreNumber, store::Store};
use tokio::sync::{Mutex, OnceCell};
use tokio_postgres::{NoTls, error::SqlState};

use super::{
    program::howdah,
    signals::{eventually, until},
};

static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
static NEXT: AtomicU32 = AtomicU32::new(0);

/// What the databases of tests are copies of.
const TEMPLATE: &str = "template";
/// The same for those of second stores.
const OTHER_TEMPLATE: &str = "template_other";

/// A throw-away Postgres. Where none is installed, one is fetched, unless `HOWDAH_NO_FETCH` forbids it.
pub fn cluster_config() -> ClusterConfig {
    ClusterConfig {
        fsync: false,
        // Six tests at once, some with several brokers, each on two stores.
        max_connections: 1_000,
        howdah_binary: Some(howdah()),
        temporary_dir: temporary_dir(),
        settings: vec![
            // Each new database is some 10 MB of it.
            ("max_wal_size".into(), "256MB".into()),
            ("autovacuum_naptime".into(), "10min".into()),
            ("max_prepared_transactions".into(), "10".into()),
        ],
        fetch: Fetch { notify: say, ..Fetch::default() },
        ..ClusterConfig::default()
    }
}

/// Memory, where there is plenty: a new database is a thousand files, which a file system on a disk creates several times
/// as slowly.
fn temporary_dir() -> PathBuf {
    const PLENTY: u64 = 6 << 30;
    let memory = Path::new("/dev/shm");
    let free = rustix::fs::statvfs(memory).map_or(0, |found| found.f_bavail * found.f_frsize);
    if free >= PLENTY { memory.to_owned() } else { std::env::temp_dir() }
}

/// The directory of the programs of the Postgres that the tests use, `psql` among them if it was installed with the server.
pub async fn postgres_programs() -> PathBuf {
    cluster().await;
    Binaries::find(None).expect("the Postgres of this run").bin_dir().to_path_buf()
}

/// To standard error itself: what a test prints is shown only if it fails.
fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// The one Postgres of this test run.
async fn cluster() -> &'static Cluster {
    // It lives as long as this process: the guard ends it with us.
    CLUSTER.get_or_init(|| async { Cluster::start(cluster_config()).await.expect("a private Postgres") }).await
}

/// The template of this name whose partitions are those of today, in UTC. The first test of a day makes it: in one of
/// yesterday, the partition of the last day is missing, and another one is old.
async fn template(called: &str, number: Option<StoreNumber>) -> String {
    static MADE: Mutex<BTreeSet<String>> = Mutex::const_new(BTreeSet::new());
    let name = format!("{called}_{}", today().await);
    let mut made = MADE.lock().await;
    if !made.contains(&name) {
        make_template(cluster().await, &name, number).await;
        made.insert(name.clone());
    }
    name
}

/// The number of the day since 1970, in UTC. Tests are about days: what ended two days ago is archived, what is of
/// yesterday stays. So whoever asks in the last minutes of a day waits for the next one.
async fn today() -> u64 {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    /// As long as a test takes on a slow machine, but for a few.
    const LAST_MINUTES: Duration = Duration::from_secs(120);
    let of = |time: Duration| time.as_secs() / DAY.as_secs();
    loop {
        let now = UNIX_EPOCH.elapsed().expect("a clock that is right");
        if of(now) == of(now + LAST_MINUTES) {
            return of(now);
        }
        let next = Duration::from_secs((of(now) + 1) * DAY.as_secs());
        tokio::time::sleep(next - now).await;
    }
}

/// A database with Howdah's schema, to be copied.
async fn make_template(cluster: &Cluster, name: &str, number: Option<StoreNumber>) {
    cluster.create_database(name).await.expect("template database");
    let store = Store::new(&Config::new(cluster.url(name))).expect("store");
    store.migrate().await.expect("migrations");
    if let Some(number) = number {
        // Without the store, which would note it in the audit that tests read.
        let set = format!("SELECT howdah.set_store_number({number})");
        connect(&cluster.url(name)).await.batch_execute(&set).await.expect(&set);
    }
    store.make_partitions(3).await.expect("partitions");
    drop(store);
    until_unused(cluster, name).await;
}

/// Nobody may be connected to what is copied; Postgres does not say when the last one has left.
async fn until_unused(cluster: &Cluster, name: &str) {
    let admin = connect(&cluster.url("postgres")).await;
    let alone = format!("SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = '{name}')");
    eventually("a template that nobody uses", async || admin.query_one(&alone, &[]).await.expect(&alone).get(0)).await;
}

/// The number of the store that each test has: with `HOWDAH_TEST_STORE_NUMBER=4095`, all tests have the longest ids.
fn store_number() -> Option<StoreNumber> {
    let number = std::env::var("HOWDAH_TEST_STORE_NUMBER").ok()?;
    Some(number.parse().ok().and_then(StoreNumber::new).expect("HOWDAH_TEST_STORE_NUMBER is 0 to 4095"))
}

/// A database of its own for a test.
#[derive(Clone, Debug)]
pub struct TestDatabase {
    pub url: String,
}

/// A fresh database with Howdah's schema.
pub async fn database() -> TestDatabase {
    copy_of(&template(TEMPLATE, store_number()).await, "test").await
}

/// One that is another store than all of those.
pub async fn other_database() -> TestDatabase {
    // Its template is no copy of the other one: copies have one identity, so they are no two stores.
    copy_of(&template(OTHER_TEMPLATE, StoreNumber::new(1)).await, "other").await
}

async fn copy_of(template: &str, called: &str) -> TestDatabase {
    let cluster = cluster().await;
    let name = format!("{called}_{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let admin = connect(&cluster.url("postgres")).await;
    // Creating from a template fails while anybody else is at it: take turns.
    static TURN: Mutex<()> = Mutex::const_new(());
    let turn = TURN.lock().await;
    admin.batch_execute(&format!("CREATE DATABASE {name} TEMPLATE {template}")).await.expect("create database");
    drop(turn);
    let database = TestDatabase { url: cluster.url(&name) };
    drop_with_this_thread(name);
    database
}

/// Drops a database when this thread ends: libtest runs each test in its own thread. A thousand databases would fill the memory.
fn drop_with_this_thread(name: String) {
    struct Databases(Vec<String>);
    impl Drop for Databases {
        fn drop(&mut self) {
            for name in self.0.drain(..) {
                // The receiver is gone when the run ends.
                let _ = DROPPED.send(name);
            }
        }
    }
    thread_local! { static OF_THIS_TEST: RefCell<Databases> = const { RefCell::new(Databases(Vec::new())) }; }
    OF_THIS_TEST.with_borrow_mut(|databases| databases.0.push(name));
}

/// Takes the names of databases that no test uses any more. One thread drops them in order.
static DROPPED: LazyLock<mpsc::Sender<String>> = LazyLock::new(|| {
    let (sender, names) = mpsc::channel::<String>();
    let url = CLUSTER.get().expect("the Postgres of this run").url("postgres");
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        for name in names {
            let dropped = runtime.block_on(async {
                let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
                let connection = tokio::spawn(connection);
                let dropped = client.batch_execute(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await;
                connection.abort();
                dropped
            });
            if let Err(error) = dropped {
                say(&format!("{name} is not dropped: {error}"));
            }
        }
    });
    sender
});

impl TestDatabase {
    pub async fn connect(&self) -> tokio_postgres::Client {
        connect(&self.url).await
    }

    /// A copy of it, as it is now. Nobody uses it from now on.
    pub async fn copy(&self) -> Self {
        let name = self.name();
        until_unused(cluster().await, &name).await;
        copy_of(&name, "test").await
    }

    fn name(&self) -> String {
        let config: tokio_postgres::Config = self.url.parse().expect("a URL");
        config.get_dbname().expect("a database").to_owned()
    }

    /// An empty database beside this one; `options` are those of CREATE DATABASE.
    pub async fn empty(&self, suffix: &str, options: &str) -> Self {
        let admin = self.connect().await;
        let name = self.name();
        let other = format!("{name}_{suffix}");
        let sql = format!("CREATE DATABASE {other} TEMPLATE template0 {options}");
        admin.batch_execute(&sql).await.expect(&sql);
        Self { url: self.url.replacen(&name, &other, 1) }
    }

    /// From now on Postgres is away for whoever uses this database, or it is back. The first takes two commands: statements of one
    /// are a transaction, and whoever connects again before that ends still gets in.
    pub async fn allow_connections(&self, allowed: bool) {
        let name = self.name();
        let beside = Self { url: self.url.replacen(&name, "postgres", 1) }.connect().await;
        beside.batch_execute(&format!("ALTER DATABASE {name} ALLOW_CONNECTIONS {allowed}")).await.expect("alter");
        if !allowed {
            let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1";
            beside.execute(end, &[&name]).await.expect("terminate");
        }
    }

    /// Runs statements.
    pub async fn sql(&self, sql: &str) {
        self.connect().await.batch_execute(sql).await.expect(sql);
    }

    /// The next job gets the id after these of its store.
    pub async fn skip_ids(&self, ids: i64) {
        let set = format!(
            "SELECT setval('howdah.job_id', seqmin + {ids} - 1) FROM pg_sequence WHERE seqrelid = 'howdah.job_id'::regclass"
        );
        self.sql(&set).await;
    }

    /// Asks until it answers yes.
    pub async fn until(&self, what: &str, sql: &str) {
        until(self, what, sql).await;
    }

    /// One number, of a function that gives up if it has to wait for a lock: what a broker reads may be in its way.
    pub async fn count_unless_locked(&self, sql: &str) -> i64 {
        let client = self.connect().await;
        let mut counted = None;
        eventually(sql, async || match client.query_one(sql, &[]).await {
            Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => false,
            row => {
                counted = Some(row.expect(sql).get(0));
                true
            }
        })
        .await;
        counted.expect(sql)
    }

    /// One number.
    pub async fn count(&self, sql: &str) -> i64 {
        self.connect().await.query_one(sql, &[]).await.expect(sql).get(0)
    }
}

async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("connect");
    tokio::spawn(connection);
    client
}
