//! Tests that a lookup in an archive that does not respond fails after a few seconds and is not repeated.

use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use howdah_proto::v1::GetJobRequest;
use tokio::net::TcpListener;
use tonic_types::StatusExt as _;

use crate::{support::*, ui::client::Browser};

/// Starts an object-store server that accepts connections and never responds. Returns its address and the number of connections
/// so far.
async fn silent() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("bind");
    let address = listener.local_addr().expect("address").to_string();
    let connections = Arc::<AtomicUsize>::default();
    let count = connections.clone();
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((connection, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            open.push(connection);
        }
    });
    (address, connections)
}

/// Starts a broker whose archive is a bucket of this server. The manifests name `files` files whose id range includes
/// job 17.
async fn broker_of(address: &str, files: usize) -> (TestDatabase, ServingProgram) {
    let database = database().await;
    let variables = [
        ("AWS_ENDPOINT", format!("http://{address}")),
        ("AWS_ALLOW_HTTP", "true".into()),
        ("AWS_REGION", "us-east-1".into()),
        ("AWS_ACCESS_KEY_ID", "id".into()),
        ("AWS_SECRET_ACCESS_KEY", "secret".into()),
    ];
    let broker = Program::serve_with(&database, &variables).await;
    database
        .sql(&format!(
            "INSERT INTO howdah.archive (day, state, url) VALUES ('2026-01-02', 'dropped', 's3://bucket/a');
             INSERT INTO howdah.archive_file (day, path, task_type, ids, jobs, bytes)
             SELECT '2026-01-02', 'store=0/day=2026-01-02/type=mail/part-' || n || '.parquet', 'mail', '[10,20]', 11, 1000
             FROM generate_series(1, {files}) n"
        ))
        .await;
    (database, broker)
}

#[tokio::test]
async fn commands_and_the_page_say_that_an_archive_does_not_answer_and_do_not_ask_again() {
    let (address, connections) = silent().await;
    let (_database, broker) = broker_of(&address, 1).await;
    for (most, command) in [(1, "job"), (2, "explain")] {
        let (status, out, err) = run(&["--server", broker.address(), command, "17"], b"").await;
        assert_eq!(status.code(), Some(69), "{out} {err}");
        assert!(err.contains("job 17 is not in the database") && err.contains("no answer within 4 s"), "{err}");
        // The number of connections may be lower than `most`, because a lookup may time out before it connects.
        assert!(connections.load(Ordering::SeqCst) <= most, "{command}");
    }
    let page = Browser::new(&broker).get("/ui/job?id=17").await;
    assert!(page.status == 503 && page.body.contains("no answer within 4 s"), "{page:?}");
    assert!(connections.load(Ordering::SeqCst) <= 3);
    let refused = broker.jobs().get_job(GetJobRequest { id: 17 }).await.expect_err("the archive is unavailable");
    let details = refused.get_error_details();
    assert_eq!(details.error_info().map(|info| info.reason.as_str()), Some("ARCHIVE_UNAVAILABLE"));
    assert!(details.retry_info().is_some(), "the error has no retry delay, so clients would retry at once");
    let live = broker.enqueue("t").await;
    assert_eq!(broker.job(live).await.id, live, "a job in the database needs no archive");
}

#[tokio::test]
async fn an_unavailable_archive_is_not_tried_file_by_file_and_its_error_is_reported() {
    let address = unused_address().to_string();
    let (_database, broker) = broker_of(&address, 1_900).await;
    // Eight concurrent lookups are more than the broker permits. Each caller has a separate connection, because the broker also
    // limits the concurrent requests of a connection.
    let ask = async |id: i64| jobs_client(&broker.grpc).await.get_job(GetJobRequest { id }).await;
    let answers = futures::future::join_all((10..=17).map(ask)).await;
    for answer in answers {
        let refused = answer.expect_err("the archive is unavailable");
        assert_eq!(refused.code(), tonic::Code::Unavailable);
        // The lookup retries a refused connection, so the error may also be the timeout of the lookup.
        let problem = refused.message();
        let known = [&*address, "no answer within 4 s", "4 others read it"];
        assert!(known.iter().any(|known| problem.contains(known)), "{refused}");
        assert!(!problem.contains("no time"), "{refused}");
    }
}
