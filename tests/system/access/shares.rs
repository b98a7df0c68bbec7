//! Tests quotas: a principal can use only a part of the resources that all callers of a broker share.

use futures::{FutureExt as _, StreamExt as _, future::select_all, stream::FuturesUnordered};
use howdah_client::{NewJob, NewSchedule, Plan};
use howdah_proto::v1::{self, ClusterSettings, TaskTypeSettings, WaitJobsRequest};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tonic::Code;

use super::fixture::Guarded;
use crate::{http_producer::curl, support::*};

#[tokio::test]
async fn a_principal_creates_a_quarter_of_all_task_types_by_every_way_in_and_others_create_the_rest() {
    let guarded = Guarded::start().await;
    guarded.admin.set_cluster(ClusterSettings { task_types: 100, ..ClusterSettings::default() }).await;
    guarded.admin.enqueue_all(["old", "old"]).await;
    let flood = guarded.caller("flood", &["enqueue:*", "work:*", "operate:*"]).await;
    for n in 0..25 {
        flood.enqueue(format!("flood/{n}").as_str()).await;
    }
    let exhausted = |status: tonic::Status| {
        assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
        let text = status.message();
        assert!(text.contains("\"flood\" has created 25 task types") && text.contains("\"new\""), "{text}");
    };
    exhausted(flood.enqueue("new").answer().await.expect_err("enqueued"));
    exhausted(flood.enqueue("old").fallback("new").answer().await.expect_err("enqueued"));
    exhausted(flood.enqueue("old").next_stages(&["new"]).answer().await.expect_err("enqueued"));
    exhausted(flood.worker("new").refused().await);
    let pull = v1::PullJobsRequest { task_types: vec!["new".into()], max_jobs: 1, ..Default::default() };
    exhausted(flood.workers().pull_jobs(pull).await.expect_err("pulled"));
    let settings = Some(TaskTypeSettings { max_attempts: 3, ..TaskTypeSettings::default() });
    let update = v1::UpdateTaskTypeRequest { task_type: "new".into(), settings, update_mask: None };
    exhausted(flood.task_types().update_task_type(update).await.expect_err("set"));
    let schedule = Some(NewSchedule::new("s", NewJob::new("new"), Plan::every(HOUR)).into_proto());
    exhausted(flood.schedules().create_schedule(v1::CreateScheduleRequest { schedule }).await.expect_err("a schedule"));
    let mut worker = flood.worker("old").window(2).await;
    let jobs = worker.take(2).await;
    worker.settle(vec![ack(&jobs[0]).next_stage("new")]).await;
    let refused = worker.settled().await;
    assert_eq!(refused.status(), v1::SettleStatus::Invalid);
    assert!(refused.message.contains("has created 25 task types"), "{refused:?}");
    let outcomes = vec![ack(&jobs[0]).next_stage("new")];
    exhausted(flood.workers().settle_jobs(v1::SettleJobsRequest { outcomes }).await.expect_err("settled"));
    assert_eq!(guarded.broker.count("SELECT count(*) FROM howdah.task_type").await, 26);
    // The refused principal can still use existing task types, and other principals can create types.
    flood.enqueue("old").await;
    worker.ack(&jobs[0]).next_stage("flood/1").await;
    guarded.caller("ann", &["enqueue:*"]).await.enqueue("new").await;
    flood.enqueue("new").await;
}

#[tokio::test]
async fn a_principal_may_use_a_quarter_of_the_concurrent_http_requests() {
    let guarded = Guarded::start_with(|config| config.http_enqueue = true).await;
    let header = async |principal| format!("Authorization: Bearer {}", guarded.token(principal, &["enqueue:*"]).await);
    let (flood, ann) = (header("flood").await, header("ann").await);
    let http = guarded.broker.http.trim_start_matches("http://");
    // The body is shorter than its Content-Length, so each request stays open while the broker waits for the rest.
    let request = format!("POST /v1/jobs/t HTTP/1.1\r\nHost: localhost\r\n{flood}\r\nContent-Length: 10\r\n\r\nx");
    let mut held = Vec::new();
    for _ in 0..200 {
        let mut stream = TcpStream::connect(http).await.expect("connect");
        stream.write_all(request.as_bytes()).await.expect("write");
        held.push(stream);
    }
    let answers = held.iter_mut().map(|stream| {
        async move {
            let mut status = [0; 12];
            stream.read_exact(&mut status).await.expect("an answer");
            String::from_utf8_lossy(&status).into_owned()
        }
        .boxed()
    });
    let (first, ..) = with_timeout("a refusal", select_all(answers)).await;
    assert_eq!(first, "HTTP/1.1 503");
    let (status, answer) = curl(&guarded.broker, "/v1/jobs/t", &[&ann], b"x").await;
    assert_eq!(status, 200, "{answer}");
    let (status, answer) = curl(&guarded.broker, "/v1/jobs/t", &[&flood], b"x").await;
    assert!(status == 503 && answer.to_string().contains("a quarter"), "{status} {answer}");
}

