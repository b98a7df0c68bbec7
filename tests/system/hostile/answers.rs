//! Tests that stored data can always be read again: no job, list or response exceeds the message limit, whatever producers and
//! workers have stored.

use std::collections::HashMap;

use howdah_proto::v1::{
    CancelJobsRequest, Extend, Extension, JobState, ListJobsRequest, ListJobsResponse, NewJob, Outcome,
    PullJobsRequest, Settle, SettleStatus, Subscribe, Window, WorkRequest, WorkResponse, work_request, work_response,
    worker_service_client::WorkerServiceClient,
};
use prost::Message as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::{channel, enqueue};
use crate::support::{TestBroker, Worker, ack, database, jobs_client, new_job, with_timeout, workers_client};

/// Returns headers of 8 KiB in total.
fn headers() -> HashMap<String, String> {
    (0..64).map(|n| (format!("name-{n:03}"), "v".repeat(120))).collect()
}

/// Reads all pages of a list.
async fn pages(grpc: &str, query: ListJobsRequest) -> Result<Vec<ListJobsResponse>, Status> {
    let mut client = jobs_client(grpc).await;
    let mut pages: Vec<ListJobsResponse> = Vec::new();
    loop {
        let page_token = pages.last().map(|page| page.next_page_token.clone()).unwrap_or_default();
        if page_token.is_empty() && !pages.is_empty() {
            return Ok(pages);
        }
        let query = ListJobsRequest { page_token, ..query.clone() };
        pages.push(with_timeout("a page", client.list_jobs(query)).await?.into_inner());
    }
}

#[tokio::test]
async fn a_list_of_large_payloads_comes_in_pages_that_fit_a_message() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    for _ in 0..3 {
        enqueue(&broker.grpc, vec![new_job("large", vec![7; 1 << 20]); 12]).await;
    }
    let query =
        ListJobsRequest { task_type: "large".into(), include_payload: true, page_size: 1_000, ..Default::default() };
    let pages = pages(&broker.grpc, query).await.expect("pages");
    assert_eq!(pages.iter().map(|page| page.jobs.len()).sum::<usize>(), 36);
    assert!(pages.iter().flat_map(|page| &page.jobs).all(|job| job.payload.len() == 1 << 20));
}

#[tokio::test]
async fn a_list_of_jobs_with_long_failures_comes_in_pages_that_fit_a_message() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    enqueue(&broker.grpc, vec![new_job("failing", ""); 30]).await;
    // Stores as many failures as a job has after a hundred attempts, with errors of the maximum length.
    let fail = "UPDATE howdah.ready SET failures = (SELECT jsonb_agg(jsonb_build_object(
                    'attempt', n, 'error', repeat('e', 16384), 'started', now(), 'failed', now()))
                FROM generate_series(1, 100) n)";
    database.connect().await.batch_execute(fail).await.expect("failures");
    let query = ListJobsRequest { task_type: "failing".into(), ..Default::default() };
    let pages = pages(&broker.grpc, query).await.expect("pages");
    assert_eq!(pages.iter().map(|page| page.jobs.len()).sum::<usize>(), 30);
}

#[tokio::test]
async fn a_pull_of_ten_thousand_jobs_with_large_headers_returns_what_fits() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let job = NewJob { headers: headers(), ..new_job("headers", "") };
    for _ in 0..3 {
        enqueue(&broker.grpc, vec![job.clone(); 1_000]).await;
    }
    let pull = PullJobsRequest { task_types: vec!["headers".into()], max_jobs: 10_000, ..Default::default() };
    let pulled = with_timeout("jobs", workers_client(&broker.grpc).await.pull_jobs(pull)).await;
    let pulled = pulled.expect("an answer").into_inner().jobs;
    assert!(!pulled.is_empty() && pulled.iter().all(|job| job.headers.len() == 64));
    let leased = database.count("SELECT count(*) FROM howdah.leased").await;
    assert_eq!(leased, pulled.len() as i64, "jobs were leased that are not in the answer");
}

/// A worker that measures the size of the messages it receives.
struct Measuring {
    send: tokio::sync::mpsc::Sender<WorkRequest>,
    receive: tonic::Streaming<WorkResponse>,
    largest: usize,
}

impl Measuring {
    async fn subscribe(grpc: &str, task_type: &str, max_message_bytes: usize) -> Self {
        let (send, requests) = tokio::sync::mpsc::channel(16);
        let windows = vec![Window { task_type: task_type.into(), jobs: 2_000, bytes: 0 }];
        let mut client = WorkerServiceClient::new(channel(grpc).await).max_decoding_message_size(64 << 20);
        let stream = with_timeout("a stream", client.work(ReceiverStream::new(requests))).await.expect("a stream");
        let mut worker = Self { send, receive: stream.into_inner(), largest: 0 };
        let max_message_bytes = max_message_bytes as i32;
        let subscribe = Subscribe { windows, max_message_bytes, ..Subscribe::default() };
        worker.send(work_request::Message::Subscribe(subscribe)).await;
        worker
    }

