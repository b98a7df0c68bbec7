//! An archive that does not answer: whoever asks for a job that it may have is told so soon, and asks once.

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

/// A server for buckets that takes connections, and says nothing; how many there were.
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

/// A broker of a database whose archive is in a bucket of this server: `files` files may have job 17.
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
    for (asked, command) in [(1, "job"), (2, "explain")] {
        let (status, out, err) = run(&["--server", broker.address(), command, "17"], b"").await;
        assert_eq!(status.code(), Some(69), "{out} {err}");
        assert!(err.contains("job 17 is not in the database") && err.contains("no answer within 4 s"), "{err}");
        // None, if the time was over before the first.
        assert!(connections.load(Ordering::SeqCst) <= asked, "{command}");
    }
    let page = Browser::of(&broker).get("/ui/job?id=17").await;
    assert!(page.status == 503 && page.body.contains("no answer within 4 s"), "{page:?}");
    assert!(connections.load(Ordering::SeqCst) <= 3);
    let refused = broker.jobs().get_job(GetJobRequest { id: 17 }).await.expect_err("it is away");
    let details = refused.get_error_details();
    assert_eq!(details.error_info().map(|info| info.reason.as_str()), Some("ARCHIVE_UNAVAILABLE"));
    assert!(details.retry_info().is_some(), "it says when to ask again, so that no client does it at once");
    let live = broker.enqueue("t").await;
    assert_eq!(broker.job(live).await.id, live, "the database has it");
}

#[tokio::test]
async fn an_archive_that_is_away_is_not_tried_file_by_file_and_its_error_is_told() {
    let address = unused_address().to_string();
    let (_database, broker) = broker_of(&address, 1_900).await;
    // More callers than a broker has lookups at once; of one connection it works on few.
    let ask = async |id: i64| jobs_client(&broker.grpc).await.get_job(GetJobRequest { id }).await;
    let answers = futures::future::join_all((10..=17).map(ask)).await;
    for answer in answers {
        let refused = answer.expect_err("it is away");
        assert_eq!(refused.code(), tonic::Code::Unavailable);
        // Connections that are refused are tried again for a moment: the answer may be due before the last of them.
        let problem = refused.message();
        let known = [&*address, "no answer within 4 s", "4 others read it"];
        assert!(known.iter().any(|known| problem.contains(known)), "{refused}");
        assert!(!problem.contains("no time"), "{refused}");
    }
}
