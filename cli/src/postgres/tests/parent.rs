use std::env;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::NoTls;

use super::super::Cluster;
use super::{open_dir, persistent, query, throw_away};

const PART: &str = "HOWDAH_TEST_PARENT";

/// Acts as the parent in a separate process: starts a cluster, prints its URL, and holds it until it is killed.
#[tokio::test]
async fn plays_the_parent() {
    let Some(part) = env::var_os(PART) else {
        return;
    };
    let config = if part.is_empty() { throw_away() } else { persistent(Path::new(&part)) };
    let cluster = Cluster::start(config).await.unwrap();
    println!("\ncluster {} {}", cluster.url("postgres"), cluster.data_dir().display());
    io::stdin().lock().read_line(&mut String::new()).unwrap();
}

struct Parent {
    process: Child,
    data_dir: PathBuf,
    /// Task of the connection; it ends when the server closes the connection.
    connection: JoinHandle<()>,
    _client: tokio_postgres::Client,
}

impl Parent {
    async fn start(data_dir: &str) -> Self {
        let test = format!("{}::plays_the_parent", module_path!().split_once("::").unwrap().1);
        let mut process = Command::new(env::current_exe().unwrap())
            .args(["--exact", &test, "--nocapture"])
            .env(PART, data_dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map(Result::unwrap);
        let line = lines.find_map(|line| line.strip_prefix("cluster ").map(str::to_owned)).unwrap();
        let (url, data_dir) = line.split_once(' ').unwrap();
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
        let connection = tokio::spawn(async move { drop(connection.await) });
        Self { process, data_dir: data_dir.into(), connection, _client: client }
    }

    /// Kills the process with `kill -9`, and waits for the server to close its connection.
    async fn kill(mut self) -> PathBuf {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        timeout(Duration::from_secs(30), self.connection).await.expect("the server goes on").unwrap();
        self.data_dir
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_9_of_the_parent_ends_a_throw_away_server_and_the_next_start_removes_it() {
    let left = Parent::start("").await.kill().await;
    let _next = Cluster::start(throw_away()).await.unwrap();
    // A cluster starts its cleanup in the background, which may first remove directories of other tests.
    let removed = async {
        while left.exists() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(60), removed).await.expect("the directory of the killed process is still there");
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_9_of_the_parent_shuts_a_persistent_server_down_cleanly_and_it_starts_again() {
    let base = open_dir();
    let data = base.path().join("data");
    let parent = Parent::start(data.to_str().unwrap()).await;
    assert_eq!(parent.kill().await, data);
    let cluster = Cluster::start(persistent(&data)).await.unwrap();
    assert_eq!(query(&cluster, "SELECT 'up'").await, "up");
    let log = std::fs::read_to_string(data.join("postgres.log")).unwrap();
    assert!(log.contains("received fast shutdown request"), "{log}");
    assert!(!log.contains("recovery"), "{log}");
}
