//! Tests the SQL interface with psql and psycopg. (The other tests use tokio-postgres.)

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use super::*;
use crate::support::{python::environment, root};

/// Runs a script with the `psql` beside the server's programs, or from the PATH.
fn psql(database: &TestDatabase, script: &str) -> Output {
    let beside = std::env::var_os("HOWDAH_PG_BIN").map(|bin| Path::new(&bin).join("psql")).filter(|psql| psql.exists());
    let mut command = Command::new(beside.unwrap_or_else(|| PathBuf::from("psql")));
    command.args(["-XqAt", "-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=verbose", &database.url, "-c", script]);
    command.output().expect("psql (Debian: apt-get install postgresql-client)")
}

#[tokio::test]
async fn psql_enqueues_in_a_transaction() {
    let database = database().await;
    let text = |output: &Output| String::from_utf8(output.stdout.clone()).unwrap();
    let output =
        psql(&database, "BEGIN; SELECT howdah.enqueue('mail.send', 'ann@example.com', delay => '5 min'); COMMIT");
    assert!(output.status.success(), "{output:?}");
    let id = database.count("SELECT id FROM howdah.scheduled").await;
    assert_eq!(text(&output).trim(), id.to_string());
    let output = psql(&database, "BEGIN; SELECT howdah.enqueue('mail.send', 'bob@example.com'); ROLLBACK");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(jobs(&database).await, 1);
    let output = psql(&database, "SELECT howdah.enqueue('mail.send', priority => 7000)");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("22023: priority is 7000; -1000 to 1000 is allowed"), "{stderr}");
    assert!(stderr.contains("COLUMN NAME:  priority"), "{stderr}");
}

#[tokio::test]
async fn the_psycopg_example_of_the_docs_runs() {
    if !crate::support::has_language("python3", "HOWDAH_SKIP_PYTHON") {
        return;
    }
    let python = tokio::task::spawn_blocking(python).await.expect("a Python with psycopg");
    let broker = TestBroker::start().await;
    let client = broker.database.connect().await;
    client
        .batch_execute("CREATE TABLE orders (id bigint PRIMARY KEY, item text, shipped boolean DEFAULT false)")
        .await
        .unwrap();
    // Waits for the example without blocking this thread, because the broker runs on the same thread.
    let example = async |call: &str, args: Vec<String>| {
        let script = format!("{}\nimport sys\n{call}\n", documented());
        let mut command = tokio::process::Command::new(&python);
        command.arg("-c").arg(script).arg(&broker.database.url).args(args).kill_on_drop(true);
        let output = with_timeout("the end of the example", command.output()).await.expect("python");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let id = example("print(order(psycopg.connect(sys.argv[1]), 7, 'tea'))", vec![]).await;
    let mut worker = broker.worker("order.ship").await;
    let job = worker.next().await;
    assert_eq!((job.id.to_string(), &job.payload[..]), (id.trim().to_owned(), &br#"{"id": 7, "item": "tea"}"#[..]));
    let lease = vec![job.id.to_string(), job.token.to_string()];
    let ship = "print(ship(psycopg.connect(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), 7))";
    assert_eq!(example(ship, lease.clone()).await.trim(), "True");
    assert_eq!(broker.count("SELECT count(*) FROM orders WHERE shipped").await, 1);
    client.batch_execute("UPDATE orders SET shipped = false").await.unwrap();
    assert_eq!(example(ship, lease).await.trim(), "False", "a lease that was completed before");
    assert_eq!(
        broker.count("SELECT count(*) FROM orders WHERE shipped").await,
        0,
        "writes of the rolled back transaction"
    );
}

/// Returns the Python code of docs/reference/sql.md.
fn documented() -> String {
    let docs = fs::read_to_string(root().join("docs/reference/sql.md")).unwrap();
    let code = docs.split("```python\n").nth(1).expect("an example in Python");
    code.split("```").next().unwrap().to_owned()
}

/// Returns a Python with psycopg: `HOWDAH_PYTHON_PSYCOPG`, or a virtual environment below `target/` that is created
/// once.
fn python() -> PathBuf {
    if let Some(program) = std::env::var_os("HOWDAH_PYTHON_PSYCOPG").filter(|value| !value.is_empty()) {
        return program.into();
    }
    environment("psycopg", &["psycopg[binary]==3.2.*"])
}
