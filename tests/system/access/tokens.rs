//! Tests that tokens are created and used, that they expire, and that they are revoked.

use howdah_engine::access::Token;
use howdah_proto::v1::{self, ListTokensRequest, RevokeTokensRequest, revoke_tokens_request::Selection};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tonic::Code;

use super::fixture::Guarded;
use crate::support::*;

fn revoke_all_of(principal: &str) -> RevokeTokensRequest {
    RevokeTokensRequest { selection: Some(Selection::Principal(principal.into())) }
}

pub async fn status_of(broker: &Service, request: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(broker.http.trim_start_matches("http://")).await.expect("connect");
    stream.write_all(request.as_bytes()).await.expect("write");
    let mut answer = String::new();
    with_timeout("an answer", stream.read_to_string(&mut answer)).await.expect("read");
    answer.split_whitespace().nth(1).expect("a status").to_owned()
}

#[tokio::test]
async fn without_a_valid_token_every_call_is_refused_and_probes_are_answered() {
    let guarded = Guarded::start().await;
    let good = guarded.token("ann", &["read:*"]).await;
    let flipped = if good.ends_with('0') { "1" } else { "0" };
    let mistyped = format!("{}{flipped}", &good[..good.len() - 1]);
    let unknown = Token::generate().secret().to_owned();
    for bad in [None, Some(mistyped), Some(unknown), Some("nonsense".into()), Some("eyJhbGciOiJub25lIn0.e30.".into())] {
        let caller = bad.as_ref().map_or_else(|| (*guarded.broker).clone(), |token| guarded.broker.with_token(token));
        let refused = caller.jobs().get_job(v1::GetJobRequest { id: 1 }).await.expect_err("refused");
        assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
        assert!(bad.is_none_or(|bad| !format!("{refused:?}").contains(&bad)), "{refused:?}");
        assert_eq!(caller.worker("t").answer().await.err().expect("refused").code(), Code::Unauthenticated);
    }
    for (path, token, expected) in [
        ("/healthz", None, "200"),
        ("/readyz", None, "200"),
        ("/metrics", None, "401"),
        ("/metrics", Some(guarded.token("mail", &["read:mail.*"]).await), "403"),
        ("/metrics", Some(good), "200"),
    ] {
        let header = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{header}Connection: close\r\n\r\n");
        assert_eq!(status_of(&guarded.broker, &request).await, expected, "{path}");
    }
}

#[tokio::test]
async fn a_new_token_holds_at_another_broker_at_once_and_a_revoked_one_at_none() {
    let guarded = Guarded::start().await;
    let other = guarded.another().await;
    let token = guarded.token("ann", &["enqueue:t"]).await;
    other.with_token(&token).enqueue("t").await;
    guarded.broker.with_token(&token).enqueue("t").await;
    let revoked = guarded.admin.access().revoke_tokens(revoke_all_of("ann")).await.expect("revoke").into_inner();
    assert_eq!(revoked.ids, [Token::parse(&token).unwrap().id().clone()]);
    let refused = guarded.broker.with_token(&token).enqueue("t").refused().await;
    assert_eq!(refused.code, Code::Unauthenticated, "{refused}");
    eventually("a refusal of the revoked token at the other broker", async || {
        other.with_token(&token).enqueue("t").answer().await.is_err_and(|error| error.code() == Code::Unauthenticated)
    })
    .await;
    let again = guarded.admin.access().revoke_tokens(revoke_all_of("ann")).await.expect_err("none left");
    assert_eq!(again.code(), Code::NotFound);
}

