//! Tests that conditions restrict every kind of search.

use howdah_proto::v1::{JobConditions, JobState, SearchJobsRequest};

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
