//! Tests failed SQL jobs and their errors.

use howdah_proto::v1::JobState;

use super::{ENDLESS, SqlBroker, sql};

#[tokio::test]
async fn an_error_carries_sqlstate_place_detail_hint_and_context() {
    let broker = SqlBroker::start().await;
    let jobs = broker
        .done(vec![
            sql("SELECT 1;\nSELEC 2"),
            sql("SELECT 1/0"),
            sql("DO $$ BEGIN RAISE EXCEPTION 'boom' USING DETAIL = 'some', HINT = 'try'; END $$"),
            sql("SELECT 1/0").header("sql-retry", "false"),
        ])
        .await;
    let error = |n: usize| jobs[n].failures[0].error.as_str();
    assert_eq!(error(0), "syntax error at or near \"SELEC\" (SQLSTATE 42601) at line 2, column 1");
    assert_eq!(jobs[0].state(), JobState::Dead, "a syntax error is not retried");
    assert_eq!(error(1), "division by zero (SQLSTATE 22012)");
    assert_eq!(jobs[1].state(), JobState::Scheduled, "an error that depends on data is retried");
    assert_eq!(
        error(2),
        "boom (SQLSTATE P0001)\nDETAIL: some\nHINT: try\nCONTEXT: PL/pgSQL function inline_code_block line 1 at RAISE"
    );
    assert_eq!(jobs[3].state(), JobState::Dead, "a job that asks for no retry");
}

#[tokio::test]
async fn the_statements_of_a_payload_are_one_transaction() {
    let broker = SqlBroker::start().await;
    broker.sql("CREATE TABLE t (n int)").await;
    let jobs = broker
        .done(vec![
            sql("INSERT INTO t VALUES (1); SELECT 1/0"),
            sql("BEGIN; INSERT INTO t VALUES (2)"),
            sql("BEGIN; INSERT INTO t VALUES (3); COMMIT"),
            sql("VACUUM t"),
            sql("SELECT 1; VACUUM t"),
        ])
        .await;
    assert_eq!(broker.count("SELECT sum(n) FROM t").await, 3);
    let states: Vec<JobState> = jobs.iter().map(|job| job.state()).collect();
    use JobState::{Dead, Scheduled, Succeeded};
    assert_eq!(states, [Scheduled, Dead, Succeeded, Succeeded, Dead]);
    assert!(jobs[1].failures[0].error.contains("left a transaction open"), "{:?}", jobs[1].failures);
    assert_eq!(&jobs[3].result[..], b"VACUUM");
}

#[tokio::test]
async fn an_invalid_payload_or_header_fails_for_good_with_the_problem_in_the_error() {
    let broker = SqlBroker::start().await;
    let jobs = broker
        .done(vec![
            sql("").payload(b"SELECT '\xff'".to_vec()),
            sql("SELECT '\0'"),
            sql("COPY (SELECT 1) TO STDOUT"),
            sql("CREATE TABLE c (n int); COPY c FROM STDIN"),
            sql("SELECT 1").header("sql-format", "xml"),
            sql("SELECT 1").header("sql-nul", ""),
        ])
        .await;
    let parts = [
        "byte 9 is not UTF-8",
        "byte 9 is zero",
        "COPY",
        "COPY",
        "sql-format: unknown value \"xml\"",
        "sql-nul is unknown",
    ];
    for (job, part) in jobs.iter().zip(parts) {
        assert_eq!(job.state(), JobState::Dead, "{part}");
        assert!(job.failures[0].error.contains(part), "{part}: {:?}", job.failures);
    }
}

#[tokio::test]
async fn a_payload_that_changes_the_encoding_fails_for_good_and_the_next_one_is_read_well() {
    let broker = SqlBroker::start().await;
    let texts = ["SET client_encoding = latin1; SELECT 'é'", "SELECT 'é'"];
    let jobs = broker.done(texts.map(sql).to_vec()).await;
    assert_eq!(jobs[0].state(), JobState::Dead);
    let error = &jobs[0].failures[0].error;
    assert!(error.contains("client_encoding to LATIN1") && error.contains("UTF8"), "{error}");
    assert_eq!(jobs[1].state(), JobState::Succeeded);
    assert_eq!(jobs[1].result, "?column?\né".as_bytes());
}

#[tokio::test]
async fn the_timeout_of_a_worker_ends_statements_and_they_are_tried_again() {
    let broker = SqlBroker::start().await;
    let ids = broker.enqueue(vec![sql(ENDLESS)]).await;
    broker.work(&["--max-jobs", "1", "--timeout", "300ms"]).await;
    let job = broker.job(ids[0]).await;
    assert_eq!(job.state(), JobState::Scheduled);
    assert_eq!(job.failures[0].error, "the statements took longer than 300ms (--timeout), and were cancelled");
    broker.until_gone(ids[0]).await;
}
