//! Tests connections of the SQL worker: a new one per job, closed after the job, with a secret address.

use howdah_proto::v1::JobState;
use rustix::process::Signal;

use super::{ENDLESS, SqlBroker, sql};
use crate::support::*;

#[tokio::test]
async fn a_timeout_and_a_cancel_end_the_statement_in_the_server() {
    let broker = SqlBroker::start().await;
    let short = sql(ENDLESS).timeout(millis(500)).max_attempts(1);
    let ids = broker.enqueue(vec![short, sql(ENDLESS)]).await;
    let mut worker = broker.start_work(&["--jobs", "2"]);
    broker.until_running(ids[1]).await;
    broker.client.cancel_jobs([ids[1]]).await.unwrap();
    assert_eq!(broker.state(ids[1]).await, JobState::Cancelled);
    // Waits until the first job has timed out. By then the statements of both jobs must have ended in the database
    // server.
    assert_eq!(broker.wait(ids[0]).await.state(), JobState::Dead);
    for id in &ids {
        broker.until_gone(*id).await;
    }
    // The worker still runs jobs.
    let next = broker.enqueue(vec![sql("SELECT 1")]).await[0];
    assert_eq!(broker.wait(next).await.state(), JobState::Succeeded);
    worker.signal(Signal::TERM);
    assert!(worker.ended().await.success());
}

#[tokio::test]
async fn a_worker_that_stops_has_its_statements_cancelled_and_releases_the_jobs() {
    let broker = SqlBroker::start().await;
    let id = broker.enqueue(vec![sql(ENDLESS)]).await[0];
    let mut worker = broker.start_work(&["--stop-after", "10ms"]);
    broker.until_running(id).await;
    worker.signal(Signal::TERM);
    assert!(worker.ended().await.success());
    broker.until_gone(id).await;
    let job = broker.job(id).await;
    assert_eq!((job.state(), job.attempt), (JobState::Ready, 0));
}

#[tokio::test]
async fn after_a_kill_of_the_worker_the_statement_ends_and_the_job_runs_again() {
    let broker = SqlBroker::start().await;
    let id = broker.enqueue(vec![sql(ENDLESS)]).await[0];
    let mut worker = broker.start_work(&[]);
    broker.until_running(id).await;
    worker.signal(Signal::KILL);
    worker.ended().await;
    // The database server notices within 5 s that the worker's connection is gone, and ends the statement.
    broker.until_gone(id).await;
    // Makes the next attempt due now.
    let client = broker.database.connect().await;
    broker.until("the end of the lost lease", "SELECT count(*) = 0 FROM howdah.leased").await;
    client.batch_execute("UPDATE howdah.scheduled SET run_at = now()").await.unwrap();
    let mut worker = broker.start_work(&[]);
    broker.until_running(id).await;
    worker.signal(Signal::KILL);
    worker.ended().await;
}

#[tokio::test]
async fn each_job_gets_a_clean_session_with_the_id_of_the_job_in_its_settings() {
    let broker = SqlBroker::start().await;
    let dirt = "SET work_mem = '1MB'; CREATE TEMP TABLE left_over (); SELECT pg_advisory_lock(7); LISTEN x;
                SET ROLE pg_read_all_data; PREPARE p AS SELECT 1; SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY; SELECT pg_backend_pid()";
    let look = "SELECT current_setting('howdah.job_id') || ' ' || current_setting('howdah.task_type') || ' '
                       || current_setting('howdah.attempt') AS job, pg_backend_pid() AS pid,
                       current_setting('work_mem') <> '1MB' AND to_regclass('left_over') IS NULL
                       AND NOT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())
                       AND NOT EXISTS (SELECT FROM pg_prepared_statements)
                       AND NOT EXISTS (SELECT FROM pg_listening_channels())
                       AND current_user = session_user
                       AND current_setting('transaction_read_only') = 'off' AS clean";
    let jobs = broker.done(vec![sql(dirt), sql(look).header("sql-header", "none")]).await;
    let (first, second) = (String::from_utf8_lossy(&jobs[0].result), String::from_utf8_lossy(&jobs[1].result));
    let pid = first.lines().last().unwrap();
    assert_eq!(second, format!("{} sql 1\t{pid}\tt", jobs[1].id));
}

