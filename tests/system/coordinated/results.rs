//! Tests that a job gets the results of its dependencies.

use howdah_proto::v1::{
    DependencyFailure, DependencyResult, GetResultsRequest, HistoryMode, JobState, LeasedJob, NewJob, TaskTypeSettings,
};

use crate::support::*;

/// Enqueues parts with these payloads, and a job after them, in one request. Returns the ids.
async fn fan_out(broker: &TestBroker, parts: &[String], join: NewJob) -> Vec<i64> {
    let name = |n: usize| format!("part {n}");
    let names: Vec<String> = (0..parts.len()).map(name).collect();
    let parts = parts.iter().enumerate().map(|(n, payload)| new_job("part", payload.clone()).local_name(&name(n)));
    broker.enqueue_all(parts.chain([NewJob { after_local: names, ..join }])).await
}

/// Acks `count` parts with their payloads as results.
async fn run_parts(broker: &TestBroker, count: usize) {
    let mut worker = broker.worker("part").window(10).await;
    for _ in 0..count {
        let job = worker.next().await;
        let result = job.payload.clone();
        worker.ack(&job).result(result).await;
    }
}

/// Gets a page of results.
async fn page(broker: &Service, id: i64, start: i32) -> (Vec<DependencyResult>, i32) {
    let answer = with_timeout("an answer", broker.workers().get_results(GetResultsRequest { id, start })).await;
    let answer = answer.expect("results").into_inner();
    (answer.results, answer.next_start)
}

fn texts(results: &[DependencyResult]) -> Vec<String> {
    results.iter().map(|result| String::from_utf8_lossy(&result.result).into_owned()).collect()
}

fn sizes(results: &[DependencyResult]) -> Vec<(usize, bool)> {
    results.iter().map(|result| (result.result.len(), result.truncated)).collect()
}

#[tokio::test]
async fn the_last_job_of_a_fan_out_gets_all_results_in_order_and_again_in_its_next_attempt() {
    let broker = TestBroker::start().await;
    let parts: Vec<String> = (0..100).map(|n| format!("result {n}")).collect();
    let ids = fan_out(&broker, &parts, new_job("join", "")).await;
    let (join, part_ids) = ids.split_last().expect("ids");
    run_parts(&broker, 100).await;
    let mut worker = broker.worker("join").await;
    for attempt in 1..=2 {
        let job = worker.next().await;
        assert_eq!((job.id, job.attempt, job.dependency_count), (*join, attempt, 100));
        assert_eq!(job.after.iter().map(|result| result.id).collect::<Vec<_>>(), part_ids);
        assert_eq!(texts(&job.after), parts);
        assert!(job.after.iter().all(|result| result.state() == JobState::Succeeded && !result.missing));
        // The dependencies of the job are still shown while it runs.
        assert_eq!(broker.job(*join).await.after, part_ids);
        if attempt == 1 {
            worker.nack(&job, "again").retry_after(millis(1)).await;
        } else {
            worker.ack(&job).await;
        }
    }
    assert_eq!(broker.job(*join).await.after, part_ids);
    assert_eq!(texts(&page(&broker, *join, 0).await.0), parts);
}

#[tokio::test]
async fn results_by_id_come_before_those_by_local_name_and_each_job_once() {
    let broker = TestBroker::start().await;
    let early = broker.enqueue_all([new_job("part", "b"), new_job("part", "a")]).await;
    run_parts(&broker, 2).await;
    let join = new_job("join", "").after(&[early[1], early[0], early[1]]);
    let ids = fan_out(&broker, &["d".into(), "c".into()], join).await;
    run_parts(&broker, 2).await;
    let pulled = broker.pull("join").await;
    assert_eq!(texts(&pulled[0].after), ["a", "b", "d", "c"]);
    assert_eq!(broker.job(ids[2]).await.after, [early[1], early[0], ids[0], ids[1]]);
}

#[tokio::test]
async fn results_that_are_too_large_are_left_out_and_fetched_in_pages() {
    let broker = TestBroker::start().await;
    // The second result is too large for the message. The results from the 18th on do not fit together with the others.
    let mut parts = vec!["x".repeat(64 << 10); 18];
    parts[1] = "x".repeat((64 << 10) + 1);
    parts.push("y".into());
    let join = *fan_out(&broker, &parts, new_job("join", "")).await.last().expect("an id");
    run_parts(&broker, parts.len()).await;
    let job = broker.worker("join").await.next().await;
    let sent: Vec<bool> = job.after.iter().map(|result| result.truncated).collect();
    assert_eq!(sent, (0..19).map(|n| n == 1 || n >= 16).collect::<Vec<_>>());
    assert!(job.after.iter().all(|result| result.truncated == result.result.is_empty()));

    let (all, next) = page(&broker, join, 0).await;
    assert_eq!((texts(&all), next), (parts.clone(), 0));
    let (rest, next) = page(&broker, join, 18).await;
    assert_eq!((texts(&rest), next), (vec!["y".into()], 0));
    assert_eq!(page(&broker, join, 19).await, (Vec::new(), 0));
    let refused = broker.workers().get_results(GetResultsRequest { id: join, start: -1 }).await.expect_err("start");
    Refusal::from(refused).names("start");
}

