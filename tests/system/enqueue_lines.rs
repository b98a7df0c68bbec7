//! Tests which lines `howdah enqueue --lines` stores if some lines are refused or a call fails.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};

use crate::support::*;

/// Returns ten lines, of which the fourth and the seventh are invalid.
fn lines() -> String {
    let long = "x".repeat(2000);
    (1..=10).map(|n| if n == 4 || n == 7 { format!("{long}\n") } else { format!("{n}\n") }).collect()
}

async fn enqueue(broker: &TestBroker, more: &[&str], input: &str) -> (Option<i32>, String, String) {
    let args = [&["enqueue", "t", "--lines", "--server", &broker.grpc], more].concat();
    let (status, out, err) = run(&args, input.as_bytes()).await;
    (status.code(), out, err)
}

async fn with_small_payloads() -> TestBroker {
    let broker = TestBroker::start().await;
    broker.sql("UPDATE howdah.settings SET payload_bytes = 1500").await;
    let other = broker.another().await;
    drop(broker);
    other
}

/// Returns the stored payloads, ordered by job id.
async fn stored(broker: &TestBroker) -> String {
    let rows = broker.database.connect().await;
    let sql = "SELECT coalesce(string_agg(convert_from(payload, 'UTF8'), ' ' ORDER BY id), '') FROM howdah.job";
    rows.query_one(sql, &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn the_first_refused_line_ends_the_command_and_later_lines_are_not_stored() {
    let broker = with_small_payloads().await;
    let (status, ids, err) = enqueue(&broker, &[], &lines()).await;
    assert_eq!((status, ids.lines().count()), (Some(65), 3), "{err}");
    assert!(err.contains("line 4") && err.contains("--resume 4") && err.contains("--resume 5"), "{err}");
    assert_eq!(stored(&broker).await, "1 2 3");
    let (status, _, err) = enqueue(&broker, &["--resume", "5"], &lines()).await;
    assert_eq!(status, Some(65), "{err}");
    assert!(err.contains("line 7"), "{err}");
    let (status, _, err) = enqueue(&broker, &["--resume", "8"], &lines()).await;
    assert_eq!(status, Some(0), "{err}");
    assert_eq!(stored(&broker).await, "1 2 3 5 6 8 9 10");
}

#[tokio::test]
async fn refused_lines_are_listed_and_all_others_stored() {
    let broker = with_small_payloads().await;
    let (status, ids, err) = enqueue(&broker, &["--on-error", "continue"], &lines()).await;
    assert_eq!((status, ids.lines().count()), (Some(65), 8), "{err}");
    assert!(err.contains("line 4: ") && err.contains("line 7: ") && err.contains("2 lines were refused"), "{err}");
    assert_eq!(stored(&broker).await, "1 2 3 5 6 8 9 10");
    let (_, out, _) = enqueue(&broker, &["--on-error", "continue", "--json"], &lines()).await;
    let refused: Vec<serde_json::Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((refused.len(), &refused[3]["line"]), (10, &4.into()));
    assert!(refused[3]["error"].as_str().unwrap().contains("payload"), "{out}");
    assert_eq!((&refused[2]["outcome"], &refused[2]["line"]), (&"ENQUEUE_OUTCOME_NEW".into(), &3.into()));
}

#[tokio::test]
async fn every_second_line_may_be_refused() {
    let broker = with_small_payloads().await;
    let long = "x".repeat(2000);
    let lines: String = (0..200).map(|n| if n % 2 == 1 { format!("{long}\n") } else { format!("{n}\n") }).collect();
    let (status, ids, err) = enqueue(&broker, &["--on-error", "continue"], &lines).await;
    assert_eq!((status, ids.lines().count(), err.matches("line ").count()), (Some(65), 100, 100), "{err}");
    assert_eq!(broker.count("SELECT count(*) FROM howdah.ready").await, 100);
}

#[tokio::test]
async fn a_resumed_enqueue_after_a_lost_answer_stores_no_line_twice() {
    let database = database().await;
    let mut broker = Program::serve(&database, &[]).await;
    let args = ["enqueue", "t", "--lines", "--server", &broker.grpc];
    let mut command = tokio::process::Command::new(howdah());
    command.args(args).kill_on_drop(true).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut program = command.spawn().unwrap();
    let mut input = program.stdin.take().unwrap();
    let mut ids = BufReader::new(program.stdout.take().unwrap()).lines();
    input.write_all(b"1\n2\n").await.unwrap();
    for _ in 0..2 {
        with_timeout("an id", ids.next_line()).await.unwrap().unwrap();
    }
    // Blocks the request with a lock, so that the broker has received the request but is killed before it answers.
    let mut locked = database.connect().await;
    let lock = locked.transaction().await.unwrap();
    lock.batch_execute("LOCK TABLE howdah.request").await.unwrap();
    input.write_all(b"3\n").await.unwrap();
    drop(input);
    database.until_blocked().await;
    broker.kill().await;
    lock.rollback().await.unwrap();
    let mut err = String::new();
    program.stderr.take().unwrap().read_to_string(&mut err).await.unwrap();
    assert_eq!(program.wait().await.unwrap().code(), Some(69), "{err}");
    let position = err.split("--resume ").nth(1).unwrap().split_whitespace().next().unwrap();
    assert!(position.starts_with("3-3:"), "{err}");

    let broker = TestBroker::on(&database).await;
    for _ in 0..2 {
        let (status, out, err) = enqueue(&broker, &["--resume", position], "1\n2\n3\n4\n").await;
        assert_eq!((status, out.lines().count()), (Some(0), 2), "{err}");
    }
    let count = "SELECT count(*) FROM howdah.job WHERE payload =";
    assert_eq!(broker.count(&format!("{count} '3'")).await, 1);
    let (status, _, err) = enqueue(&broker, &["--resume", position], "1\n2\nother\n").await;
    assert_eq!(status, Some(65), "{err}");
}
