//! Provides one Postgres server for all tests, and one database per test.

use std::{
    cell::RefCell,
    collections::{BTreeSet, HashMap},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    time::{Duration, UNIX_EPOCH},
};

use howdah_cli::postgres::{Binaries, Cluster, ClusterConfig, Fetch};
use howdah_core::{config::Config, job::StoreNumber};
use howdah_engine::store::Store;
use tokio::sync::{Mutex, OnceCell};
use tokio_postgres::{NoTls, error::SqlState};

use super::{
    program::howdah,
    signals::{eventually, until},
};

static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Name of the template database from which test databases are copied.
const TEMPLATE: &str = "template";
/// Name of the template database with an adjustable clock.
const CLOCK_TEMPLATE: &str = "template_clock";
/// Name of the template database with the clock that `howdah settings advance` moves.
const TEST_CLOCK_TEMPLATE: &str = "template_test_clock";
/// Name of the template database with another store identity, for second stores.
const OTHER_TEMPLATE: &str = "template_other";

/// Configuration of the temporary Postgres. If Postgres is not installed, it is downloaded, unless `HOWDAH_NO_FETCH` is set.
pub fn cluster_config() -> ClusterConfig {
    ClusterConfig {
        fsync: false,
        // Eight tests run concurrently. Some start several brokers, and each broker may have two stores.
        max_connections: 1_000,
        howdah_binary: Some(howdah()),
        temporary_dir: temporary_dir(),
        settings: vec![
            // Each new database writes about 10 MB of WAL.
            ("max_wal_size".into(), "256MB".into()),
            ("autovacuum_naptime".into(), "10min".into()),
            ("max_prepared_transactions".into(), "10".into()),
        ],
        fetch: Fetch { notify: say, ..Fetch::default() },
        ..ClusterConfig::default()
    }
}

/// Returns a directory in memory if there is enough memory, because a new database has about a thousand files, which are slow
/// to create on disk.
fn temporary_dir() -> PathBuf {
    const PLENTY: u64 = 6 << 30;
    let memory = Path::new("/dev/shm");
    let free = rustix::fs::statvfs(memory).map_or(0, |found| found.f_bavail * found.f_frsize);
    if free >= PLENTY { memory.to_owned() } else { std::env::temp_dir() }
}

/// Returns the directory with the programs of the tests' Postgres. It includes `psql` if `psql` is installed beside the
/// server.
pub async fn postgres_programs() -> PathBuf {
    cluster().await;
    Binaries::find(None).expect("the Postgres of this run").bin_dir().to_path_buf()
}

/// Writes directly to standard error, because libtest shows captured output only if a test fails.
fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Returns the shared Postgres of this test run.
async fn cluster() -> &'static Cluster {
    // The shared Postgres runs until this process ends, when a guard process stops it.
    CLUSTER.get_or_init(|| async { Cluster::start(cluster_config()).await.expect("a private Postgres") }).await
}

/// Returns the name of a template database whose partitions start today, in UTC. The first test of a day creates it, because
/// yesterday's template lacks the newest day partition.
async fn template(called: &str, number: Option<StoreNumber>) -> String {
    static MADE: Mutex<BTreeSet<String>> = Mutex::const_new(BTreeSet::new());
    let name = format!("{called}_{}", today().await);
    let mut made = MADE.lock().await;
    if !made.contains(&name) {
        make_template(cluster().await, &name, number, called).await;
        made.insert(name.clone());
    }
    name
}

/// Number of the current UTC day since 1970. In the last two minutes of a day, first waits for midnight, because the result of
/// some tests depends on the current day.
async fn today() -> u64 {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    /// Longer than almost every test takes, even on a slow machine.
    const LAST_MINUTES: Duration = Duration::from_secs(120);
    let day_of = |time: Duration| time.as_secs() / DAY.as_secs();
    loop {
        let now = UNIX_EPOCH.elapsed().expect("a clock that is right");
        if day_of(now) == day_of(now + LAST_MINUTES) {
            return day_of(now);
        }
        let next = Duration::from_secs((day_of(now) + 1) * DAY.as_secs());
        tokio::time::sleep(next - now).await;
    }
}

