//! Tests that a principal or an address cannot exhaust resources that other callers need.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::join_all;
use howdah_client::{NewJob, NewSchedule, Plan};
use howdah_engine::access::Token;
use howdah_proto::v1::{
    self, ListJobsRequest, RevokeTokensRequest, StreamEnqueueRequest, Subscribe, revoke_tokens_request::Selection,
};
use prost::Message as _;
use tokio::{
    io::AsyncReadExt as _,
    net::TcpStream,
    sync::{Notify, mpsc},
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, transport::Endpoint};

use super::{
    fixture::Guarded,
    issuer::{Issuers, claims},
    signing::SigningKey,
};
use crate::{
    hostile::raw::{CALLS, Frame, Http2, data, frame, headers_as},
    http_producer::curl,
    support::*,
};

#[tokio::test]
async fn a_principal_above_its_rate_is_told_when_to_come_back_and_others_are_not_held_up() {
    let guarded = Guarded::start_with(|config| {
        config.limits.principal_jobs_per_second = Some(1);
        config.http_enqueue = true;
    })
    .await;
    let (flood, ann) = (guarded.caller("flood", &["enqueue:*"]).await, guarded.caller("ann", &["enqueue:*"]).await);
    // A request of 100 jobs passes although it exceeds the rate, but later requests must wait longer.
    flood.enqueue_all(["t"; 100]).await;
    for caller in [&flood, &guarded.caller("flood", &["enqueue:t"]).await] {
        let refused = caller.enqueue("t").refused().await;
        assert_eq!((refused.code, refused.reason.as_str()), (Code::ResourceExhausted, "PRINCIPAL_RATE"), "{refused}");
        let wait = refused.retry_after.expect("when to come back");
        // The delay is at most 99 seconds: at one job per second, 100 jobs are charged, and one of them passes as a
        // burst.
        assert!((secs(5)..=secs(99)).contains(&wait), "{wait:?}");
        assert!(refused.message.contains("limits.principal_jobs_per_second"), "{refused}");
    }
    let bearer = format!("Authorization: Bearer {}", guarded.token("flood", &["enqueue:*"]).await);
    let (status, answer) = curl(&guarded.broker, "/v1/jobs/t", &[&bearer], b"x").await;
    assert!(status == 429 && answer.to_string().contains("RetryInfo"), "{status} {answer}");
    ann.enqueue("t").await;
    let metrics = guarded.admin.metrics().await;
    assert!(metrics.contains("howdah_limit_refusals_total{limit=\"principal_jobs_per_second\"} 3"), "{metrics}");
}

#[tokio::test]
async fn while_one_principal_floods_it_gets_its_rate_and_every_call_of_another_passes() {
    let rate = 50;
    let guarded = Guarded::start_with(|config| config.limits.principal_jobs_per_second = Some(rate)).await;
    let (flood, ann) = (guarded.caller("flood", &["enqueue:*"]).await, guarded.caller("ann", &["enqueue:*"]).await);
    let (begun, begins_to_refuse, stop) = (Instant::now(), Arc::new(Notify::new()), CancellationToken::new());
    let flooding: Vec<_> = (0..20)
        .map(|_| {
            let (flood, begins_to_refuse, stop) = (flood.clone(), begins_to_refuse.clone(), stop.clone());
            tokio::spawn(async move {
                let mut stored = 0;
                while !stop.is_cancelled() {
                    match flood.enqueue("t").answer().await {
                        Ok(_) => stored += 1,
                        Err(status) => {
                            assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
                            begins_to_refuse.notify_one();
                        }
                    }
                }
                stored
            })
        })
        .collect();
    with_timeout("a refusal", begins_to_refuse.notified()).await;
    for _ in 0..rate {
        ann.enqueue("t").await;
    }
    stop.cancel();
    let mut stored = 0;
    for one in flooding {
        stored += with_timeout("the end of the flood", one).await.expect("no panic");
    }
    let most = rate as f64 * (begun.elapsed().as_secs_f64() + 1.0) + 1.0;
    assert!(f64::from(stored) <= most, "{stored} stored, {most} allowed");
}