#[tokio::test]
async fn a_list_of_tokens_says_everything_but_their_secrets() {
    let guarded = Guarded::start().await;
    let tokens = [guarded.token("ann", &["enqueue:a", "read:*"]).await, guarded.token("bob", &["work:b.*"]).await];
    guarded.admin.access().revoke_tokens(revoke_all_of("bob")).await.expect("revoke");
    let list = async |show_ended| {
        let request = ListTokensRequest { show_ended, page_size: 1, ..Default::default() };
        let page = guarded.admin.access().list_tokens(request.clone()).await.expect("list").into_inner();
        let rest = ListTokensRequest { page_token: page.next_page_token, ..request };
        let more = guarded.admin.access().list_tokens(rest).await.expect("list").into_inner();
        [page.tokens, more.tokens].concat()
    };
    let all = list(true).await;
    assert_eq!(all.len(), 2);
    for (token, principal) in tokens.iter().zip(["ann", "bob"]) {
        let shown = all.iter().find(|shown| shown.principal == principal).unwrap();
        assert_eq!((shown.created_by.as_str(), shown.id.as_str()), ("admin", &token[4..20]));
        assert_eq!(shown.revoke_time.is_some(), principal == "bob");
        assert!(!format!("{shown:?}").contains(&token[21..]));
    }
    assert_eq!(all.iter().find(|shown| shown.principal == "ann").unwrap().scopes, ["enqueue:a", "read:*"]);
    let hashes = "SELECT count(*) FROM howdah.token WHERE octet_length(hash) = 32";
    assert_eq!(guarded.broker.count(hashes).await, 2);
    let holds = guarded.admin.access().list_tokens(ListTokensRequest::default()).await.expect("list").into_inner();
    assert_eq!(holds.tokens.len(), 1);
}

#[tokio::test]
async fn a_token_ends_when_its_time_is_over() {
    let guarded = Guarded::start().await;
    let lifetime = Some(wire(secs(1)));
    let request = v1::CreateTokenRequest { principal: "ann".into(), scopes: vec!["enqueue:t".into()], lifetime };
    let made = guarded.admin.access().create_token(request).await.expect("create").into_inner();
    assert!(made.token.unwrap().expire_time.is_some());
    let caller = guarded.broker.with_token(&made.secret);
    eventually("the end of the token's lifetime", async || {
        caller.enqueue("t").answer().await.is_err_and(|error| error.code() == Code::Unauthenticated)
    })
    .await;
}

#[tokio::test]
async fn a_worker_whose_token_is_revoked_is_told_to_drain_finishes_its_job_and_its_stream_ends() {
    let guarded = Guarded::start().await;
    let caller = guarded.caller("ann", &["work:t"]).await;
    let (done, kept) = (guarded.admin.enqueue("t").await, guarded.admin.enqueue("t").await);
    let mut worker = caller.worker("t").await;
    let jobs = worker.take(2).await;
    let later = guarded.admin.enqueue("t").await;
    let third = worker.next().await;
    assert_eq!((jobs[0].id, jobs[1].id, third.id), (done, kept, later));
    guarded.admin.access().revoke_tokens(revoke_all_of("ann")).await.expect("revoke");
    worker.drained().await;
    worker.ack(&jobs[0]).await;
    let end = worker.message().await.expect_err("the end");
    assert_eq!(end.code(), Code::Unauthenticated, "{end}");
    assert_eq!(guarded.admin.state(done).await, v1::JobState::Succeeded);
    // The broker delivers the jobs that were unsettled at the end of the token to another worker.
    let mut other = guarded.admin.worker("t").await;
    let mut again: Vec<i64> = other.take(2).await.iter().map(|job| job.id).collect();
    again.sort_unstable();
    assert_eq!(again, [kept, later]);
}

#[tokio::test]
async fn pipelines_and_waits_end_when_their_token_is_revoked() {
    let guarded = Guarded::start().await;
    let caller = guarded.caller("ann", &["enqueue:t", "read:t"]).await;
    let id = caller.enqueue("t").await;
    let (send, requests) = tokio::sync::mpsc::channel(1);
    let mut pipeline =
        caller.jobs().stream_enqueue(tokio_stream::wrappers::ReceiverStream::new(requests)).await.unwrap().into_inner();
    let one = v1::StreamEnqueueRequest { sequence: 1, jobs: vec![new_job("t", "p")], ..Default::default() };
    send.send(one).await.unwrap();
    assert_eq!(with_timeout("an answer", pipeline.message()).await.unwrap().unwrap().sequence, 1);
    let wait = v1::WaitJobsRequest { ids: vec![id], ..Default::default() };
    let mut wait = caller.jobs().wait_jobs(wait).await.unwrap().into_inner();
    guarded.admin.access().revoke_tokens(revoke_all_of("ann")).await.expect("revoke");
    let ends = [
        with_timeout("the end of the pipeline", pipeline.message()).await.expect_err("the end"),
        with_timeout("the end of the wait", wait.message()).await.expect_err("the end"),
    ];
    assert!(ends.iter().all(|end| end.code() == Code::Unauthenticated), "{ends:?}");
}
