//! Tests limits of single limit keys.

use howdah_proto::v1::{JobState, LimitKey, ListLimitKeysRequest, NewJob, ReasonKind, TaskTypeSettings};

use crate::support::*;

const LOOKED: &str = "SELECT NOT EXISTS (SELECT FROM howdah.limit_state WHERE check_at <= now())";

fn keyed(key: &str) -> NewJob {
    new_job("work", key).limit_key(key)
}

fn per_key(key_max_running: u32) -> TaskTypeSettings {
    TaskTypeSettings { key_max_running, ..Default::default() }
}

/// Waits until the given number of jobs of the limit key is ready and no further check is due.
async fn ready(broker: &Service, key: &str, jobs: usize) {
    let sql = format!("SELECT count(*) = {jobs} FROM howdah.ready WHERE options ->> 'limit_key' = '{key}'");
    broker.until("the ready jobs of the limit key", &sql).await;
    broker.until("the check of the limits", LOOKED).await;
    broker.until("the ready jobs of the limit key", &sql).await;
}

async fn listed(broker: &Service) -> Vec<LimitKey> {
    let list = ListLimitKeysRequest { task_type: "work".into(), ..Default::default() };
    broker.task_types().list_limit_keys(list).await.expect("limit keys").into_inner().limit_keys
}

#[tokio::test]
async fn a_limit_key_with_its_own_limit_differs_from_the_other_keys_of_the_type() {
    let (a, b) = TestBroker::pair().await;
    a.set("work", per_key(1)).await;
    a.limit_key("work", "big", 3).await;
    let jobs: Vec<_> = (0..5).flat_map(|_| [keyed("big"), keyed("small")]).collect();
    b.enqueue_all(jobs).await;
    ready(&b, "big", 3).await;
    ready(&b, "small", 1).await;
    let keys = listed(&b).await;
    let shown: Vec<_> = keys.iter().map(|key| (&*key.limit_key, key.max_running, key.waiting_count)).collect();
    assert_eq!(shown, [("big", 3, 2), ("small", 0, 4)]);
    a.limit_key("work", "big", 0).await;
    ready(&b, "big", 1).await;
}

#[tokio::test]
async fn a_limit_key_has_its_own_limit_although_the_type_has_none() {
    let (a, b) = TestBroker::pair().await;
    let free = a.enqueue_all((0..4).map(|_| keyed("x"))).await;
    b.limit_key("work", "x", 2).await;
    ready(&a, "x", 2).await;
    let mut worker = a.worker("work").window(50).await;
    let (first, second) = (worker.next().await, worker.next().await);
    assert_eq!([first.id, second.id], free[..2]);
    b.limit_key("work", "x", 1).await;
    // The limit is lowered to one while two jobs run. The job that is retried waits for the other one.
    worker.nack(&first, "no").at_once().await;
    a.until_state(first.id, JobState::Waiting).await;
    worker.ack(&second).await;
    let third = worker.next().await;
    a.until("the check of the limits", LOOKED).await;
    assert_eq!((third.id, worker.buffered()), (free[2], 0));
    b.limit_key("work", "x", 0).await;
    worker.take(2).await;
}

#[tokio::test]
async fn a_lower_limit_of_a_key_moves_more_ready_jobs_than_one_check_does() {
    let broker = TestBroker::start().await;
    let jobs = broker.enqueue_all((0..1_200).map(|_| keyed("x"))).await;
    broker.limit_key("work", "x", 2).await;
    ready(&broker, "x", 2).await;
    for id in &jobs[..2] {
        assert_eq!(broker.state(*id).await, JobState::Ready, "the first jobs are ready");
    }
    assert_eq!(broker.count("SELECT count(*) FROM howdah.waiting").await, 1_198);
}

#[tokio::test]
async fn a_waiting_job_names_the_own_limit_of_its_key() {
    let broker = TestBroker::start().await;
    broker.set("work", per_key(1)).await;
    broker.limit_key("work", "x", 2).await;
    let jobs = broker.enqueue_all((0..3).map(|_| keyed("x"))).await;
    ready(&broker, "x", 2).await;
    let request = howdah_proto::v1::ExplainJobRequest { id: jobs[2] };
    let full = broker.jobs().explain_job(request).await.expect("reasons").into_inner().reasons.remove(0);
    assert_eq!((full.kind(), full.limit, full.used), (ReasonKind::LimitKeyFull, 2.0, 2));
}

#[tokio::test]
async fn a_type_whose_limit_key_has_its_own_limit_is_not_unused_and_the_limit_is_kept() {
    let broker = TestBroker::start().await;
    broker.limit_key("work", "x", 2).await;
    broker.sql("SELECT howdah.delete_unused_task_types('-1 s', 10), howdah.delete_unused_task_types('-1 s', 10)").await;
    broker.sql(include_str!("../../../server/engine/sql/maintain/delete_idle_limit_states.sql")).await;
    assert_eq!(listed(&broker).await[0].max_running, 2);
    broker.limit_key("work", "x", 0).await;
    broker.until("the check of the limits", LOOKED).await;
    // Skips types whose row another transaction locks, so it may take several attempts.
    let deleted = "SELECT (SELECT count(*) FROM howdah.delete_unused_task_types('-1 s', 10)) >= 0
                          AND NOT EXISTS (SELECT FROM howdah.task_type WHERE name = 'work')";
    broker.until("the deletion of the type", deleted).await;
}

#[tokio::test]
async fn a_limit_of_a_key_out_of_bounds_is_refused_by_its_field() {
    let broker = TestBroker::start().await;
    let update = async |task_type: &str, limit_key: &str, max_running| {
        let (task_type, limit_key) = (task_type.into(), limit_key.into());
        let request = howdah_proto::v1::UpdateLimitKeyRequest { task_type, limit_key, max_running };
        Refusal::from(broker.task_types().update_limit_key(request).await.expect_err("a refusal"))
    };
    update("a b", "x", 1).await.names("task_type");
    update("work", "", 1).await.names("limit_key");
    update("work", &"k".repeat(201), 1).await.names("limit_key");
    update("work", "x", 1_000_001).await.names("max_running");
}