/// Creates a template database with Howdah's schema. `called` is its name without the day.
async fn make_template(cluster: &Cluster, name: &str, number: Option<StoreNumber>, called: &str) {
    cluster.create_database(name).await.expect("template database");
    if called == CLOCK_TEMPLATE {
        // Create the clock before the schema, because some objects of the schema refer to these functions by oid.
        connect(&cluster.url(name)).await.batch_execute(CLOCK).await.expect(CLOCK);
    }
    let config = Config { test_clock: called == TEST_CLOCK_TEMPLATE, ..Config::new(cluster.url(name)) };
    let store = Store::new(&config).expect("store");
    store.migrate().await.expect("migrations");
    if let Some(number) = number {
        // Sets the number with SQL, because the store would write an audit entry, and some tests read all audit
        // entries.
        let set = format!("SELECT howdah.set_store_number({number})");
        connect(&cluster.url(name)).await.batch_execute(&set).await.expect(&set);
    }
    store.make_partitions(3).await.expect("partitions");
    drop(store);
    until_unused(cluster, name).await;
}

/// SQL that creates an adjustable clock, which replaces Postgres's functions.
const CLOCK: &str = "
    CREATE TABLE public.clock (ahead interval NOT NULL);
    INSERT INTO public.clock VALUES ('0');
    ALTER FUNCTION pg_catalog.now() RENAME TO real_now;
    CREATE FUNCTION pg_catalog.now() RETURNS timestamptz LANGUAGE sql STABLE AS
        'SELECT pg_catalog.real_now() + c.ahead FROM public.clock c';
    ALTER FUNCTION pg_catalog.clock_timestamp() RENAME TO real_clock_timestamp;
    CREATE FUNCTION pg_catalog.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
        'SELECT pg_catalog.real_clock_timestamp() + c.ahead FROM public.clock c'";

/// Waits until no session uses the template. A database with sessions cannot be copied, and Postgres has no event for the last
/// disconnect.
async fn until_unused(cluster: &Cluster, name: &str) {
    let admin = connect(&cluster.url("postgres")).await;
    let alone = format!("SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = '{name}')");
    eventually("a template without sessions", async || admin.query_one(&alone, &[]).await.expect(&alone).get(0)).await;
}

/// Store number of the test databases, from `HOWDAH_TEST_STORE_NUMBER`. The number 89 gives the longest ids.
fn store_number() -> Option<StoreNumber> {
    let number = std::env::var("HOWDAH_TEST_STORE_NUMBER").ok()?;
    Some(number.parse().ok().and_then(StoreNumber::new).expect("HOWDAH_TEST_STORE_NUMBER is 0 to 89"))
}

/// The database of one test.
#[derive(Clone, Debug)]
pub struct TestDatabase {
    pub url: String,
}

/// Creates a database with Howdah's schema.
pub async fn database() -> TestDatabase {
    copy_of(&template(TEMPLATE, store_number()).await, "test").await
}

/// Creates a database with Howdah's schema and an adjustable clock.
pub async fn database_with_clock() -> TestDatabase {
    copy_of(&template(CLOCK_TEMPLATE, store_number()).await, "clock").await
}

/// Creates a database with Howdah's schema, as `howdah dev --ephemeral` creates it: with a clock that tests advance.
pub async fn database_with_test_clock() -> TestDatabase {
    copy_of(&template(TEST_CLOCK_TEMPLATE, store_number()).await, "test_clock").await
}

/// Creates a database with Howdah's schema and a different store identity.
pub async fn other_database() -> TestDatabase {
    // Copies a separate template, because copies of one template share one store identity.
    copy_of(&template(OTHER_TEMPLATE, StoreNumber::new(1)).await, "other").await
}

async fn copy_of(template: &str, called: &str) -> TestDatabase {
    let cluster = cluster().await;
    let name = format!("{called}_{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let admin = connect(&cluster.url("postgres")).await;
    // Concurrent copies of one template would fail, so make them one after another.
    static LOCK: Mutex<()> = Mutex::const_new(());
    let guard = LOCK.lock().await;
    // The strategy FILE_COPY takes half the processor time of the default, which writes every page to the write-ahead
    // log.
    let create = format!("CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy");
    admin.batch_execute(&create).await.expect(&create);
    drop(guard);
    let database = TestDatabase { url: cluster.url(&name) };
    drop_with_this_thread(name);
    database
}

/// Drops the database when this thread ends, to save memory. Works because libtest runs each test in a separate thread.
fn drop_with_this_thread(name: String) {
    struct Databases(Vec<String>);
    impl Drop for Databases {
        fn drop(&mut self) {
            for name in self.0.drain(..) {
                // Sending fails only at the end of the run, when the receiver no longer exists.
                let _ = DROPPED.send(name);
            }
        }
    }
    thread_local! { static OF_THIS_TEST: RefCell<Databases> = const { RefCell::new(Databases(Vec::new())) }; }
    OF_THIS_TEST.with_borrow_mut(|databases| databases.0.push(name));
}

/// Queue of databases that no test uses any more. One thread drops these databases in order.
static DROPPED: LazyLock<mpsc::Sender<String>> = LazyLock::new(|| {
    let (sender, names) = mpsc::channel::<String>();
    let url = CLUSTER.get().expect("the Postgres of this run").url("postgres");
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let admin = runtime.block_on(connect(&url));
        for name in names {
            let drop = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
            if let Err(error) = runtime.block_on(admin.batch_execute(&drop)) {
                say(&format!("{name} is not dropped: {error}"));
            }
        }
    });
    sender
});