#[tokio::test]
async fn jobs_that_are_retried_or_run_by_hand_count_for_the_rate() {
    let guarded = Guarded::start_with(|config| config.limits.principal_jobs_per_second = Some(1)).await;
    let ids = guarded.admin.enqueue_all(vec![new_job("t", "").max_attempts(1); 100]).await;
    let mut worker = guarded.admin.worker("t").window(100).await;
    for job in worker.take(100).await {
        worker.nack(&job, "no").await;
    }
    let refused = |status: tonic::Status| {
        let refused = Refusal::from(status);
        assert_eq!((refused.code, refused.reason.as_str()), (Code::ResourceExhausted, "PRINCIPAL_RATE"), "{refused}");
        assert!(refused.retry_after.is_some_and(|wait| wait > secs(5)), "{refused:?}");
    };
    let ann = guarded.caller("ann", &["operate:*", "enqueue:*"]).await;
    // A retry of all 100 dead jobs passes although it exceeds the rate, but later requests must wait longer.
    let filter = |ids: &[i64]| Some(v1::JobFilter { ids: ids.to_vec(), ..Default::default() });
    let of_type = Some(v1::JobFilter { task_type: "t".into(), ..Default::default() });
    let retry = |filter| v1::RetryJobsRequest { filter, ..Default::default() };
    let answer = ann.jobs().retry_jobs(retry(of_type)).await.expect("a retry").into_inner();
    assert_eq!(answer.retried_ids.len(), 100);
    refused(ann.jobs().retry_jobs(retry(filter(&ids))).await.expect_err("one more"));
    refused(ann.enqueue("t").answer().await.expect_err("a job"));
    let bob = guarded.caller("bob", &["operate:*", "enqueue:*", "read:*"]).await;
    let schedule = Some(NewSchedule::new("s", NewJob::new("t"), Plan::every(HOUR)).into_proto());
    bob.schedules().create_schedule(v1::CreateScheduleRequest { schedule }).await.expect("a schedule");
    let run = v1::RunScheduleRequest { name: "s".into(), ..Default::default() };
    bob.schedules().run_schedule(run.clone()).await.expect("a run");
    bob.enqueue_all(["t"; 100]).await;
    refused(bob.schedules().run_schedule(run).await.expect_err("one more run"));
}

#[tokio::test]
async fn bytes_have_a_separate_rate() {
    let guarded = Guarded::start_with(|config| config.limits.principal_bytes_per_second = Some(1 << 10)).await;
    let ann = guarded.caller("ann", &["enqueue:*"]).await;
    ann.enqueue(new_job("t", vec![0; 100 << 10])).await;
    let refused = ann.enqueue("t").refused().await;
    assert!(refused.message.contains("limits.principal_bytes_per_second"), "{refused}");
    assert!(refused.retry_after.expect("when") > secs(5), "{refused:?}");
}

