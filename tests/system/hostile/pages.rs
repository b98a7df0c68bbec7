//! Tests that a page token is valid only for the call, filter and database for which it was issued.

use howdah_proto::v1::{
    CancelJobsRequest, DiscardJobsRequest, JobFilter, JobState, ListJobsRequest, ListLimitKeysRequest,
    ReprioritizeJobsRequest, RetryJobsRequest, TaskTypeSettings,
};

use super::{assert_names, refused};
use crate::support::*;

#[tokio::test]
async fn a_page_token_selects_nothing_but_the_rest_of_its_own_list_at_any_broker() {
    let (a, b) = TestBroker::pair().await;
    a.enqueue_all([new_job("mine", ""), new_job("mine", ""), new_job("other", ""), new_job("other", "")]).await;
    let list = |task_type: &str, state: JobState| ListJobsRequest {
        task_type: task_type.into(),
        state: state as i32,
        page_size: 1,
        ..Default::default()
    };
    let first = a.jobs().list_jobs(list("mine", JobState::Ready)).await.expect("a page").into_inner();
    let page_token = first.next_page_token;
    // The page token also works at another broker and with another page size, and gives the remaining jobs.
    let rest = ListJobsRequest { page_token: page_token.clone(), page_size: 7, ..list("mine", JobState::Ready) };
    let rest = b.jobs().list_jobs(rest).await.expect("a page").into_inner().jobs;
    assert_eq!(rest.len(), 1);
    assert_ne!(rest[0].id, first.jobs[0].id);

    let filter = |task_type: &str| JobFilter { task_type: task_type.into(), ..Default::default() };
    let token = || page_token.clone();
    let mut jobs = b.jobs();
    for request in [list("other", JobState::Ready), list("mine", JobState::Unspecified)] {
        let request = ListJobsRequest { page_token: token(), ..request };
        assert_names(&refused(jobs.list_jobs(request)).await, "page_token");
    }
    for task_type in ["mine", "other"] {
        let filter = || Some(filter(task_type));
        let request = CancelJobsRequest { filter: filter(), page_token: token(), ..Default::default() };
        assert_names(&refused(jobs.cancel_jobs(request)).await, "page_token");
        let request = RetryJobsRequest { filter: filter(), page_token: token(), ..Default::default() };
        assert_names(&refused(jobs.retry_jobs(request)).await, "page_token");
        let request = DiscardJobsRequest { filter: filter(), page_token: token() };
        assert_names(&refused(jobs.discard_jobs(request)).await, "page_token");
        let request =
            ReprioritizeJobsRequest { task_type: task_type.into(), page_token: token(), ..Default::default() };
        assert_names(&refused(jobs.reprioritize_jobs(request)).await, "page_token");
    }
    assert_eq!(a.count("SELECT count(*) FROM howdah.ready").await, 4);

    // The key of page tokens is a secret in the database, so a role that may only read jobs cannot compute a page
    // token.
    let secret = "SELECT octet_length(value) = 32 AND value <> decode(repeat('00', 32), 'hex') FROM howdah.secret";
    assert!(a.database.connect().await.query_one(secret, &[]).await.expect(secret).get::<_, bool>(0));
}

#[tokio::test]
async fn limit_keys_of_any_name_are_listed_page_by_page() {
    let broker = TestBroker::start().await;
    broker.set("k", TaskTypeSettings { key_max_running: 1, ..Default::default() }).await;
    let names = ["a b", "ä/🦀", "it's", "z"];
    for name in names {
        broker.enqueue_all([new_job("k", "").limit_key(name), new_job("k", "").limit_key(name)]).await;
    }
    let (mut found, mut page_token) = (Vec::new(), String::new());
    loop {
        let request = ListLimitKeysRequest { task_type: "k".into(), page_size: 1, page_token };
        let page = broker.task_types().list_limit_keys(request).await.expect("a page").into_inner();
        found.extend(page.limit_keys.into_iter().map(|key| key.limit_key));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    found.sort_unstable();
    let mut expected = names;
    expected.sort_unstable();
    assert_eq!(found, expected);
}