thread_local! {
    /// Shared connections of a test, by URL, because connecting takes longer than most statements of tests.
    static SHARED: RefCell<HashMap<String, Arc<tokio_postgres::Client>>> = RefCell::default();
}

impl TestDatabase {
    pub async fn connect(&self) -> tokio_postgres::Client {
        connect(&self.url).await
    }

    /// Copies this database. No test may use this database afterwards.
    pub async fn copy(&self) -> Self {
        let name = self.name();
        SHARED.with_borrow_mut(|shared| shared.remove(&self.url));
        until_unused(cluster().await, &name).await;
        copy_of(&name, "test").await
    }

    pub fn name(&self) -> String {
        let config: tokio_postgres::Config = self.url.parse().expect("a URL");
        config.get_dbname().expect("a database").to_owned()
    }

    /// Creates an empty database on the same server. `options` are options of CREATE DATABASE.
    pub async fn empty(&self, suffix: &str, options: &str) -> Self {
        let admin = self.connect().await;
        let name = self.name();
        let other = format!("{name}_{suffix}");
        let sql = format!("CREATE DATABASE {other} TEMPLATE template0 {options}");
        admin.batch_execute(&sql).await.expect(&sql);
        Self { url: self.url.replacen(&name, &other, 1) }
    }

    /// Permits or refuses all connections to this database. Commits a refusal before it ends the sessions, so that clients
    /// cannot reconnect.
    pub async fn allow_connections(&self, allowed: bool) {
        let name = self.name();
        let beside = Self { url: self.url.replacen(&name, "postgres", 1) }.connect().await;
        beside.batch_execute(&format!("ALTER DATABASE {name} ALLOW_CONNECTIONS {allowed}")).await.expect("alter");
        if !allowed {
            let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1";
            beside.execute(end, &[&name]).await.expect("terminate");
        }
    }

    /// Sets the adjustable clock this far ahead of the real time.
    pub async fn set_clock(&self, ahead: &str) {
        self.sql(&format!("UPDATE public.clock SET ahead = '{ahead}'")).await;
    }

    /// Runs statements.
    pub async fn sql(&self, sql: &str) {
        self.shared().await.batch_execute(sql).await.expect(sql);
    }

    /// Returns this thread's connection for statements that do not need a separate session.
    pub(super) async fn shared(&self) -> Arc<tokio_postgres::Client> {
        let open = SHARED.with_borrow(|shared| shared.get(&self.url).cloned());
        // An empty statement fails if the test has ended the session.
        if let Some(client) = open
            && client.simple_query("").await.is_ok()
        {
            return client;
        }
        let client = Arc::new(self.connect().await);
        SHARED.with_borrow_mut(|shared| shared.insert(self.url.clone(), client.clone()));
        client
    }

    /// Makes the store's id sequence skip `ids` job ids.
    pub async fn skip_ids(&self, ids: i64) {
        let set = format!(
            "SELECT setval('howdah.job_id', seqmin + {ids} - 1) FROM pg_sequence WHERE seqrelid = 'howdah.job_id'::regclass"
        );
        self.sql(&set).await;
    }

    /// Polls the database until the query returns true.
    pub async fn until(&self, what: &str, sql: &str) {
        until(self, what, sql).await;
    }

    /// Queries one number with a statement that fails if it would wait for a lock. Repeats the statement until it succeeds.
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

    /// Returns whether this Postgres has ICU, which changing its collation requires. Without ICU, prints what is not tested.
    pub async fn has_icu(&self) -> bool {
        // Without ICU, Postgres 16 and later have only one or two such rows; with ICU, hundreds.
        let has_icu = self.count("SELECT count(*) FROM pg_collation WHERE collprovider = 'i'").await > 10;
        if !has_icu {
            eprintln!("!!! this Postgres has no ICU: a change of the collation is NOT tested");
        }
        has_icu
    }

    /// Queries one number.
    pub async fn count(&self, sql: &str) -> i64 {
        self.shared().await.query_one(sql, &[]).await.expect(sql).get(0)
    }
}

async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("connect");
    tokio::spawn(connection);
    client
}
