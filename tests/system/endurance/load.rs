//! The processes that put load on a system: Postgres with fsync, brokers and workers. Producers are tasks of the test
//! process.

use std::{
    path::PathBuf,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use howdah_cli::postgres::{Cluster, ClusterConfig};
use tokio::{
    process::{Child, Command},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use super::{
    brokers::Broker,
    mix::Mix,
    producer::{self, BATCH, Production},
    record::{Record, diary},
    watch::Watch,
    worker::{self, Orders},
};
use crate::support::{TestDatabase, cluster_config, open_directory};

/// Parameters of an endurance test.
pub(super) struct Plan {
    pub(super) brokers: usize,
    pub(super) workers: usize,
    pub(super) mix: Mix,
    /// Approximate duration of the load. The producers spread their jobs over this time.
    pub(super) duration: Duration,
    /// Additional arguments of the brokers.
    pub(super) settings: Vec<&'static str>,
    /// Timeout of a producer's call, after which the producer repeats it.
    pub(super) patience: Duration,
    pub(super) poison: &'static str,
    /// Whether workers send only acks. Otherwise they also nack, snooze and release some jobs.
    pub(super) plain: bool,
    /// Whether the test records all changes of job rows, and at the end replays them against the model of leases.
    pub(super) replayed: bool,
}

impl Plan {
    pub(super) fn new(mix: Mix, seconds: u64) -> Self {
        Self {
            brokers: 3,
            workers: 4,
            mix,
            duration: Duration::from_secs(seconds),
            settings: super::brokers::QUICK.to_vec(),
            patience: Duration::from_secs(8),
            poison: "",
            plain: false,
            replayed: false,
        }
    }
}

/// Number of producers.
pub(super) const PRODUCERS: usize = 4;

/// Minimum number of jobs in a test.
pub(super) fn jobs() -> usize {
    let wish = std::env::var("HOWDAH_ENDURANCE_JOBS").ok();
    wish.map_or(50_000, |wish| wish.parse().expect("HOWDAH_ENDURANCE_JOBS is a number"))
}

/// Directory of a test's records, kept for inspection if the test fails.
pub(super) struct Records(Option<tempfile::TempDir>);

impl Records {
    pub(super) fn new(directory: tempfile::TempDir) -> Self {
        Self(Some(directory))
    }

    pub(super) fn path(&self) -> PathBuf {
        self.0.as_ref().expect("a directory").path().to_owned()
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        if (std::thread::panicking() || std::env::var_os("HOWDAH_ENDURANCE_KEEP").is_some())
            && let Some(dir) = self.0.take()
        {
            eprintln!("the records are in {}", dir.keep().display());
        }
    }
}

/// All processes and data of a running load.
pub(super) struct Load {
    pub(super) workers: Vec<Option<Child>>,
    pub(super) brokers: Vec<Broker>,
    pub(super) database: TestDatabase,
    /// Database of the second store; `None` in tests with one store.
    pub(super) second: Option<TestDatabase>,
    /// The private Postgres cluster; `None` if the test manages Postgres itself.
    cluster: Option<Cluster>,
    pub(super) production: Production,
    pub(super) producers: Vec<JoinHandle<()>>,
    pub(super) records: Records,
    pub(super) plan: Plan,
    pub(super) began: Instant,
    pub(super) watches: Vec<Watch>,
    /// Number of workers started so far, which makes the names of their records unique.
    lives: usize,
}

/// Configuration of a private Postgres with durable commits.
pub(super) fn durable() -> ClusterConfig {
    let mut config = cluster_config();
    config.fsync = true;
    config.max_connections = 200;
    config
}

impl Load {
    /// Starts brokers and workers on a new private Postgres, without producers.
    pub(super) async fn start(plan: Plan) -> Self {
        let cluster = Cluster::start(durable()).await.expect("Postgres");
        cluster.create_database("app").await.expect("database");
        let url = cluster.url("app");
        Self::start_on(plan, cluster, &url).await
    }

    /// Starts brokers and workers on this Postgres, which the brokers reach by `url`, without producers.
    pub(super) async fn start_on(plan: Plan, cluster: Cluster, url: &str) -> Self {
        let database = TestDatabase { url: cluster.url("app") };
        Self { cluster: Some(cluster), ..Self::start_at(plan, database, url).await }
    }

    /// Starts brokers and workers on a Postgres that the caller manages, without producers.
    pub(super) async fn start_at(plan: Plan, database: TestDatabase, url: &str) -> Self {
        Self::start_with(plan, database, None, |name| vec![TestDatabase { url: url.to_owned() }.named(name).url]).await
    }

    /// Starts brokers and workers on two stores. `second` is the database of the second store and the URL by which brokers reach
    /// it.
    pub(super) async fn start_two(plan: Plan, cluster: Cluster, second: (TestDatabase, String)) -> Self {
        let database = TestDatabase { url: cluster.url("app") };
        let stores = vec![format!("first={}", database.url), format!("second={}", second.1)];
        let load = Self::start_with(plan, database, Some(second.0), |_| stores.clone()).await;
        Self { cluster: Some(cluster), ..load }
    }

    async fn start_with(
        plan: Plan,
        database: TestDatabase,
        second: Option<TestDatabase>,
        urls: impl Fn(&str) -> Vec<String>,
    ) -> Self {
        let records = Records::new(open_directory());
        let mut brokers = Vec::new();
        for n in 0..plan.brokers {
            let name = format!("broker-{n}");
            brokers.push(Broker::start(&urls(&name), &plan.settings, &records.path(), &name).await);
        }
        if plan.replayed {
            database.record().await;
        }
        if let Some(second) = &second {
            // Create each task type in its store before any job exists, so that this store is the home of the type.
            database.sql("INSERT INTO howdah.task_type (name) VALUES ('plain')").await;
            second.sql("INSERT INTO howdah.task_type (name) VALUES ('second')").await;
        }
        plan.mix.prepare(&brokers[0].grpc).await;
        let pause = plan.duration.mul_f64((BATCH * PRODUCERS) as f64 / jobs() as f64);
        let production = Production {
            jobs: Arc::new(AtomicUsize::new(0)),
            refused: Arc::new(AtomicUsize::new(0)),
            stop: Arc::new(AtomicBool::new(false)),
            mix: plan.mix,
            pause,
            patience: plan.patience,
        };
        let began = Instant::now();
        let databases = std::iter::once(&database).chain(&second);
        let watches = databases.map(|database| Watch::start(database.url.clone())).collect();
        let (workers, producers) = (Vec::new(), Vec::new());
        let mut load = Self {
            workers,
            brokers,
            database,
            second,
            cluster: None,
            production,
            producers,
            records,
            plan,
            began,
            watches,
            lives: 0,
        };
        for n in 0..load.plan.workers {
            let worker = load.worker(n);
            load.workers.push(Some(worker));
        }
        load
    }

    /// Returns the private Postgres cluster.
    pub(super) fn cluster(&mut self) -> &mut Cluster {
        self.cluster.as_mut().expect("a Postgres of its own")
    }

    /// The databases of all stores.
    pub(super) fn databases(&self) -> impl Iterator<Item = &TestDatabase> {
        std::iter::once(&self.database).chain(&self.second)
    }

    pub(super) fn addresses(&self) -> Vec<String> {
        self.brokers.iter().map(|broker| broker.grpc.clone()).collect()
    }

    /// Starts a worker that connects to broker number `n` first.
    pub(super) fn worker(&mut self, n: usize) -> Child {
        let mut brokers = self.addresses();
        let first = n % brokers.len();
        brokers.rotate_left(first);
        self.worker_at(n, brokers)
    }

    /// Starts a worker that connects to the brokers at these addresses.
    pub(super) fn worker_at(&mut self, n: usize, brokers: Vec<String>) -> Child {
        self.lives += 1;
        let orders = Orders {
            name: format!("worker-{n}-{}", self.lives),
            brokers,
            records: self.records.path(),
            windows: self.plan.mix.windows(),
            poison: self.plan.poison.into(),
            plain: self.plan.plain,
            // The fourth worker pulls jobs, because pulled leases have no session and end only by their deadline.
            pulls: n == 3 && self.plan.mix == Mix::All && !self.plan.plain,
        };
        self.ourselves(worker::TEST, worker::VARIABLE, &orders.text())
    }

    /// Starts a producer process. It reads the record of its predecessor, which was killed, and continues there.
    pub(super) fn producer(&self, n: usize) -> Child {
        let orders = producer::Orders { number: n, brokers: self.addresses(), records: self.records.path() };
        self.ourselves(producer::TEST, producer::VARIABLE, &orders.text())
    }

    /// Starts this test program as another process, which ends together with the test.
    fn ourselves(&self, test: &str, variable: &str, orders: &str) -> Child {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args([test, "--exact", "--ignored", "--nocapture"]).env(variable, orders);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(diary(&self.records.path(), "processes"));
        command.kill_on_drop(true).spawn().expect("start this program")
    }

    /// Starts producers that run until they are stopped.
    pub(super) fn produce(&mut self) {
        for n in 0..PRODUCERS {
            let record = Record::open(&self.records.path(), &format!("producer-{n}"));
            let production = Production { mix: self.plan.mix.of_producer(n), ..self.production.clone() };
            let produce = producer::produce(n, self.addresses(), record, production);
            self.producers.push(tokio::spawn(produce));
        }
    }

    /// Number of jobs that brokers have accepted.
    pub(super) fn accepted(&self) -> usize {
        self.production.jobs.load(Ordering::Relaxed)
    }

    /// Number of errors that producers received from their calls.
    pub(super) fn refused(&self) -> usize {
        self.production.refused.load(Ordering::Relaxed)
    }

    /// Waits until `more` further jobs have been accepted.
    pub(super) async fn progress(&self, more: usize) {
        let enough = self.accepted() + more;
        self.accept(enough).await;
    }

    /// Waits until `enough` jobs have been accepted in total.
    pub(super) async fn accept(&self, enough: usize) {
        let patience = Duration::from_secs(120);
        loop {
            let before = self.accepted();
            if before >= enough {
                return;
            }
            let more = async {
                while self.accepted() == before {
                    sleep(Duration::from_millis(20)).await;
                }
            };
            let came = timeout(patience, more).await;
            assert!(came.is_ok(), "no job was accepted for {patience:?}; {before} so far");
        }
    }

    /// Waits until the requested number of jobs is accepted, then stops the producers.
    pub(super) async fn finish_producing(&mut self) {
        if !self.producers.is_empty() {
            self.accept(jobs()).await;
        }
        self.production.stop.store(true, Ordering::Relaxed);
        for producer in self.producers.drain(..) {
            timeout(Duration::from_secs(120), producer).await.expect("a producer ends").expect("no panic");
        }
    }

    /// Sleeps between two faults for a random time with this mean.
    pub(super) async fn pause(&self, mean: Duration) {
        sleep(mean.mul_f64(rand::random_range(0.2..1.8))).await;
    }
}