#[tokio::test]
async fn a_pipeline_above_the_rate_is_read_as_slowly_as_the_rate_allows() {
    let guarded = Guarded::start_with(|config| config.limits.principal_jobs_per_second = Some(100)).await;
    let ann = guarded.caller("ann", &["enqueue:*"]).await;
    let request =
        |sequence| StreamEnqueueRequest { sequence, jobs: vec![new_job("t", "x"); 100], ..Default::default() };
    let begun = Instant::now();
    let requests: Vec<_> = (1..=4).map(request).collect();
    let mut answers = ann.jobs().stream_enqueue(tokio_stream::iter(requests)).await.expect("stream").into_inner();
    for sequence in 1..=4 {
        let answer = with_timeout("an answer", answers.message()).await.expect("no error").expect("an answer");
        assert_eq!((answer.sequence, answer.jobs.len(), answer.error), (sequence, 100, None));
    }
    assert!(begun.elapsed() > Duration::from_millis(1_900), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_pipeline_that_waits_for_its_rate_ends_with_its_token() {
    let guarded = Guarded::start_with(|config| config.limits.principal_jobs_per_second = Some(10)).await;
    let ann = guarded.caller("ann", &["enqueue:*"]).await;
    let request = |sequence, jobs| StreamEnqueueRequest { sequence, jobs, ..Default::default() };
    // At 10 jobs per second, the first request of 250 jobs delays the second request by 24 seconds.
    let requests = [request(1, vec![new_job("t", "x"); 250]), request(2, vec![new_job("t", "y")])];
    let mut answers = ann.jobs().stream_enqueue(tokio_stream::iter(requests)).await.expect("stream").into_inner();
    let first = with_timeout("an answer", answers.message()).await.expect("no error").expect("an answer");
    assert_eq!((first.sequence, first.jobs.len()), (1, 250));
    let begun = Instant::now();
    guarded.admin.access().revoke_tokens(all_of("ann")).await.expect("revoke");
    let second = with_timeout("an answer", answers.message()).await.expect("no error").expect("an answer");
    assert_eq!(second.error.expect("refused").code, Code::Unauthenticated as i32);
    assert!(begun.elapsed() < secs(20), "{:?}", begun.elapsed());
}

fn all_of(principal: &str) -> RevokeTokensRequest {
    RevokeTokensRequest { selection: Some(Selection::Principal(principal.into())) }
}

#[tokio::test]
async fn streams_above_the_limit_of_a_principal_are_refused_until_one_closes() {
    let guarded = Guarded::start_with(|config| config.limits.principal_streams = Some(2)).await;
    let ann = guarded.caller("ann", &["work:*", "enqueue:*"]).await;
    let (one, _two) = (ann.worker("t").await, ann.worker("t").await);
    let refused: Refusal = ann.worker("t").answer().await.err().expect("three").into();
    assert_eq!((refused.code, refused.reason.as_str()), (Code::ResourceExhausted, "PRINCIPAL_LIMIT"), "{refused}");
    assert!(refused.retry_after.is_some() && refused.message.contains("limits.principal_streams"), "{refused}");
    let none = tokio_stream::pending::<StreamEnqueueRequest>();
    let refused = ann.jobs().stream_enqueue(none).await.expect_err("a pipeline is a stream, too");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    ann.enqueue("t").await;
    let _others = guarded.caller("bob", &["work:*"]).await.worker("t").await;
    one.vanish();
    eventually("a stream in the place of the closed one", async || ann.worker("t").answer().await.is_ok()).await;
}

#[tokio::test]
async fn connections_above_the_limit_of_a_principal_are_refused_until_one_closes() {
    let guarded = Guarded::start_with(|config| config.limits.principal_connections = Some(2)).await;
    let ann = guarded.caller("ann", &["work:*"]).await;
    // Each of these workers uses a separate connection.
    let (one, _two) = (ann.worker("t").await, ann.worker("t").await);
    let refused: Refusal = ann.worker("t").answer().await.err().expect("three").into();
    assert!(refused.message.contains("limits.principal_connections"), "{refused}");
    let _others = guarded.caller("bob", &["work:*"]).await.worker("t").await;
    one.vanish();
    eventually("a connection in the place of the closed one", async || ann.worker("t").answer().await.is_ok()).await;
}

#[tokio::test]
async fn all_connections_of_a_principal_have_a_quarter_of_the_memory_and_others_are_served() {
    let guarded = Guarded::start_with(|config| config.limits.answer_bytes = 32 << 20).await;
    let scopes = ["read:*", "payload:*"];
    let token = guarded.token("flood", &scopes).await;
    guarded.admin.enqueue_all(vec![new_job("large", vec![7; 1 << 20]); 4]).await;
    let list =
        ListJobsRequest { task_type: "large".into(), include_payload: true, page_size: 10, ..Default::default() };
    // Ten calls ask for pages of 4 MiB and do not read the responses. The quarter of the response memory that one principal may
    // use has room for one page.
    let encoded = list.encode_to_vec();
    let end = frame(Frame::DATA, Frame::END_STREAM, 1, &[]);
    let call = [headers_as(1, CALLS[2], Some(&token)), data(1, &encoded), end].concat();
    let mut connections = Vec::new();
    for n in 0..10 {
        let mut http = Http2::connect_with_window(&guarded.broker.grpc, 0).await;
        http.write(&call).await.expect("room to write");
        while n == 0 && http.next().await.expect("an answer").kind != Frame::HEADERS {}
        connections.push(http);
    }
    let (flood, ann) = (guarded.broker.with_token(&token), guarded.caller("ann", &scopes).await);
    let (mut flood, mut ann) = (flood.jobs(), ann.jobs());
    let served = async {
        for _ in 0..20 {
            let page = with_timeout("a page", ann.list_jobs(list.clone())).await.expect("a page").into_inner();
            assert!(!page.jobs.is_empty());
        }
    };
    let (refused, ()) = tokio::join!(flood.list_jobs(list.clone()), served);
    let refused = refused.expect_err("the memory quota of the principal is used up");
    assert!(refused.code() == Code::Unavailable && refused.message().contains("its principal"), "{refused}");
}

#[tokio::test]
async fn unauthenticated_connections_above_the_limit_of_an_address_are_closed() {
    let guarded = Guarded::start_with(|config| config.limits.address_connections = Some(2)).await;
    let ann = guarded.caller("ann", &["work:*"]).await;
    // Authenticated connections do not count towards the limit of connections without a credential.
    let _workers = [ann.worker("t").await, ann.worker("t").await, ann.worker("t").await];
    let address = guarded.broker.address().to_owned();
    let connect = async || TcpStream::connect(&address).await.expect("connect");
    let (_one, _two) = (connect().await, connect().await);
    let mut three = connect().await;
    let mut byte = [0];
    let closed = with_timeout("the end of the third connection", three.read(&mut byte)).await;
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
}

#[tokio::test]
async fn token_guesses_above_the_rate_of_an_address_are_refused_and_a_valid_token_still_works() {
    let guarded = Guarded::start_with(|config| config.limits.address_failures_per_second = 1).await;
    let ann = guarded.caller("ann", &["enqueue:*"]).await;
    ann.enqueue("t").await;
    // Tries to enqueue with this token. Returns whether the broker refused because of `address_failures_per_second`.
    let guess = async |token: &str| {
        let guess = guarded.broker.with_token(token).enqueue("t").refused().await;
        assert!(guess.code == Code::Unauthenticated || guess.reason == "ADDRESS_RATE", "{guess}");
        assert!(guess.code == Code::Unauthenticated || guess.retry_after.is_some(), "{guess}");
        guess.code == Code::ResourceExhausted
    };
    // A text without the format of a token does not count as a guess.
    assert!(!join_all((0..20).map(|_| guess("nonsense"))).await.contains(&true));
    let token = Token::generate();
    // Guesses 20 times at once. Repeats it, because on a slow machine 20 guesses may take seconds and stay within the rate.
    eventually("more guesses than the rate allows", async || {
        let refused = join_all((0..20).map(|_| guess(token.secret()))).await;
        refused.iter().filter(|refused| **refused).count() >= 10
    })
    .await;
    ann.enqueue("t").await;
}

#[tokio::test]
async fn calls_without_a_token_and_guesses_do_not_block_new_valid_tokens_from_the_same_address() {
    let issuers = Issuers::new();
    let broker = issuers.broker_with(|config| config.limits.address_failures_per_second = 1).await;
    for n in 0..20 {
        let refused = broker.enqueue("t").refused().await;
        assert_eq!(refused.code, Code::Unauthenticated, "{n}: {refused}");
    }
    let stranger = SigningKey::new("ES256", "new").token(&claims("eve", "enqueue:*"));
    eventually("an unknown token that is refused because the address sent too many", async || {
        broker.with_token(&stranger).enqueue("t").refused().await.reason == "ADDRESS_RATE"
    })
    .await;
    for n in 0..20 {
        broker.with_token(&issuers.token(&format!("ann-{n}"), "enqueue:*")).enqueue("t").await;
    }
}

#[tokio::test]
async fn revoking_a_token_ends_a_thousand_streams() {
    let guarded = Guarded::start().await;
    let token = guarded.token("ann", &["work:*"]).await;
    let mut streams = Vec::new();
    for _ in 0..10 {
        let channel = Endpoint::from_shared(guarded.broker.grpc.clone()).unwrap().connect().await.expect("connect");
        let mut client = v1::worker_service_client::WorkerServiceClient::new(channel);
        for _ in 0..100 {
            let (send, receive) = mpsc::channel(4);
            let subscribe = Subscribe { task_type: "t".into(), window: 1, ..Default::default() };
            let message = Some(v1::work_request::Message::Subscribe(subscribe));
            send.send(v1::WorkRequest { message }).await.expect("send");
            let mut request = Request::new(ReceiverStream::new(receive));
            request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
            let mut stream = with_timeout("headers", client.work(request)).await.expect("a stream").into_inner();
            with_timeout("a welcome", stream.message()).await.expect("no error").expect("a welcome");
            streams.push((send, stream));
        }
    }
    guarded.admin.access().revoke_tokens(all_of("ann")).await.expect("revoke");
    for (_send, mut stream) in streams {
        let end = loop {
            match with_timeout("the end of a stream", stream.message()).await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the stream ended without an error"),
                Err(end) => break end,
            }
        };
        assert_eq!(end.code(), Code::Unauthenticated, "{end}");
    }
}
