//! Tests a Postgres that refuses statements or cannot be reached: the errors that callers get, and whether the broker
//! reports that it is ready.

use std::path::Path;

use howdah_cli::postgres::{Cluster, StopMode};
use howdah_core::config::UrlFile;
use howdah_proto::v1::{ListJobsRequest, SettleStatus};
use tonic::Code;

use crate::{hostile::http::get, support::*};

pub(crate) mod connections; // passwords, limits, connection strings
pub(crate) mod timeouts; // of the role

/// Returns SQL for a trigger that refuses new rows of a table with this SQLSTATE.
fn refusal(table: &str, code: &str, when: &str) -> String {
    format!(
        "CREATE OR REPLACE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = '{code}'; END $$;
         CREATE TRIGGER refusal BEFORE INSERT ON howdah.{table} FOR EACH ROW {when} EXECUTE FUNCTION public.refuse()"
    )
}

fn end_of_refusal(table: &str) -> String {
    format!("DROP TRIGGER refusal ON howdah.{table}")
}

/// Returns whether `/readyz` reports that the broker is ready, and the text of the response.
async fn readyz(broker: &Service) -> (bool, String) {
    let answer = get(&broker.http, stores::readyz()).await;
    let (head, body) = answer.split_once("\r\n\r\n").expect("a body");
    (head.starts_with("HTTP/1.1 200"), body.to_owned())
}

#[tokio::test]
async fn unexpected_errors_of_postgres_make_calls_unavailable_and_the_broker_not_ready() {
    let broker = TestBroker::start().await;
    broker.enqueue("t").outcome().await;
    for code in ["54000", "XX001", "XX000", "P0001", "42501", "55000", "53100", "2200H", "38000"] {
        broker.sql(&refusal("ready", code, "")).await;
        let refused = broker.enqueue("t").refused().await;
        assert_eq!(refused.code, Code::Unavailable, "{code}: {refused:?}");
        assert!(refused.message.contains(&format!("SQLSTATE {code}")), "{refused:?}");
        let (ready, body) = readyz(&broker).await;
        assert!(!ready && (body.contains(code) || code == "42501"), "{code}: {body}");
        broker.sql(&end_of_refusal("ready")).await;
        assert_eq!(readyz(&broker).await, (true, stores::all_ready()), "{code}");
        broker.enqueue("t").outcome().await;
    }
}

#[tokio::test]
async fn a_broker_is_not_ready_while_claims_are_refused_and_claims_go_on_afterwards() {
    let broker = TestBroker::start().await;
    broker.enqueue("t").outcome().await;
    broker.sql(&refusal("leased", "XX002", "")).await;
    let mut worker = broker.worker("t").window(1).await;
    let (ready, body) = readyz(&broker).await;
    assert!(!ready && body.contains("SQLSTATE XX002"), "{body}");
    broker.sql(&end_of_refusal("leased")).await;
    assert!(readyz(&broker).await.0);
    let job = worker.next().await;
    assert_eq!(worker.ack(&job).status().await, SettleStatus::Ok);
}

#[tokio::test]
async fn one_job_that_postgres_refuses_fails_alone_and_the_broker_stays_ready() {
    let broker = TestBroker::start().await;
    broker.sql(&refusal("ready", "P0001", "WHEN (NEW.payload = 'poison'::bytea)")).await;
    let mut calls = tokio::task::JoinSet::new();
    for n in 0..60 {
        let request = broker.enqueue("b").payload(if n == 30 { "poison" } else { "food" });
        calls.spawn(async move { (n, request.answer().await) });
    }
    for (n, answer) in calls.join_all().await {
        assert_eq!(answer.is_err(), n == 30, "{n}: {answer:?}");
    }
    assert!(readyz(&broker).await.0);
    // Settles jobs of which Postgres refuses one. Only the outcome of that job fails.
    let mut worker = broker.worker("b").window(59).await;
    let jobs = worker.take(59).await;
    let poison = jobs[20].id;
    broker.sql(&refusal("history", "XX001", &format!("WHEN (NEW.id = {poison})"))).await;
    worker.settle(jobs.iter().map(ack).collect()).await;
    let mut done = 0;
    while done < 58 {
        let settled = worker.settled().await;
        if settled.id == poison {
            assert_eq!(settled.status(), SettleStatus::Unavailable);
        } else {
            assert_eq!(settled.status(), SettleStatus::Ok);
            done += 1;
        }
    }
}

