//! Tests writes and acks that commit in one transaction.

use rand::RngExt as _;
use tokio::task::JoinSet;

use super::*;

#[tokio::test]
async fn a_worker_that_lost_its_lease_cannot_commit() {
    let broker = without_polls().await;
    let client = broker.database.connect().await;
    client.batch_execute("CREATE TABLE done (job bigint); SELECT howdah.enqueue('t', 'x')").await.unwrap();
    let mut worker = broker.worker("t").await;
    let lost = worker.next().await;
    // Releases the job, so that its first lease is lost, and receives the job again with a new token.
    worker.release(&lost).await;
    let job = worker.next().await;
    for (lease, ends) in [(&lost, "HW003"), (&job, "")] {
        client.batch_execute("BEGIN").await.unwrap();
        client.execute("INSERT INTO done VALUES ($1)", &[&lease.id]).await.unwrap();
        match client.execute("SELECT howdah.complete($1, $2, 'r'::text)", &[&lease.id, &lease.token]).await {
            Ok(_) => assert_eq!(ends, ""),
            Err(error) => assert_eq!(error.code().expect("a SQLSTATE").code(), ends),
        }
        // The transaction of the lost lease has failed, so Postgres treats its COMMIT as a rollback.
        client.batch_execute("COMMIT").await.unwrap();
    }
    assert_eq!(broker.count("SELECT count(*) FROM done").await, 1);
    assert_eq!(
        one::<String>(&client, "SELECT state || convert_from(result, 'UTF8') FROM howdah.job").await,
        "succeededr"
    );
    // Completing the job a second time must fail, because otherwise the transaction would write a second time.
    let again = format!("SELECT howdah.complete({}, {})", job.id, job.token);
    assert_eq!(refused(&client, &again).await.0.code(), "HW003");
    // The ack only frees the worker's window, because the broker treats it as a repeat of the outcome.
    worker.ack(&job).await;
}

/// Each job increments a counter. Workers are killed at random points: before the write, after it, and after the
/// commit.
#[tokio::test]
async fn a_counter_ends_at_exactly_the_number_of_jobs_though_workers_are_killed() {
    const JOBS: i64 = 300;
    let database = database().await;
    let quick = |config: &mut Config| config.session_grace = millis(50);
    let brokers = [TestBroker::on_with(&database, quick).await, TestBroker::on_with(&database, quick).await];
    let client = database.connect().await;
    client
        .batch_execute(&format!(
            "CREATE TABLE counter (n bigint); INSERT INTO counter VALUES (0);
             CREATE TABLE tries (job bigint);
             SELECT howdah.enqueue('count', n::text, max_attempts => 1000) FROM generate_series(1, {JOBS}) n"
        ))
        .await
        .unwrap();
    let mut workers = JoinSet::new();
    for n in 0..6 {
        let (grpc, url) = (brokers[n % 2].grpc.clone(), database.url.clone());
        workers.spawn(async move { count_for_ever(&grpc, &TestDatabase { url }).await });
    }
    until(
        &database,
        "the success of all jobs",
        &format!("SELECT count(*) = {JOBS} FROM howdah.history WHERE outcome = 'succeeded'"),
    )
    .await;
    workers.shutdown().await;
    assert_eq!(database.count("SELECT n FROM counter").await, JOBS);
    assert!(database.count("SELECT count(*) FROM tries").await > JOBS, "no worker was killed while it had a job");
    for table in ["ready", "leased", "scheduled", "dead"] {
        assert_eq!(database.count(&format!("SELECT count(*) FROM howdah.{table}")).await, 0, "{table}");
    }
}

/// Runs a worker that is killed about every tenth job and restarted.
async fn count_for_ever(grpc: &str, database: &TestDatabase) {
    loop {
        let mut worker = Worker::connect(grpc, "count", 3).await;
        let client = database.connect().await;
        loop {
            let job = worker.next().await;
            let killed_at = rand::rng().random_range(0..30);
            client.execute("INSERT INTO tries VALUES ($1)", &[&job.id]).await.unwrap();
            if killed_at == 0 {
                break;
            }
            client.batch_execute("BEGIN; UPDATE counter SET n = n + 1").await.unwrap();
            if killed_at == 1 {
                break;
            }
            let done = client.execute("SELECT howdah.complete($1, $2)", &[&job.id, &job.token]).await;
            if killed_at == 2 {
                break;
            }
            client.batch_execute(if done.is_ok() { "COMMIT" } else { "ROLLBACK" }).await.unwrap();
            if killed_at == 3 {
                break;
            }
            worker.ack(&job).sent().await;
        }
        // The worker is killed: its stream and its database connection break, with the open transaction.
        worker.vanish();
    }
}
