//! Tests actions of the operator page: the page asks for confirmation with examples, then makes a call that is checked
//! and audited.

use howdah_proto::v1::{JobState, ListAuditRequest, TaskTypeSettings};

use super::client::{Browser, question};
use crate::support::*;

/// Creates dead jobs of a type, one for each of these errors.
pub async fn dead_with(service: &Service, task_type: &str, errors: &[&str]) -> Vec<i64> {
    let mut worker = service.worker(task_type).window(1).await;
    let mut ids = Vec::new();
    for error in errors {
        ids.push(service.enqueue(task_type).max_attempts(1).await);
        let job = worker.next().await;
        worker.nack(&job, error).await;
    }
    for id in &ids {
        service.until_state(*id, JobState::Dead).await;
    }
    ids
}

async fn dead(broker: &TestBroker, task_type: &str, count: usize) -> Vec<i64> {
    dead_with(broker, task_type, &vec!["no route to host 7"; count]).await
}

/// Returns method, number of changes and reason of the latest audit entry.
async fn last_change(broker: &TestBroker) -> (String, i64, String) {
    let answer = broker.access().list_audit(ListAuditRequest::default()).await.expect("the audit").into_inner();
    let entry = answer.entries.into_iter().next().expect("an entry");
    (entry.method, entry.count, entry.reason)
}

#[tokio::test]
async fn a_dead_job_is_retried_after_a_question_and_the_reason_is_recorded() {
    let broker = TestBroker::start().await;
    let id = dead(&broker, "t", 1).await[0];
    let mut browser = Browser::at(&broker);
    let confirmation =
        question(&browser, &[("do", "retry"), ("id", &id.to_string()), ("back", &format!("/job?id={id}"))]).await;
    let confirmation = confirmation.has(&["Retry 1 job?", "no route to host 7", "RetryJobs"]);
    assert_eq!(broker.state(id).await, JobState::Dead, "a confirmation page must change nothing");
    let done = browser.confirm(&confirmation, "ticket 42: Grüße").await;
    assert_eq!(done.leads_to(), format!("/ui/job?id={id}&done=retry&n=1"));
    browser.get(done.leads_to()).await.has(&["1 job was retried."]);
    assert_eq!(broker.state(id).await, JobState::Ready);
    assert_eq!(last_change(&broker).await, ("RetryJobs".into(), 1, "ticket 42: Grüße".into()));
}

#[tokio::test]
async fn a_finished_job_runs_again_once_and_the_new_job_is_shown() {
    let broker = TestBroker::start().await;
    let id = broker.enqueue(new_job("t", "p").key("k")).await;
    broker.cancel(&[id]).await;
    let mut browser = Browser::at(&broker);
    browser.get(&format!("/ui/job?id={id}")).await.has(&["Run again…"]);
    let confirmation = question(&browser, &[("do", "rerun"), ("id", &id.to_string())]).await;
    let confirmation = confirmation.has(&["Run again 1 job?", "RerunJobs"]);
    let done = browser.confirm(&confirmation, "").await;
    let new = broker.count("SELECT id FROM howdah.ready").await;
    assert_eq!(done.leads_to(), format!("/ui/job?id={new}&done=rerun&n=1"));
    browser.get(done.leads_to()).await.has(&["1 job was run again.", &format!("job?id={id}")]);
    // The browser sends the form again, and the job is not run another time.
    assert_eq!(browser.confirm(&confirmation, "").await.leads_to(), done.leads_to());
    assert_eq!(broker.count("SELECT count(*) FROM howdah.ready").await, 1);
    let confirmation = question(&browser, &[("do", "rerun"), ("id", &id.to_string())]).await;
    let refused = browser.confirm(&confirmation, "").await;
    assert_eq!(refused.status, 400);
    assert!(refused.body.contains(&format!("job {new} holds its key")), "{refused:?}");
}

#[tokio::test]
async fn all_dead_jobs_of_a_type_are_discarded_after_a_question_with_their_number_and_three_of_them() {
    let broker = TestBroker::start().await;
    let ids = dead(&broker, "t", 5).await;
    let mut browser = Browser::at(&broker);
    super::views::until_shown(&browser, "/ui/types", "state=dead\">5</a>").await;
    let confirmation = question(&browser, &[("do", "discard"), ("type", "t"), ("back", "/type?name=t")]).await;
    let confirmation = confirmation.has(&["Discard about 5 dead jobs of t"]);
    assert_eq!(confirmation.body.matches("<th scope=\"row\">").count(), 3);
    let done = browser.confirm(&confirmation, "").await;
    assert_eq!(done.leads_to(), "/ui/type?name=t&done=discard&n=5");
    for id in ids {
        assert_eq!(broker.state(id).await, JobState::Discarded);
    }
    assert_eq!(last_change(&broker).await.0, "DiscardJobs");
}

