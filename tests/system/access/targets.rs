//! Tests every way in which a job can continue in another task type, and the scopes that each way needs.

use howdah_proto::v1;
use tonic::{Code, Status};

use super::fixture::Guarded;
use crate::support::*;

/// Ways to send a job of one task type to another type.
const WAYS: [&str; 8] = [
    "fallback of a job",
    "stage of a job",
    "stage of an outcome",
    "task type of a schedule",
    "fallback of a schedule",
    "stage of a schedule",
    "fallback of a task type",
    "bulk move",
];

async fn send(guarded: &Guarded, caller: &Service, way: &str, from: &str, to: &str) -> Result<(), Status> {
    let enqueue = async |job: v1::NewJob| {
        caller.jobs().enqueue_jobs(v1::EnqueueJobsRequest { jobs: vec![job], ..Default::default() }).await.map(drop)
    };
    let schedule = async |template: v1::NewJob| {
        let plan = Some(v1::schedule::Plan::Period(wire(HOUR)));
        let schedule =
            v1::Schedule { name: way.replace(' ', "-"), template: Some(template), plan, ..Default::default() };
        caller.schedules().create_schedule(v1::CreateScheduleRequest { schedule: Some(schedule) }).await.map(drop)
    };
    let job = || new_job(from, "p");
    match way {
        "fallback of a job" => enqueue(v1::NewJob { fallback: to.into(), ..job() }).await,
        "stage of a job" => enqueue(v1::NewJob { next_stages: vec![to.into()], ..job() }).await,
        "stage of an outcome" => {
            guarded.admin.enqueue(job()).await;
            let leased = guarded.admin.pull(from).wait(MINUTE).await.remove(0);
            let request = v1::SettleJobsRequest { outcomes: vec![ack(&leased).next_stage(to)] };
            caller.workers().settle_jobs(request).await.map(drop)
        }
        "task type of a schedule" => schedule(new_job(to, "p")).await,
        "fallback of a schedule" => schedule(v1::NewJob { fallback: to.into(), ..job() }).await,
        "stage of a schedule" => schedule(v1::NewJob { next_stages: vec![to.into()], ..job() }).await,
        "fallback of a task type" => {
            let settings = Some(v1::TaskTypeSettings { fallback: to.into(), ..Default::default() });
            let request = v1::UpdateTaskTypeRequest { task_type: from.into(), settings, update_mask: None };
            caller.task_types().update_task_type(request).await.map(drop)
        }
        "bulk move" => {
            let operation = v1::BulkOperation::Move as i32;
            let spec =
                v1::BulkSpec { operation, task_type: from.into(), to_task_type: to.into(), ..Default::default() };
            caller.bulks().start_bulk(v1::StartBulkRequest { spec: Some(spec), ..Default::default() }).await.map(drop)
        }
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn every_call_that_sends_jobs_to_another_type_needs_a_scope_for_that_type() {
    let guarded = Guarded::start().await;
    let mail = ["enqueue:mail", "work:mail", "read:mail", "payload:mail", "operate:mail"];
    let caller = guarded.caller("ann", &mail).await;
    for way in WAYS {
        let refused = send(&guarded, &caller, way, "mail", "pay").await.expect_err(way);
        assert_eq!(refused.code(), Code::PermissionDenied, "{way}: {refused}");
        assert!(refused.message().contains(":pay"), "{way}: {refused}");
    }
    assert_eq!(guarded.broker.count("SELECT count(*) FROM howdah.task_type WHERE name = 'pay'").await, 0);
    let both = guarded.caller("bob", &[&mail[..], &["enqueue:pay", "operate:pay"]].concat()).await;
    for way in WAYS {
        send(&guarded, &both, way, "mail", "pay").await.expect(way);
    }
}

#[tokio::test]
async fn an_operator_cannot_send_jobs_to_a_type_where_it_could_read_their_forbidden_payloads() {
    let guarded = Guarded::start().await;
    let operates = ["operate:mail", "operate:own", "enqueue:own"];
    // Resuming a paused bulk move needs the same scopes as starting it.
    guarded.admin.enqueue_all(vec!["slow"; 600]).await;
    let spec = v1::BulkSpec {
        operation: v1::BulkOperation::Move as i32,
        task_type: "slow".into(),
        to_task_type: "own".into(),
        max_jobs_per_second: 1,
        ..Default::default()
    };
    let request = v1::StartBulkRequest { spec: Some(spec), ..Default::default() };
    let paused = guarded.admin.bulks().start_bulk(request).await.expect("start").into_inner().bulk.expect("a bulk").id;
    guarded.admin.bulks().pause_bulk(v1::PauseBulkRequest { id: paused }).await.expect("pause");
    for sees in [&["work:own"][..], &["payload:own", "read:own"], &["payload:*", "read:own"]] {
        let caller = guarded.caller("ann", &[&operates[..], &["operate:slow"], sees].concat()).await;
        let refused = caller
            .bulks()
            .resume_bulk(v1::ResumeBulkRequest { id: paused })
            .await
            .expect_err("a resume without the scopes");
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
        for way in ["fallback of a task type", "bulk move"] {
            let refused = send(&guarded, &caller, way, "mail", "own").await.expect_err(way);
            assert_eq!(refused.code(), Code::PermissionDenied, "{way}: {refused}");
            assert!(refused.message().contains("payload:mail"), "{way}: {refused}");
        }
    }
    let reader = guarded.caller("eve", &[&operates[..], &["read:own"]].concat()).await;
    for way in ["fallback of a task type", "bulk move"] {
        let refused = send(&guarded, &reader, way, "mail", "own").await.expect_err(way);
        assert!(refused.message().contains("read:mail"), "{way}: {refused}");
    }
    let blind = guarded.caller("bob", &operates).await;
    for way in ["fallback of a task type", "bulk move"] {
        send(&guarded, &blind, way, "mail", "own").await.expect(way);
    }
}

#[tokio::test]
async fn an_operator_without_a_scope_for_the_fallback_type_may_keep_it_but_not_choose_another() {
    let guarded = Guarded::start().await;
    send(&guarded, &guarded.admin, "fallback of a task type", "mail", "pay").await.unwrap();
    let caller = guarded.caller("ann", &["operate:mail"]).await;
    send(&guarded, &caller, "fallback of a task type", "mail", "pay").await.expect("the same fallback");
    let refused = send(&guarded, &caller, "fallback of a task type", "mail", "other").await.expect_err("another one");
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
}
