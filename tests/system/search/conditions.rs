//! Tests that conditions restrict every kind of search.

use howdah_proto::v1::{Job, JobConditions, JobState, ListJobsRequest, SearchJobsRequest};

use super::{EVER, by_header, by_key, ids, look, one_of_each, page};
use crate::support::*;

fn is_new() -> Option<JobConditions> {
    Some(JobConditions { created_since: Some(at(3_000_000_000)), ..JobConditions::default() })
}

fn is_old() -> Option<JobConditions> {
    Some(JobConditions { created_before: Some(at(3_000_000_000)), ..JobConditions::default() })
}

#[tokio::test]
async fn conditions_restrict_searches_by_key_by_content_and_alone_in_every_state() {
    let broker = TestBroker::start().await;
    for (state, id) in one_of_each(&broker).await {
        let key = broker.job(id).await.key;
        for search in [by_key("t", &key), look("t", state, by_header("tenant", "acme"))] {
            let with = |conditions| SearchJobsRequest { conditions, ..search.clone() };
            assert_eq!(ids(&broker, with(is_old())).await, [id], "{state:?}");
            assert_eq!(ids(&broker, with(is_new())).await, [0_i64; 0], "{state:?}");
        }
        let alone = |conditions| SearchJobsRequest {
            conditions,
            task_type: "t".into(),
            state: state as i32,
            since: EVER,
            ..SearchJobsRequest::default()
        };
        assert!(ids(&broker, alone(is_old())).await.contains(&id), "{state:?}");
        assert_eq!(ids(&broker, alone(is_new())).await, [0_i64; 0], "{state:?}");
    }
}

#[tokio::test]
async fn a_search_by_conditions_alone_continues_on_the_next_page() {
    let broker = TestBroker::start().await;
    let job = |n: usize| new_job("t", "x").fair_key(if n.is_multiple_of(3) { "wanted" } else { "other" });
    let enqueued = broker.enqueue_all((0..60).map(job)).await;
    let mut expected: Vec<i64> = enqueued.iter().step_by(3).copied().collect();
    let search = SearchJobsRequest {
        conditions: Some(JobConditions { fair_key: "wanted".into(), ..JobConditions::default() }),
        task_type: "t".into(),
        state: JobState::Ready as i32,
        since: EVER,
        page_size: 7,
        ..SearchJobsRequest::default()
    };
    assert_eq!(page(&broker, search.clone()).await.jobs.len(), 7);
    let mut found = ids(&broker, search).await;
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
}

/// Lists the jobs of all pages.
async fn listed(broker: &TestBroker, mut request: ListJobsRequest) -> Vec<Job> {
    let mut jobs = Vec::new();
    loop {
        let page = broker.jobs().list_jobs(request.clone()).await.expect("a page").into_inner();
        jobs.extend(page.jobs);
        if page.next_page_token.is_empty() {
            return jobs;
        }
        request.page_token = page.next_page_token;
    }
}

#[tokio::test]
async fn conditions_restrict_a_list_of_jobs_in_every_state() {
    let broker = TestBroker::start().await;
    for (state, id) in one_of_each(&broker).await {
        let ids = async |state: JobState, conditions| {
            let request =
                ListJobsRequest { task_type: "t".into(), state: state as i32, conditions, ..Default::default() };
            listed(&broker, request).await.iter().map(|job| job.id).collect::<Vec<_>>()
        };
        for within in [state, JobState::Unspecified] {
            assert!(ids(within, is_old()).await.contains(&id), "{state:?}");
            assert_eq!(ids(within, is_new()).await, [0_i64; 0], "{state:?}");
        }
    }
}

#[tokio::test]
async fn a_list_with_conditions_covers_more_jobs_than_one_call_reads() {
    let broker = TestBroker::start().await;
    let enqueued =
        "INSERT INTO howdah.ready (rank, id, created, type_id, attempt, max_attempts, priority, options, payload)
                    SELECT i, i, now(), (SELECT id FROM howdah.task_type WHERE name = 't'), 0, 10, 0,
                           CASE WHEN i % 24000 = 1 THEN '{\"fair_key\": \"rare\"}'::jsonb END, ''
                    FROM generate_series(1, 25000) i";
    broker.enqueue(new_job("t", "")).await;
    broker.database.sql("DELETE FROM howdah.ready").await;
    broker.database.sql(enqueued).await;
    let conditions = Some(JobConditions { fair_key: "rare".into(), ..JobConditions::default() });
    let list = |state: JobState| ListJobsRequest {
        task_type: "t".into(),
        state: state as i32,
        conditions: conditions.clone(),
        ..Default::default()
    };
    for state in [JobState::Ready, JobState::Unspecified] {
        let jobs = listed(&broker, list(state)).await;
        assert_eq!(jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [1, 24_001], "{state:?}");
    }
    let args = ["jobs", "t", "--fair-key", "rare", "--json", "--server", &broker.grpc];
    let (status, out, err) = run(&args, b"").await;
    assert!(status.success() && out.lines().count() == 2, "{out} {err}");
    let (status, _, err) = run(&["jobs", "t", "--tag", "a", "--sort", "failure", "--server", &broker.grpc], b"").await;
    assert_eq!(status.code(), Some(2), "{err}");
}