    async fn send(&mut self, message: work_request::Message) {
        with_timeout("room", self.send.send(WorkRequest { message: Some(message) })).await.expect("an open stream");
    }

    async fn next(&mut self) -> work_response::Message {
        let next =
            with_timeout("a message", self.receive.message()).await.expect("an open stream").expect("an open stream");
        self.largest = self.largest.max(next.encoded_len());
        next.message.expect("a message")
    }
}

#[tokio::test]
async fn jobs_come_in_messages_no_larger_than_the_worker_said() {
    const LIMIT: usize = 8 << 10;
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    // Jobs with long metadata and growing payloads: some fit into a message of 8 KiB, and others are just too large.
    let task_type = "t".repeat(200);
    let timeout = Some(prost_types::Duration { seconds: 3600, nanos: 0 });
    let headers: HashMap<_, _> = (0..64).map(|n| (format!("{n:02}"), "v".repeat(8))).collect();
    let jobs = (0..75).map(|n| NewJob {
        headers: headers.clone(),
        traceparent: "p".repeat(200),
        tracestate: "s".repeat(512),
        timeout,
        ..new_job(&task_type, vec![7; n * 100])
    });
    enqueue(&broker.grpc, jobs.collect()).await;
    let mut worker = Measuring::subscribe(&broker.grpc, &task_type, LIMIT).await;
    // The fifty jobs with the smallest payloads certainly fit, so the worker gets at least these.
    let mut jobs = 0;
    while jobs < 50 {
        if let work_response::Message::Jobs(more) = worker.next().await {
            jobs += more.jobs.len();
        }
        assert!(worker.largest <= LIMIT, "a message of {} bytes", worker.largest);
    }
}

#[tokio::test]
async fn answers_and_cancellations_come_in_messages_no_larger_than_the_worker_said() {
    const LIMIT: usize = 4 << 10;
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let ids: Vec<i64> = enqueue(&broker.grpc, vec![new_job("t", ""); 1_000]).await.iter().map(|j| j.id).collect();
    let mut worker = Measuring::subscribe(&broker.grpc, "t", LIMIT).await;
    let mut jobs = 0;
    while jobs < 1_000 {
        if let work_response::Message::Jobs(more) = worker.next().await {
            jobs += more.jobs.len();
        }
    }
    let outcomes = ids.iter().map(|&id| Outcome { id, token: -1, outcome: None }).collect();
    worker.send(work_request::Message::Settle(Settle { outcomes })).await;
    let extensions = ids.iter().map(|&id| Extension { id, token: -1, duration: None }).collect();
    worker.send(work_request::Message::Extend(Extend { extensions })).await;
    let cancel = CancelJobsRequest { ids: ids.clone(), ..Default::default() };
    with_timeout("an answer", jobs_client(&broker.grpc).await.cancel_jobs(cancel)).await.expect("cancel");
    let (mut settled, mut extended, mut cancelled) = (0, 0, 0);
    while settled + extended + cancelled < 3_000 {
        worker.largest = 0;
        let next = worker.next().await;
        let kind = match next {
            work_response::Message::Settled(answers) => {
                settled += answers.results.len();
                "Settled"
            }
            work_response::Message::Extended(answers) => {
                extended += answers.results.len();
                "Extended"
            }
            work_response::Message::Cancel(cancel) => {
                cancelled += cancel.jobs.len();
                "Cancel"
            }
            _ => continue,
        };
        assert!(worker.largest <= LIMIT, "{kind} of {} bytes", worker.largest);
    }
    assert_eq!((settled, extended, cancelled), (1_000, 1_000, 1_000));
}

#[tokio::test]
async fn a_job_whose_headers_exceed_the_window_stays_ready_and_holds_up_no_other_job() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let poison = enqueue(&broker.grpc, vec![NewJob { headers: headers(), ..new_job("t", "") }]).await[0].id;
    enqueue(&broker.grpc, vec![new_job("t", ""); 20]).await;
    let row = format!("SELECT xmin::text::bigint FROM howdah.ready WHERE id = {poison}");
    let before = database.count(&row).await;
    let windows = vec![Window { task_type: "t".into(), jobs: 3, bytes: 4 << 10 }];
    let mut worker = Worker::subscribe(&broker.grpc, Subscribe { windows, ..Default::default() }).await;
    for _ in 0..20 {
        let job = worker.next().await;
        assert_ne!(job.id, poison);
        worker.ack(&job).await;
    }
    assert_eq!(super::get(&broker.grpc, poison).await.state(), JobState::Ready);
    assert_eq!(database.count(&row).await, before, "the job was claimed although it fits no worker");
    // A worker that accepts larger messages gets the large job.
    let mut other = Worker::connect(&broker.grpc, "t", 1).await;
    let job = other.next().await;
    assert_eq!(job.id, poison);
    other.settle(vec![ack(&job)]).await;
    assert_eq!(other.settled().await.status(), SettleStatus::Ok);
}
