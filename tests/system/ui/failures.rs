//! Tests failures on the operator page: groups of jobs with the same error, and actions on a whole group.

use howdah_proto::v1::JobState;

use super::{
    actions::dead_with,
    client::{Browser, question},
};
use crate::{access::fixture::Guarded, support::*};

#[tokio::test]
async fn failed_jobs_are_grouped_by_what_their_errors_have_in_common() {
    let broker = TestBroker::start().await;
    let browser = Browser::at(&broker);
    browser.get("/ui/failures").await.has(&["No job is dead or waits for a retry"]);
    let ids = dead_with(&broker, "mail.send", &["no <host> 7", "no <host> 8", "too large"]).await;
    dead_with(&broker, "other", &["elsewhere"]).await;
    let backing_off = broker.enqueue("mail.send").max_attempts(3).retry_after_each(HOUR).await;
    let mut worker = broker.worker("mail.send").window(1).await;
    let job = worker.next().await;
    worker.nack(&job, "no <host> 9").await;
    broker.until_state(backing_off, JobState::Scheduled).await;
    let all = browser.get("/ui/failures").await.has(&["2 dead</b> · 1 wait for their next attempt", "too large"]);
    let all = all.has(&["no &#60;host&#62;", "elsewhere"]).has_no(&["no <host>"]);
    assert_eq!(all.body.matches("<article").count(), 3);
    browser.get("/ui/failures?type=other").await.has(&["elsewhere"]).has_no(&["too large"]);
    assert_eq!(browser.get("/ui/failures?type=a%20b").await.status, 400);
    let link = "/ui/jobs?type=mail.send&amp;state=dead&amp;group=";
    let link = all.body.split(link).find(|rest| rest.starts_with("no%20%3Chost%3E")).expect("a link to the jobs");
    let link = format!("/ui/jobs?type=mail.send&state=dead&group={}", link.split('"').next().unwrap());
    let jobs = browser.get(&link).await.has(&["With the error"]);
    for (id, of_group) in ids.iter().zip([true, true, false]) {
        assert_eq!(jobs.body.contains(&format!("/ui/job?id={id}\"")), of_group, "{id}");
    }
}

#[tokio::test]
async fn the_dead_jobs_of_a_group_are_retried_or_discarded_and_no_others() {
    let broker = TestBroker::start().await;
    let mut browser = Browser::at(&broker);
    let ids = dead_with(&broker, "t", &["no host 7", "no host 8", "too large"]).await;
    let form =
        |action, group| [("do", action), ("type", "t"), ("state", "dead"), ("group", group), ("back", "/failures")];
    let confirmation =
        question(&browser, &form("discard", "too large")).await.has(&["Discard 1 dead job of t with this error?"]);
    assert_eq!(browser.confirm(&confirmation, "").await.leads_to(), "/ui/failures?done=discard&n=1");
    assert_eq!(broker.state(ids[2]).await, JobState::Discarded);
    let confirmation =
        question(&browser, &form("retry", "no host #")).await.has(&["Retry 2 dead jobs", "no host 7", "no host 8"]);
    assert_eq!(browser.confirm(&confirmation, "").await.leads_to(), "/ui/failures?done=retry&n=2");
    assert_eq!([broker.state(ids[0]).await, broker.state(ids[1]).await], [JobState::Ready; 2]);
    browser
        .get("/ui/failures?done=retry&n=2")
        .await
        .has(&["2 jobs were retried.", "No job is dead or waits for a retry"]);
}

#[tokio::test]
async fn a_reader_of_some_types_chooses_a_type_and_is_offered_only_permitted_actions() {
    let guarded = Guarded::start().await;
    dead_with(&guarded.admin, "secret", &["unheard of"]).await;
    dead_with(&guarded.admin, "mail.send", &["no host"]).await;
    let token = guarded.token("ann", &["read:mail.*", "operate:other"]).await;
    let browser = Browser::logged_in(&guarded.broker, &token).await;
    browser.get("/ui/failures").await.has(&["Choose a task type"]).has_no(&["no host", "unheard of", "secret"]);
    let own = browser.get("/ui/failures?type=mail.send").await.has(&["no host", "1 dead"]);
    own.has_no(&["Retry the dead…", "Discard the dead…", "In the background…"]);
    assert_eq!(browser.get("/ui/failures?type=secret").await.status, 403);
}
