//! Tests that only the worker that got a job can learn or compute its lease token, which permits settling the job.

use std::{collections::HashSet, future::poll_fn, time::Duration};

use howdah_proto::v1::SettleStatus;
use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, NoTls};
use tonic::Code;

use crate::support::*;

/// Listens to all notifications that brokers send.
pub async fn listen(database: &TestDatabase) -> (tokio_postgres::Client, mpsc::UnboundedReceiver<String>) {
    let (client, mut connection) = tokio_postgres::connect(&database.url, NoTls).await.expect("connect");
    let (send, notifications) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(notification) = message {
                let _ = send.send(notification.payload().to_owned());
            }
        }
    });
    client.batch_execute("LISTEN howdah_wake").await.expect("listen");
    (client, notifications)
}

#[tokio::test]
async fn the_notification_of_a_cancel_contains_no_fencing_token() {
    let (a, b) = TestBroker::pair().await;
    let (_listening, mut notifications) = listen(&a.database).await;
    let mut worker = b.worker("t").window(2).await;
    b.enqueue_all(["t", "t"]).await;
    let jobs = worker.take(2).await;
    assert_eq!(a.cancel(&[jobs[0].id]).await, [jobs[0].id]);
    a.sql(&format!("SELECT howdah.cancel({})", jobs[1].id)).await;
    let mut cancels = Vec::new();
    while cancels.len() < 2 {
        let message = with_timeout("a notification", notifications.recv()).await.expect("a connection");
        if message.starts_with("c ") {
            cancels.push(message);
        }
    }
    for job in &jobs {
        assert!(cancels.iter().any(|message| message.contains(&job.id.to_string())), "{cancels:?}");
        let token = job.token.to_string();
        assert!(!cancels.iter().any(|message| message.contains(&token)), "{token}: {cancels:?}");
    }
    let mut reported = HashSet::new();
    for _ in &jobs {
        let cancelled = worker.cancelled().await;
        reported.insert((cancelled.id, cancelled.token));
    }
    assert_eq!(reported, jobs.iter().map(|job| (job.id, job.token)).collect());
}

#[tokio::test]
async fn each_token_has_64_random_bits_of_its_own() {
    let broker = TestBroker::start().await;
    // 200 jobs are ready before the worker connects, so brokers claim them. 200 more jobs are enqueued directly into
    // `leased`.
    broker.enqueue_all(["t"; 200]).await;
    let mut worker = broker.worker("t").window(400).await;
    let mut jobs = worker.take(200).await;
    broker.enqueue_all(["t"; 200]).await;
    jobs.extend(worker.take(200).await);
    assert_eq!(jobs.iter().map(|job| job.token).collect::<HashSet<_>>().len(), 400);
    for bit in 0..64 {
        // Each bit is set in about 200 of 400 tokens. With random bits, a bit is set in fewer than 100 tokens once in
        // 10^24 cases.
        let set = jobs.iter().filter(|job| job.token >> bit & 1 == 1).count();
        assert!((100..=300).contains(&set), "bit {bit} is set in {set} of 400");
    }
    // If tokens were computed from ids, pairs of neighbouring ids would have equal differences of tokens.
    let differences: HashSet<i64> = jobs.windows(2).map(|pair| pair[0].token ^ pair[1].token).collect();
    assert_eq!(differences.len(), 399);
}

#[tokio::test]
async fn no_token_is_in_the_log_of_a_broker_that_logs_everything_nor_in_its_metrics() {
    let database = database().await;
    let (mut broker, log) = Program::serve_logged(&database, &["--log", "trace", "--log-format", "json"]).await;
    let mut worker = broker.worker("t").window(6).await;
    broker.enqueue_all(["t"; 6]).await;
    let jobs = worker.take(6).await;
    worker.ack(&jobs[0]).await;
    worker.nack(&jobs[1], "no").no_retry().await;
    let mut forged = jobs[2].clone();
    forged.token ^= 1;
    assert_eq!(worker.ack(&forged).status().await, SettleStatus::LeaseLost);
    worker.extend(&jobs[3], HOUR).await;
    broker.cancel(&[jobs[4].id]).await;
    assert_eq!(worker.cancelled().await.id, jobs[4].id);
    let metrics = broker.metrics().await;
    let back = broker.worker("t").resumes(&worker.welcome.session_id, &[&jobs[5], &forged]);
    let session = worker.welcome.session_id.clone();
    worker.vanish();
    let mut back = back.await;
    assert_eq!((back.lost(1).await.len(), back.welcome.kept.len()), (1, 1));
    drop(back);
    broker.program.signal(rustix::process::Signal::TERM);
    broker.program.ended().await;
    let log = with_timeout("the log", log).await.expect("no panic");
    assert!(log.lines().any(|line| line.contains("TRACE")), "the broker does not log at trace level");
    assert!(!log.contains(&session), "the session id is in the log");
    for job in jobs.iter().chain([&forged]) {
        let unsigned = job.token as u64;
        for shown in [job.token.to_string(), unsigned.to_string(), format!("{unsigned:x}"), format!("{unsigned:X}")] {
            assert!(!metrics.contains(&shown), "{shown} is in the metrics");
            let line = log.lines().find(|line| line.contains(&shown));
            assert_eq!(line, None, "{shown} is in the log");
        }
    }
}

#[tokio::test]
async fn an_error_tells_the_sqlstate_and_neither_host_nor_user_nor_database() {
    let broker = TestBroker::start_with(|config| config.database_timeout = Duration::from_secs(8)).await;
    let client = broker.database.connect().await;
    let row = client.query_one("SELECT current_database()::text, current_user::text", &[]).await.expect("names");
    let (name, user): (String, String) = (row.get(0), row.get(1));
    broker.database.allow_connections(false).await;
    // The connections of the pool end one after another. Until all have ended, a call may get the error of an ended
    // connection.
    let mut refusals = Vec::new();
    eventually("a broker that cannot connect", async || {
        refusals.extend(broker.enqueue("t").answer().await.err());
        refusals.last().is_some_and(|refused| refused.message().contains("cannot be reached"))
    })
    .await;
    for refused in &refusals {
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
        for secret in [&name, &user, &"127.0.0.1".to_owned(), &"not currently accepting".to_owned()] {
            assert!(!refused.message().contains(secret.as_str()), "{secret}: {refused}");
        }
    }
}
