//! Tests `howdah bench`, from the command line to the last line of its output.

use serde_json::Value;

use crate::support::{database, howdah, run};

/// Runs a benchmark workload, which must succeed, and returns its rows.
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
    // Checks only that the figures exist: rates depend on the machine, and latencies of a short run may be missing (null).
    for key in ["jobs_per_s", "of_yardstick", "p50_ms", "p99_ms"] {
        assert!(row.get(key).is_some(), "{key}: {row}");
    }
    none_went_wrong(row);
}

#[tokio::test]
#[ignore = "a whole workload: just measurements"]
async fn a_benchmark_on_a_given_database_drains_its_jobs_and_drops_the_yardstick() {
    let database = database().await;
    let args = ["bench", "drain", "--jobs", "500", "--seconds", "1", "--json", "--database-url", &database.url];
    let rows = rows(&args, "drain").await;
    let [row] = rows.as_slice() else { panic!("one row, not {rows:?}") };
    assert_eq!(row["jobs"], 500);
    assert!(row["jobs_per_s"].as_f64() > Some(0.0) && row["of_yardstick"].as_f64() > Some(0.0), "{row}");
    assert!(row["p50_ms"].as_f64() <= row["p99_ms"].as_f64(), "{row}");
    none_went_wrong(row);
    assert_eq!(database.count("SELECT count(*) FROM howdah.history").await, 500);
    assert_eq!(database.count("SELECT count(*) FROM pg_namespace WHERE nspname = 'howdah_yardstick'").await, 0);
}

#[tokio::test]
#[ignore = "a whole workload: just measurements"]
async fn a_backlog_on_a_given_database_is_cleaned_away() {
    let database = database().await;
    let args = ["bench", "backlog", "--jobs", "500", "--seconds", "1", "--json", "--database-url", &database.url];
    let rows = rows(&args, "backlog").await;
    assert_eq!(
        rows.iter().map(|row| row["case"].as_str().unwrap()).collect::<Vec<_>>(),
        ["cycle alone", "on top of 500"]
    );
    rows.iter().for_each(none_went_wrong);
    assert_eq!(database.count("SELECT count(*) FROM howdah.job WHERE state IN ('ready', 'leased')").await, 0);
}

#[tokio::test]
#[ignore = "a whole workload: just measurements"]
async fn tenants_are_measured_in_turn_with_a_baseline_of_one_table_per_tenant() {
    let args = [
        "bench",
        "tenants",
        "--tenants",
        "20",
        "--jobs",
        "2000",
        "--rounds",
        "3",
        "--seconds",
        "1",
        "--yardstick-seconds",
        "1",
        "--json",
    ];
    let rows = rows(&args, "tenants").await;
    let cases: Vec<&str> = rows.iter().map(|row| row["case"].as_str().unwrap()).collect();
    let (tables, own) = (
        ["in, a table a tenant", "out, a table a tenant", "both, a table a tenant"],
        ["in", "in, one stream", "in, by SQL", "out", "both"],
    );
    assert_eq!(cases, [tables[0], own[0], own[1], own[2], tables[1], own[3], tables[2], own[4]]);
    for row in &rows {
        none_went_wrong(row);
        let is_own = own.contains(&row["case"].as_str().unwrap());
        assert_eq!(row["of_tables_each"].as_array().map(Vec::len), is_own.then_some(3), "{row}");
        // The rate may be 0: on a slow machine no job may be settled in the measured third of a second.
        assert!(row["jobs"].is_u64() && row.get("of_tables").is_some() == is_own, "{row}");
    }
    // In each round, the workers drain the whole backlog of 2,000 jobs.
    for row in rows.iter().filter(|row| row["case"].as_str().unwrap().starts_with("out")) {
        assert!(row["jobs"] == 6_000 && row["jobs_per_s"].as_f64() > Some(0.0), "{row}");
    }
}