#[tokio::test]
async fn jobs_are_cancelled_taken_from_their_worker_and_given_another_priority() {
    let broker = TestBroker::start().await;
    let mut browser = Browser::at(&broker);
    let (a, b) = (broker.enqueue("t").delay(HOUR).await, broker.enqueue("t").delay(HOUR).await);
    let (a_text, b_text) = (a.to_string(), b.to_string());
    let confirmation =
        question(&browser, &[("do", "cancel"), ("id", &a_text), ("id", &b_text)]).await.has(&["Cancel 2 jobs?"]);
    assert_eq!(browser.confirm(&confirmation, "").await.leads_to(), "/ui/?done=cancel&n=2");
    assert_eq!((broker.state(a).await, broker.state(b).await), (JobState::Cancelled, JobState::Cancelled));

    let held = broker.enqueue("held").await;
    let mut worker = broker.worker("held").window(1).await;
    worker.next().await;
    worker.window("held", 0).await;
    let confirmation =
        question(&browser, &[("do", "release"), ("id", &held.to_string())]).await.has(&["Take 1 job from the worker?"]);
    assert!(browser.confirm(&confirmation, "").await.leads_to().ends_with("n=1"));
    broker.until_state(held, JobState::Ready).await;

    let confirmation =
        question(&browser, &[("do", "reprioritize"), ("id", &held.to_string()), ("priority", "-7")]).await;
    let confirmation = confirmation.has(&["Set the priority of 1 job to -7?"]);
    assert!(browser.confirm(&confirmation, "").await.leads_to().ends_with("n=1"));
    assert_eq!(broker.job(held).await.priority, -7);
    let confirmation =
        question(&browser, &[("do", "reprioritize"), ("id", &held.to_string()), ("priority", "5000")]).await;
    assert_eq!(browser.confirm(&confirmation, "").await.status, 400, "the call checks the permission");
}

#[tokio::test]
async fn a_type_is_paused_and_resumed_and_keeps_its_other_settings() {
    let broker = TestBroker::start().await;
    broker.set("t", TaskTypeSettings { max_running: 7, history_days: 3, ..Default::default() }).await;
    let mut browser = Browser::at(&broker);
    let confirmation = question(&browser, &[("do", "pause-type"), ("type", "t"), ("back", "/type?name=t")]).await;
    let done = browser.confirm(&confirmation.has(&["Pause t?"]), "deploy").await;
    browser.get(done.leads_to()).await.has(&["Done: paused.", "Resume…"]);
    assert_eq!(last_change(&broker).await, ("UpdateTaskType".into(), 1, "deploy".into()));
    let settings =
        || broker.count("SELECT count(*) FROM howdah.task_type WHERE paused AND history_days = 3 AND name = 't'");
    assert_eq!(settings().await, 1);
    let confirmation = question(&browser, &[("do", "resume-type"), ("type", "t"), ("back", "/type?name=t")]).await;
    browser.get(browser.clone().confirm(&confirmation, "").await.leads_to()).await.has(&[
        "Done: resumed.",
        "Pause…",
        "name=\"max_running\" value=\"7\"",
    ]);
    assert_eq!(settings().await, 0);
}

#[tokio::test]
async fn a_confirmation_page_for_missing_jobs_says_so_and_offers_no_action() {
    let broker = TestBroker::start().await;
    let browser = Browser::at(&broker);
    let id = broker.enqueue("t").delay(HOUR).await;
    super::views::until_shown(&browser, "/ui/types", "name=t").await;
    let (text, missing) = (id.to_string(), (id + 1_000).to_string());
    let confirmation = question(&browser, &[("do", "cancel"), ("id", &text), ("id", &missing)]).await;
    confirmation.has(&["Cancel 1 job?", &format!("There is no job {missing}.")]);
    assert_eq!(question(&browser, &[("do", "cancel"), ("id", &missing), ("id", "-9")]).await.status, 404);
    for (pairs, message) in [
        (&[("do", "discard"), ("type", "t")][..], "Discard: t has no dead job"),
        (&[("do", "retry"), ("type", "t"), ("group", "no <host>")], "Retry: t has no dead job with this error"),
        (&[("do", "bulk-retry"), ("type", "t"), ("state", "dead")], "Bulk retry: t has no such job"),
    ] {
        let confirmation = question(&browser, pairs).await.has(&[message, "There is nothing to do", "Go back"]);
        confirmation.has_no(&["name=\"sure\"", "no <host>"]);
    }
}