#[tokio::test]
async fn a_page_of_results_has_at_most_3_mib_and_at_least_one_result() {
    let broker = TestBroker::start_with(|config| config.limits.message_bytes = 16 << 20).await;
    let payload_bytes = 4 << 20;
    broker
        .set_cluster(howdah_proto::v1::ClusterSettings { payload_bytes, ..Default::default() })
        .only(&["payload_bytes"])
        .await;
    let parts = ["x".repeat(7 << 19), "y".repeat(2 << 20), "z".repeat(2 << 20)];
    let join = *fan_out(&broker, &parts, new_job("join", "")).await.last().expect("an id");
    run_parts(&broker, 3).await;
    let (mut start, mut pages) = (0, Vec::new());
    loop {
        let (results, next) = page(&broker, join, start).await;
        pages.push(sizes(&results));
        start = next;
        if next == 0 {
            break;
        }
    }
    assert_eq!(pages, [[(7 << 19, false)], [(2 << 20, false)], [(2 << 20, false)]]);
}

#[tokio::test]
async fn results_never_make_a_job_too_large_for_the_window_of_its_worker() {
    let broker = TestBroker::start().await;
    let parts = vec!["x".repeat(1_000); 20];
    let join = *fan_out(&broker, &parts, new_job("join", "payload")).await.last().expect("an id");
    run_parts(&broker, 20).await;
    // The list is cut, and `dependency_count` says so.
    let job = broker.worker("join").bytes(1_000).await.next().await;
    assert_eq!((job.id, job.dependency_count), (join, 20));
    assert!(job.after.len() < 20 && job.after.iter().all(|result| result.truncated), "{:?}", sizes(&job.after));
    assert_eq!(texts(&page(&broker, join, job.after.len() as i32).await.0), parts[job.after.len()..]);
}

#[tokio::test]
async fn a_job_that_runs_in_spite_of_failed_dependencies_sees_how_each_has_ended() {
    let broker = TestBroker::start().await;
    let join = new_job("join", "").if_dependency_fails(DependencyFailure::Run);
    let parts = ["done".into(), "dead".into(), "cancelled".into()];
    let ids = fan_out(&broker, &parts, join).await;
    assert_eq!(broker.cancel(&[ids[2]]).await, [ids[2]]);
    let mut worker = broker.worker("part").window(2).await;
    for job in worker.take(2).await {
        if job.id == ids[0] {
            worker.ack(&job).result("ok").await;
        } else {
            worker.nack(&job, "no").no_retry().await;
        }
    }
    let job = broker.worker("join").await.next().await;
    let seen: Vec<_> = job.after.iter().map(|result| (result.state(), &result.result[..])).collect();
    let (ok, none) = (&b"ok"[..], &b""[..]);
    assert_eq!(seen, [(JobState::Succeeded, ok), (JobState::Dead, none), (JobState::Cancelled, none)]);
}

#[tokio::test]
async fn a_dependency_without_history_has_succeeded_but_its_result_is_missing() {
    let broker = TestBroker::start().await;
    broker.set("part", TaskTypeSettings { history: HistoryMode::None as i32, ..Default::default() }).await;
    let outcome = |job: &LeasedJob| {
        let part = &job.after[0];
        (part.state(), part.missing, part.result.len(), part.truncated)
    };
    fan_out(&broker, &["lost".into()], new_job("join", "")).await;
    run_parts(&broker, 1).await;
    let job = broker.worker("join").await.next().await;
    assert_eq!(outcome(&job), (JobState::Succeeded, true, 0, false));
    // A job that also runs after failed dependencies cannot tell whether a dependency without history has succeeded.
    fan_out(&broker, &["lost".into()], new_job("other", "").if_dependency_fails(DependencyFailure::Run)).await;
    run_parts(&broker, 1).await;
    let job = broker.worker("other").await.next().await;
    assert_eq!(outcome(&job), (JobState::Unspecified, true, 0, false));
}

#[tokio::test]
async fn a_job_that_replaced_a_waiting_one_gets_the_results_of_the_dependencies_for_which_it_waited() {
    let broker = TestBroker::start().await;
    let parts = broker.enqueue_all([new_job("part", "one"), new_job("part", "two")]).await;
    let first = broker.enqueue(new_job("join", "1").key("k").after(&parts[..1])).await;
    assert_eq!(broker.enqueue(new_job("join", "2").key("k").replace().after(&parts[1..])).await, first);
    run_parts(&broker, 2).await;
    let job = broker.worker("join").await.next().await;
    assert_eq!((&job.payload[..], texts(&job.after)), (&b"2"[..], vec!["one".to_owned()]));
}

#[tokio::test]
async fn sql_enqueues_a_fan_out_whose_last_job_gets_the_results() {
    let broker = TestBroker::start().await;
    let jobs = r#"[{"task_type": "part", "payload": "a", "local_name": "a"}, {"task_type": "part", "payload": "b", "local_name": "b"},
                   {"task_type": "join", "after_local": ["b", "a", "b"]}]"#;
    broker.sql(&format!("SELECT howdah.enqueue_batch('{jobs}')")).await;
    run_parts(&broker, 2).await;
    let job = broker.worker("join").await.next().await;
    assert_eq!(texts(&job.after), ["b", "a"]);
}
