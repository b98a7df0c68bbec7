//! Tests that the operator page hides data that the caller may not read. It neither offers nor performs actions that
//! the caller may not do.

use howdah_proto::v1::JobState;

use super::client::Browser;
use crate::{access::fixture::Guarded, support::*};

#[tokio::test]
async fn a_foreign_job_or_type_is_byte_for_byte_like_one_that_does_not_exist() {
    let guarded = Guarded::start().await;
    // Skips ids, so that the job's id is part of no other number on the page.
    guarded.broker.database.skip_ids(7_000_000).await;
    let id = guarded.admin.enqueue("secret").await;
    let token = guarded.token("ann", &["read:mail.*", "operate:mail.*", "payload:mail.*"]).await;
    let mut browser = Browser::logged_in(&guarded.broker, &token).await;
    let missing = id + 1_000;
    let same = |a: &super::client::Page, b: &super::client::Page, id: &str, missing: &str| {
        assert_eq!((a.status, a.body.replace(id, missing)), (b.status, b.body.clone()));
    };
    let (id, missing) = (id.to_string(), missing.to_string());
    for path in ["/ui/job?id=", "/ui/confirm?do=cancel&id=", "/ui/job?as=hex&id="] {
        let (foreign, none) =
            (browser.get(&format!("{path}{id}")).await, browser.get(&format!("{path}{missing}")).await);
        assert_eq!(foreign.status, 404);
        same(&foreign, &none, &id, &missing);
    }
    let act = |id: &str| {
        [("do".to_owned(), "cancel".to_owned()), ("id".into(), id.to_owned()), ("sure".into(), "yes".into())]
    };
    let mut answers = Vec::new();
    for id in [&id, &missing] {
        let form = act(id);
        let form: Vec<_> = form.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        answers.push(browser.post("/ui/act", &form).await);
    }
    assert_eq!(answers[0].leads_to(), "/ui/?done=cancel&n=0");
    assert_eq!(answers[0].leads_to(), answers[1].leads_to());
    for path in [
        "/ui/type?name=",
        "/ui/jobs?type=",
        "/ui/jobs?key=k&type=",
        "/ui/jobs?sort=attempts&type=",
        "/ui/statistics?type=",
        "/ui/workers?type=",
        "/ui/confirm?do=discard&type=",
    ] {
        let (foreign, none) =
            (browser.get(&format!("{path}secret")).await, browser.get(&format!("{path}missing")).await);
        assert_eq!(foreign.status, 403, "{path}");
        same(&foreign, &none, "secret", "missing");
    }
    guarded.admin.enqueue("mail.send").await;
    super::views::until_shown(&browser, "/ui/types", "mail.send").await;
    for path in ["/ui/", "/ui/types", "/ui/jobs", "/ui/jobs?type=mail.send", "/ui/statistics", "/ui/workers"] {
        browser.get(path).await.has_no(&["secret"]);
    }
}

#[tokio::test]
async fn payload_and_result_are_hidden_without_the_scope_payload() {
    let guarded = Guarded::start().await;
    let id = guarded.admin.enqueue(new_job("t", "the-secret-payload")).await;
    let mut worker = guarded.admin.worker("t").window(1).await;
    let job = worker.next().await;
    worker.ack(&job).result("the-secret-result").await;
    guarded.admin.until_state(id, JobState::Succeeded).await;
    let path = format!("/ui/job?id={id}");
    let reader = Browser::logged_in(&guarded.broker, &guarded.token("ann", &["read:*"]).await).await;
    let page = reader.get(&path).await.has(&["You may not see payloads and results of this type"]);
    page.has_no(&["the-secret", "7468652d736563726574"]);
    let other = Browser::logged_in(&guarded.broker, &guarded.token("bob", &["read:*", "payload:t"]).await).await;
    other.get(&path).await.has(&["the-secret-payload", "the-secret-result"]);
}

#[tokio::test]
async fn without_the_right_to_operate_nothing_is_offered_and_nothing_is_done() {
    let guarded = Guarded::start().await;
    let id = guarded.admin.enqueue("t").delay(HOUR).await;
    let token = guarded.token("ann", &["read:*", "operate:other"]).await;
    let mut browser = Browser::logged_in(&guarded.broker, &token).await;
    for path in [format!("/ui/job?id={id}"), "/ui/type?name=t".into(), "/ui/jobs?type=t".into()] {
        browser.get(&path).await.has(&["t"]).has_no(&["Cancel…", "Pause…", "type=\"checkbox\"", "Set priority"]);
    }
    let done = browser.post("/ui/act", &[("do", "cancel"), ("id", &id.to_string()), ("sure", "yes")]).await;
    assert_eq!(done.leads_to(), "/ui/?done=cancel&n=0");
    for form in [&[("do", "cancel"), ("type", "t")][..], &[("do", "pause-type"), ("type", "t")]] {
        let form: Vec<_> = form.iter().copied().chain([("sure", "yes")]).collect();
        assert_eq!(browser.post("/ui/act", &form).await.status, 403);
    }
    assert_eq!(guarded.admin.state(id).await, JobState::Scheduled);
}

#[tokio::test]
async fn a_token_that_may_read_nothing_gets_no_view() {
    let guarded = Guarded::start().await;
    let browser = Browser::logged_in(&guarded.broker, &guarded.token("worker", &["work:*"]).await).await;
    for path in ["/ui/", "/ui/types", "/ui/type?name=t", "/ui/jobs?type=t", "/ui/job?id=1"] {
        assert_eq!(browser.get(path).await.status, 403, "{path}");
    }
}
