//! Tests that client input in the log cannot forge lines or control the terminal.

use std::{collections::HashMap, process::Stdio};

use howdah_proto::v1::{SettleStatus, Subscribe, Window};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};

use super::{channel, enqueue, raw, refused};
use crate::support::{OutcomeOptions as _, Worker, database, howdah, nack, new_job, with_timeout};

/// Returns the complete log of a broker at trace level that has received hostile input.
async fn hostile_session(database_url: &str, format: &str) -> String {
    let mut command = tokio::process::Command::new(howdah());
    command.args(["serve", "--database-url", database_url, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
    command.args(["--log", "debug", "--log-format", format]).kill_on_drop(true);
    command
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let mut program = command.spawn().expect("start howdah");
    let mut log = program.stderr.take().expect("stderr");
    let reading = tokio::spawn(async move {
        let mut bytes = Vec::new();
        log.read_to_end(&mut bytes).await.expect("read");
        String::from_utf8(bytes).expect("UTF-8")
    });
    let mut stdout = BufReader::new(program.stdout.take().expect("stdout")).lines();
    let ready = with_timeout("a ready broker", stdout.next_line()).await.expect("read").expect("a line");
    let grpc = ready.split_whitespace().find_map(|w| w.strip_prefix("grpc=")).expect(&ready);
    let grpc = format!("http://{grpc}");

    // Characters that change the writing direction are valid, because they are not control characters. The log must escape
    // them.
    let turned = "marker\u{202e}\u{2066}\u{2028}forged";
    let labels = HashMap::from([(turned.to_owned(), turned.to_owned())]);
    let windows = vec![Window { task_type: "t".into(), jobs: 1, bytes: 0 }];
    let subscribe = Subscribe { windows, labels, ..Default::default() };
    let mut worker = Worker::subscribe(&grpc, subscribe).await;
    enqueue(&grpc, vec![new_job("t", "\n\u{1b}[2Jmarker")]).await;
    let job = worker.next().await;
    worker
        .settle(vec![
            nack(&job, "\n{\"level\":\"ERROR\",\"message\":\"forged\"}\r\u{1b}]0;title\u{7}\u{9b}2J").at_once(),
        ])
        .await;
    assert_eq!(worker.settled().await.status(), SettleStatus::Ok);
    // Sends invalid texts and invalid paths.
    let channel = channel(&grpc).await;
    let subscribe = Subscribe { session_id: "\n\u{1b}[31mforged".into(), ..Default::default() };
    refused(Worker::try_subscribe(&grpc, subscribe)).await;
    let grpc_type = [("content-type", "application/grpc"), ("grpc-timeout", "\u{9b}2J"), ("user-agent", "\u{9b}31m")];
    raw::post(&channel, "/%0a%1b[2J/marker", &grpc_type, String::new()).await;
    raw::post(&channel, raw::CALLS[0], &grpc_type, "\0\0\0\0\u{4}\n\u{1b}[2".into()).await;

    let pid = rustix::process::Pid::from_raw(program.id().expect("it runs") as i32).expect("pid");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("kill");
    worker.vanish();
    with_timeout("the end of the program", program.wait()).await.expect("wait");
    with_timeout("the log", reading).await.expect("no panic")
}

/// Whether a character moves the cursor, breaks the line or changes the writing direction.
fn steers(c: char) -> bool {
    (c.is_control() && c != '\n') || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[tokio::test]
async fn no_text_of_a_client_breaks_a_line_of_the_log_or_steers_a_terminal() {
    let database = database().await;
    for format in ["json", "text"] {
        let log = hostile_session(&database.url, format).await;
        assert!(log.contains("marker"), "nothing that was sent is in the log");
        let bad: Vec<&str> = log.lines().filter(|line| line.contains(steers)).collect();
        assert!(bad.is_empty(), "{format}: {bad:?}");
        if format == "json" {
            for line in log.lines() {
                serde_json::from_str::<serde_json::Value>(line).expect(line);
            }
        }
        assert!(
            !log.lines().any(|line| line.starts_with("forged") || line.starts_with("{\"level\":\"ERROR\"")),
            "{log}"
        );
    }
}

#[tokio::test]
async fn an_outage_of_postgres_logs_at_most_four_warnings_and_its_end_is_logged() {
    let database = database().await;
    let mut command = tokio::process::Command::new(howdah());
    command.args(["serve", "--database-url", &database.url, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
    command.args(["--log", "info", "--log-format", "json", "--set", "database_timeout=8s"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut program = command.spawn().expect("serve");
    let mut lines = BufReader::new(program.stderr.take().expect("stderr")).lines();
    let mut output = BufReader::new(program.stdout.take().expect("stdout")).lines();
    let ready = with_timeout("a ready broker", output.next_line()).await.expect("read").expect("a line");
    let http = ready.split_whitespace().find_map(|word| word.strip_prefix("http=")).expect(&ready);
    database.allow_connections(false).await;
    // Each response takes as long as a call waits for Postgres. Meanwhile all background tasks fail, and must not flood the
    // log.
    for _ in 0..2 {
        let answer = super::http::get(http, "/readyz").await;
        assert!(answer.contains("503") && answer.contains("Postgres cannot be reached"), "{answer}");
    }
    database.allow_connections(true).await;
    let mut warnings = Vec::new();
    loop {
        let line = with_timeout("the end of the outage", lines.next_line()).await.expect("read").expect("it runs");
        if line.contains("Postgres answers again") {
            break;
        }
        if line.contains("\"WARN\"") || line.contains("\"ERROR\"") {
            warnings.push(line);
        }
    }
    assert!((1..=4).contains(&warnings.len()), "{warnings:#?}");
}