#[tokio::test]
async fn a_principal_waits_for_a_quarter_of_all_jobs_that_callers_may_wait_for() {
    let guarded = Guarded::start().await;
    let ids = guarded.admin.enqueue_all(vec![new_job("t", ""); 10_000]).await;
    let flood = guarded.caller("flood", &["read:*"]).await;
    // Each of 26 calls waits for 10,000 jobs; the last one exceeds the quota of 250,000 jobs.
    let mut calls = Vec::new();
    for _ in 0..26 {
        let request = WaitJobsRequest { ids: ids.clone(), ..Default::default() };
        calls.push(flood.jobs().wait_jobs(request).await.expect("a stream").into_inner());
    }
    let mut answers: FuturesUnordered<_> = calls.iter_mut().map(|call| call.message()).collect();
    let refused = with_timeout("a refusal", answers.next()).await.expect("an answer").expect_err("too many");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(refused.message().contains("a quarter"), "{refused}");
    assert_eq!(guarded.admin.cancel(&ids[..1]).await, ids[..1]);
    let waited = guarded.caller("ann", &["read:*"]).await.wait(ids[0]).await;
    assert_eq!(waited.id, ids[0]);
}

#[tokio::test]
async fn a_principal_creates_a_quarter_of_all_schedules_and_others_create_the_rest() {
    let guarded = Guarded::start().await;
    let flood = guarded.caller("flood", &["enqueue:*"]).await;
    let ann = guarded.caller("ann", &["enqueue:*"]).await;
    let hourly = |name: &str| {
        let schedule = NewSchedule::new(name, NewJob::new("t"), Plan::every(HOUR));
        Some(schedule.start(far()).into_proto())
    };
    let create = async |caller: &Service, name| {
        caller.schedules().create_schedule(v1::CreateScheduleRequest { schedule: hourly(name) }).await.map(drop)
    };
    create(&flood, "first").await.expect("create");
    let fill = "INSERT INTO howdah.schedule
                SELECT (jsonb_populate_record(s, jsonb_build_object('name', 'n' || n))).*
                FROM howdah.schedule s, generate_series(1, 2498) n;
                INSERT INTO howdah.schedule_creator SELECT 'n' || n, 'flood' FROM generate_series(1, 2498) n";
    guarded.broker.sql(fill).await;
    create(&flood, "last").await.expect("create");
    let refused = create(&flood, "more").await.expect_err("too many");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    assert!(refused.message().contains("\"flood\" has created 2500 schedules"), "{refused:?}");
    let update = v1::UpdateScheduleRequest { schedule: hourly("more"), allow_missing: true };
    let refused = flood.schedules().update_schedule(update).await.expect_err("too many");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    create(&flood, "last").await.expect("it is there");
    // The principal that updates a schedule does not become its creator.
    create(&ann, "more").await.expect("create");
    let update = v1::UpdateScheduleRequest { schedule: hourly("first"), allow_missing: false };
    ann.schedules().update_schedule(update).await.expect("update");
    assert_eq!(
        guarded.broker.count("SELECT count(*) FROM howdah.schedule_creator WHERE principal = 'flood'").await,
        2500
    );
    ann.schedules().delete_schedule(v1::DeleteScheduleRequest { name: "n1".into() }).await.expect("delete");
    create(&flood, "another").await.expect("room again");
}

#[tokio::test]
async fn a_principal_has_a_quarter_of_all_open_bulk_operations() {
    let guarded = Guarded::start().await;
    let flood = guarded.caller("flood", &["enqueue:t", "operate:t"]).await;
    flood.enqueue("t").await;
    let start = async |caller: &Service| {
        let spec =
            v1::BulkSpec { operation: v1::BulkOperation::Discard as i32, task_type: "t".into(), ..Default::default() };
        let request = v1::StartBulkRequest { spec: Some(spec), ..Default::default() };
        with_timeout("an answer", caller.bulks().start_bulk(request)).await.map(drop)
    };
    start(&flood).await.expect("a start");
    let fill = "INSERT INTO howdah.bulk (operation, type_id, task_type, last_job_id, selected, has_more, principal, peer, reason, state)
                SELECT 'discard', type_id, task_type, 0, 0, false, principal, '', '', 'paused' FROM howdah.bulk, generate_series(1, 25)";
    guarded.broker.sql(fill).await;
    let refused = start(&flood).await.expect_err("too many");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    start(&guarded.caller("ann", &["operate:t"]).await).await.expect("a start by another principal");
}