#[tokio::test]
async fn with_postgres_stopped_calls_say_since_when_it_cannot_be_reached() {
    let mut config = cluster_config();
    config.fsync = true;
    let mut cluster = Cluster::start(config).await.expect("Postgres");
    cluster.create_database("app").await.expect("database");
    let database = TestDatabase { url: cluster.url("app") };
    // The timeout is so long that a call that waits for it would fail the test. Calls must fail at once.
    let broker = Program::serve(&database, &["--set", "database_timeout=10m"]).await;
    broker.enqueue("t").outcome().await;
    cluster.stop(StopMode::Immediate).await;
    let since = "Postgres cannot be reached since 20";
    // The first calls may get another error, because the connection on which they were sent breaks.
    eventually("an error that says since when Postgres is away", async || {
        let refused = broker.enqueue("t").refused().await;
        assert_eq!(refused.code, Code::Unavailable, "{refused:?}");
        refused.message.starts_with(since)
    })
    .await;
    let list = ListJobsRequest { task_type: "t".into(), page_size: 10, ..ListJobsRequest::default() };
    let refused = with_timeout("an answer", broker.jobs().list_jobs(list)).await.unwrap_err();
    assert!(refused.code() == Code::Unavailable && refused.message().starts_with(since), "{refused}");
    let (ready, body) = readyz(&broker).await;
    assert!(!ready && body.contains(since), "{body}");
    let (status, _, err) = run(&["--server", &broker.grpc, "types"], b"").await;
    assert!(status.code() == Some(69) && err.contains(since), "{err}");
    let http = broker.http.trim_start_matches("http://");
    let (status, _, err) = run(&["health", "--http", http], b"").await;
    assert!(status.code() == Some(69) && err.contains("the broker runs") && err.contains(since), "{err}");
    let unused = unused_address().to_string();
    let (status, _, err) = run(&["health", "--http", &unused], b"").await;
    assert!(status.code() == Some(69) && err.contains("no broker answers"), "{err}");
    cluster.restart().await.expect("restart");
    eventually("an accepted enqueue", async || broker.enqueue("t").answer().await.is_ok()).await;
    assert!(readyz(&broker).await.0);
}

#[tokio::test]
async fn calls_fail_soon_while_postgres_is_frozen_and_succeed_afterwards() {
    let cluster = Cluster::start(cluster_config()).await.expect("Postgres");
    cluster.create_database("app").await.expect("database");
    let database = TestDatabase { url: cluster.url("app") };
    let broker = TestBroker::on_with(&database, |config| config.database_timeout = MINUTE * 10).await;
    broker.enqueue("t").outcome().await;
    signal_postgres(cluster.data_dir(), rustix::process::Signal::STOP);
    let refused = with_timeout("a refusal", broker.enqueue("t").refused()).await;
    assert_eq!(refused.code, Code::Unavailable, "{refused:?}");
    assert!(!readyz(&broker).await.0);
    signal_postgres(cluster.data_dir(), rustix::process::Signal::CONT);
    eventually("an accepted enqueue", async || broker.enqueue("t").answer().await.is_ok()).await;
}

#[tokio::test]
async fn a_broker_that_cannot_listen_at_its_start_polls() {
    let nowhere = format!("postgres://howdah@{}/app?connect_timeout=1", unused_address());
    let broker = TestBroker::start_with(|config| {
        config.listen_database_url = Some(nowhere);
        config.database_timeout = secs(8);
    })
    .await;
    let mut worker = broker.worker("t").window(1).await;
    broker.enqueue("t").outcome().await;
    let job = worker.next().await;
    assert_eq!(worker.ack(&job).status().await, SettleStatus::Ok);
    assert!(broker.metrics().await.contains("howdah_listening 0"));
}

/// Writes a connection string to a file for brokers to read.
pub(crate) fn url_file(path: &Path, url: &str) -> UrlFile {
    std::fs::write(path, url).expect("write");
    UrlFile::without_store(path, url)
}