#[tokio::test]
#[ignore = "a whole workload: just measurements"]
async fn the_cost_of_a_job_at_a_rate_is_measured_next_to_the_cost_of_postgres_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let slowest = dir.path().join("slowest.csv").display().to_string();
    let times = ["--seconds", "10", "--yardstick-seconds", "1"];
    let args =
        [&["bench", "rates", "--rate", "20", "--rate", "50", "--slowest", &slowest, "--json"], &times[..]].concat();
    let rows = rows(&args, "rates").await;
    assert_eq!(rows.iter().map(|row| row["case"].as_str().unwrap()).collect::<Vec<_>>(), ["20/s", "50/s"]);
    for row in &rows {
        none_went_wrong(row);
        let parts = [
            "answer_p50_ms",
            "caller_p50_ms",
            "floor_p50_ms",
            "floor_per_s",
            "broker_switches_per_job",
            "postgres_switches_per_job",
        ];
        for key in parts {
            assert!(row[key].as_f64() > Some(0.0), "{key}: {row}");
        }
        assert!(row["answer_p50_ms"].as_f64() <= row["answer_p99_ms"].as_f64(), "{row}");
        // Checks only that `commits_per_job` exists, because Postgres reports commits late. On a slow machine the benchmark
        // sends fewer jobs than planned.
        assert!(row.get("commits_per_job").is_some() && row["sent"].as_f64() >= Some(60.0), "{row}");
    }
    // The file has the slowest hundred jobs of each case, or all jobs if fewer were sent.
    let csv = std::fs::read_to_string(slowest).expect("the file of the slowest jobs");
    let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    assert_eq!(lines.next().unwrap(), ["case", "job", "due", "began_ms", "answered_ms", "picked_up_ms"]);
    let of_first: Vec<_> = lines.filter(|line| line[0] == "20/s").collect();
    assert!(of_first.len() >= 40, "{csv}");
    let ms = |text: &str| text.parse::<f64>().unwrap_or_else(|e| panic!("{text}: {e}"));
    assert!(of_first.iter().map(|line| ms(line[5])).rev().is_sorted(), "{csv}");
    // `began_ms` comes from Postgres's clock and `picked_up_ms` from the worker's clock. The clocks differ by less than 1 ms.
    let has_begun = |line: &[&str]| ms(line[3]) <= ms(line[5]) + 1.0;
    // `answered_ms` is empty if the enqueue was answered after the end of the measurement.
    let was_answered = |line: &[&str]| line[4].is_empty() || ms(line[4]) > 0.0;
    assert!(of_first.iter().all(|line| has_begun(line) && was_answered(line)), "{csv}");
}

#[tokio::test]
#[ignore = "a whole workload: just measurements"]
async fn one_job_a_call_is_measured_with_callers_of_their_own_and_with_callers_that_share_a_stream() {
    let rows = rows(&["bench", "single", "--seconds", "1", "--yardstick-seconds", "1", "--json"], "single").await;
    let cases: Vec<&str> = rows.iter().map(|row| row["case"].as_str().unwrap()).collect();
    assert_eq!(cases, ["1 producer", "16 producers", "256 producers", "256 producers, one stream"]);
    for row in &rows {
        none_went_wrong(row);
        // The number of jobs may be 0: on a slow machine no job may be settled in the measured second.
        assert!(row["jobs"].is_u64() && row.get("of_yardstick").is_some(), "{row}");
    }
}

#[tokio::test]
#[ignore = "a whole workload: just measurements"]
async fn a_small_worker_on_a_full_queue_is_measured_by_the_time_from_one_job_to_the_next() {
    let rows = rows(&["bench", "slots", "--jobs", "300", "--yardstick-seconds", "1", "--json"], "slots").await;
    assert_eq!(rows.len(), 3, "{rows:?}");
    for row in &rows {
        none_went_wrong(row);
        assert_eq!(row["jobs"], 300);
        // Each handler sleeps for 1 ms, so a job takes at least that long.
        assert!(row["ms_per_job_of_a_handler"].as_f64() >= Some(1.0), "{row}");
    }
}

fn none_went_wrong(row: &Value) {
    for fault in ["lost", "duplicated", "unexpected"] {
        assert_eq!(row[fault], 0, "{row}");
    }
}

#[tokio::test]
#[ignore = "a whole workload: just measurements"]
async fn brokers_are_started_from_the_program_that_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let other = dir.path().join("howdah-before").display().to_string();
    let args = ["bench", "drain", "--jobs", "10", "--yardstick-seconds", "1", "--json", "--program", &other];
    let (status, _, errors) = run(&args, b"").await;
    assert!(!status.success() && errors.contains(&other), "{errors}");
    std::os::unix::fs::symlink(howdah(), &other).expect("a link");
    let rows = rows(&args, "drain").await;
    assert_eq!(rows[0]["jobs"], 10);
    none_went_wrong(&rows[0]);
}

#[tokio::test]
async fn invalid_benchmark_arguments_are_refused_before_anything_starts() {
    for (args, word) in [
        (&["bench", "no-such-workload"][..], "no-such-workload"),
        (&["bench", "--payload", "7"], "payload"),
        (&["bench", "cycle", "--seconds", "0"], "seconds"),
        (&["bench", "rates", "--rate", "0"], "--rate"),
        (&["bench", "tenants", "--tenants", "0"], "--tenants"),
        (&["bench", "tenants", "--rounds", "4"], "--rounds"),
        (&["bench", "drain", "--client", "python worker.py"], "--client"),
        (&["bench", "--program", "howdah-before", "--server", "http://127.0.0.1:7654"], "use only one of them"),
    ] {
        let (status, out, err) = run(args, b"").await;
        assert_eq!(status.code(), Some(2), "{args:?}: {err}");
        assert!(out.is_empty() && err.contains(word), "{args:?}: {err}");
    }
}