#[tokio::test]
async fn a_connection_that_was_ended_is_replaced_and_a_running_job_is_tried_again() {
    let broker = SqlBroker::start().await;
    let first = broker.enqueue(vec![sql("SELECT 1")]).await[0];
    let mut worker = broker.start_work(&[]);
    assert_eq!(broker.wait(first).await.state(), JobState::Succeeded);
    let admin = broker.database.connect().await;
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
               WHERE datname = current_database() AND query IN ('DISCARD ALL', $1)";
    admin.query(end, &[&ENDLESS]).await.unwrap();
    let second = broker.enqueue(vec![sql("SELECT 2")]).await[0];
    assert_eq!(broker.wait(second).await.state(), JobState::Succeeded);
    assert_eq!(broker.job(second).await.attempt, 1);
    let third = broker.enqueue(vec![sql(ENDLESS).header("sql-retry", "false")]).await[0];
    broker.until_running(third).await;
    admin.query(end, &[&ENDLESS]).await.unwrap();
    broker.until("the failed job", "SELECT count(*) = 1 FROM howdah.scheduled").await;
    let job = broker.job(third).await;
    assert!(job.failures[0].error.contains("SQLSTATE 57P01"), "{:?}", job.failures);
    worker.signal(Signal::TERM);
    assert!(worker.ended().await.success());
}

#[tokio::test]
async fn other_databases_are_reached_by_name_and_only_by_name() {
    let broker = SqlBroker::start().await;
    let other = database().await;
    other.connect().await.batch_execute("CREATE TABLE only_here (n int)").await.unwrap();
    let ids = broker
        .enqueue(vec![
            sql("SELECT count(*) AS n FROM only_here").header("sql-database", "reports"),
            sql("SELECT count(*) AS n FROM only_here"),
            sql("SELECT 1").header("sql-database", "secret"),
            sql("SELECT 1").header("sql-database", &other.url),
        ])
        .await;
    let named = format!("reports={}", other.url);
    let errors =
        broker.work(&["--name", &named, "--name", "empty=postgres://nobody@localhost:1/x", "--max-jobs", "4"]).await;
    assert_eq!(&broker.job(ids[0]).await.result[..], b"n\n0");
    assert!(broker.job(ids[1]).await.failures[0].error.contains("only_here"));
    let unknown = &broker.job(ids[2]).await;
    assert_eq!(unknown.state(), JobState::Dead);
    let error = &unknown.failures[0].error;
    assert!(error.contains("\"secret\"") && error.ends_with("use one of empty, reports"), "{error}");
    assert_eq!(broker.state(ids[3]).await, JobState::Dead);
    assert!(!errors.contains("nobody@"), "{errors}");
}

#[tokio::test]
async fn connection_strings_are_absent_from_errors_logs_and_process_arguments() {
    let broker = SqlBroker::start().await;
    let dsn = "postgres://someone:s3cret@127.0.0.1:1/nowhere?connect_timeout=2";
    let id = broker.enqueue(vec![sql("SELECT 1").header("sql-database", "far")]).await[0];
    let args = ["work", "--server", &broker.grpc, "--max-jobs", "1", "--sql", "env:FAR", "--name", "far=env:FAR"];
    let mut worker = Program::noted(&args, &[("FAR", dsn)]);
    let command = std::fs::read(format!("/proc/{}/cmdline", worker.child.id().unwrap())).unwrap();
    assert!(!String::from_utf8_lossy(&command).contains("s3cret"));
    assert!(worker.ended().await.success());
    let job = broker.job(id).await;
    // The worker could not connect to the database, so no statement ran and the attempt does not count.
    assert_eq!((job.state(), job.attempt, job.failures.len()), (JobState::Scheduled, 0, 0));
    let error = worker.last_words();
    assert!(
        error.contains("cannot connect to the database \"far\"")
            || error.contains("cannot connect to the database \\\"far"),
        "{error}"
    );
    assert!(!error.contains("s3cret") && !error.contains("someone") && !error.contains("nowhere"), "{error}");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("dsn");
    std::fs::write(&file, "postgres://u:s3cret@h/d?nonsense=1\n").unwrap();
    for given in ["postgres://u:s3cret@h/d?sslmode=maybe", &format!("file:{}", file.display()), "env:NOT_SET", ""] {
        let (status, out, errors) = run(&["work", "--server", &broker.grpc, "--sql", given], b"").await;
        assert_eq!(status.code(), Some(2), "{given}: {errors}");
        assert!(errors.contains("--sql") && !errors.contains("s3cret") && out.is_empty(), "{errors}");
    }
    let args = ["work", "--server", &broker.grpc, "--sql", "env:X", "--name", "postgres://u:s3cret@h/d"];
    let (_, _, errors) = run(&args, b"").await;
    assert!(errors.contains("--name"), "{errors}");
}
