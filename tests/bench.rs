//! `howdah bench`, from the command line to its last line.

use serde_json::Value;

use crate::support::{database, run};

/// The rows of a workload, after it went well.
async fn rows(args: &[&str], workload: &str) -> Vec<Value> {
    let (status, out, err) = run(args, b"").await;
    assert!(status.success(), "{args:?}: {status}: {err}");
    let lines = out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap_or_else(|e| panic!("{line}: {e}")));
    lines.filter(|row| row["workload"] == workload).collect()
}

#[tokio::test]
async fn a_benchmark_brings_its_own_postgres_and_broker_and_loses_nothing() {
    let rows = rows(&["bench", "cycle", "--seconds", "1", "--json"], "cycle").await;
    let [row] = rows.as_slice() else { panic!("one row, not {rows:?}") };
    assert!(row["jobs_per_s"].as_f64().unwrap() > 0.0, "{row}");
    assert!(row["of_yardstick"].as_f64().unwrap() > 0.0, "{row}");
    assert!(row["p50_ms"].as_f64().unwrap() <= row["p99_ms"].as_f64().unwrap(), "{row}");
    for fault in ["lost", "duplicated", "unexpected"] {
        assert_eq!(row[fault], 0, "{row}");
    }
}

#[tokio::test]
async fn a_benchmark_on_a_given_database_leaves_no_waiting_jobs_and_no_yardstick() {
    let database = database().await;
    let args =
        ["bench", "drain", "backlog", "--jobs", "500", "--seconds", "1", "--json", "--database-url", &database.url];
    let (status, out, err) = run(&args, b"").await;
    assert!(status.success(), "{status}: {err}");
    assert!(out.lines().any(|line| line.contains("\"drain\"")), "{out}");
    assert_eq!(database.count("SELECT count(*) FROM howdah.job WHERE state IN ('ready', 'leased')").await, 0);
    assert_eq!(database.count("SELECT count(*) FROM pg_namespace WHERE nspname = 'howdah_yardstick'").await, 0);
}

#[tokio::test]
async fn what_cannot_be_measured_is_said_before_anything_is_started() {
    for (args, word) in [
        (&["bench", "no-such-workload"][..], "no-such-workload"),
        (&["bench", "--payload", "7"], "payload"),
        (&["bench", "cycle", "--seconds", "0"], "seconds"),
    ] {
        let (status, out, err) = run(args, b"").await;
        assert_eq!(status.code(), Some(2), "{args:?}: {err}");
        assert!(out.is_empty() && err.contains(word), "{args:?}: {err}");
    }
}
