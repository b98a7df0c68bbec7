//! Tests lists of jobs on the operator page, bulk operations on a whole list, and the form of a new job.

use howdah_proto::v1::JobState;

use super::{
    actions::dead_with,
    client::{Browser, Page},
};
use crate::{access::fixture::Guarded, support::*};

/// Ids of the listed jobs.
fn listed(page: &Page) -> Vec<i64> {
    let links = page.body.split("<th scope=\"row\"><a href=\"/ui/job?id=").skip(1);
    links.map(|rest| rest.split('"').next().unwrap().parse().unwrap()).collect()
}

#[tokio::test]
async fn dead_jobs_are_listed_with_the_newest_failure_first_of_one_type_and_of_all() {
    let broker = TestBroker::start().await;
    let mail = dead_with(&broker, "mail.send", &["no host 1", "too large", "no host 2"]).await;
    let other = dead_with(&broker, "other", &["no host 3"]).await[0];
    // The job that was created first fails last.
    broker.sql(&format!("UPDATE howdah.dead SET died = now() + interval '1 minute' WHERE id = {}", mail[0])).await;
    let browser = Browser::at(&broker);
    let newest = browser.get("/ui/jobs?type=mail.send&state=dead").await.has(&["The newest failure first."]);
    assert_eq!(listed(&newest), [mail[0], mail[2], mail[1]]);
    let by_id = browser.get("/ui/jobs?type=mail.send&state=dead&sort=run").await;
    assert_eq!(listed(&by_id), mail);
    let group = browser.get("/ui/jobs?type=mail.send&state=dead&group=no+host+%23").await.has(&["With the error"]);
    assert_eq!(listed(&group), [mail[0], mail[2]]);
    let all = browser.get("/ui/jobs?state=dead").await.has(&[">other</a></td>", ">mail.send</a></td>", "too large"]);
    assert_eq!(listed(&all), [mail[0], other, mail[2], mail[1]]);
    browser
        .get("/ui/jobs?state=ready&sort=failure")
        .await
        .has(&["Only dead and scheduled jobs are ordered by failure"]);
}

#[tokio::test]
async fn the_jobs_of_all_types_are_listed_page_by_page() {
    let broker = TestBroker::start().await;
    let browser = Browser::at(&broker);
    browser.get("/ui/jobs").await.has(&["There is no such job"]);
    let ids = broker.enqueue_all((0..70).map(|n| new_job(if n % 2 == 0 { "even" } else { "odd" }, ""))).await;
    let (mut seen, mut path) = (Vec::new(), "/ui/jobs?state=ready".to_owned());
    loop {
        let page = browser.get(&path).await.has(&["<th scope=\"col\">Type</th>"]);
        seen.extend(listed(&page));
        let Some(next) = page.next_page() else { break };
        path = next;
    }
    assert_eq!(seen, ids);
    for (path, message) in [
        ("/ui/jobs?key=k", "a search covers one type"),
        ("/ui/jobs?sort=attempts", "the order by attempts is of one type"),
        ("/ui/jobs?state=dead&group=x", "an error group is of one type"),
    ] {
        browser.get(path).await.has(&["Choose a task type, too", message]);
    }
}

#[tokio::test]
async fn a_reader_of_some_types_is_asked_for_a_type_instead_of_getting_the_jobs_of_all() {
    let guarded = Guarded::start().await;
    guarded.admin.enqueue_all(["secret", "mail.send"]).await;
    let token = guarded.token("ann", &["read:mail.*", "enqueue:mail.*"]).await;
    let browser = Browser::logged_in(&guarded.broker, &token).await;
    browser.get("/ui/jobs").await.has(&["Choose a task type"]).has_no(&["secret", "job?id=", "New job"]);
    browser.get("/ui/jobs?type=mail.send").await.has(&["job?id=", "New job"]).has_no(&["Cancel all"]);
    browser.get("/ui/new-job?type=secret").await.has(&["You may not enqueue jobs of the type secret"]);
    // The form without a type is for users who may enqueue jobs of a type that they see.
    super::views::until_shown(&browser, "/ui/types", "mail.send").await;
    browser.get("/ui/new-job").await.has(&["name=\"payload\""]);
}

#[tokio::test]
async fn all_jobs_of_a_list_are_changed_by_a_bulk_operation_after_its_preview() {
    let broker = TestBroker::start().await;
    let ids = dead_with(&broker, "t", &["no host 1", "no host 2", "too large"]).await;
    let mut browser = Browser::at(&broker);
    let list = browser.get("/ui/jobs?type=t&state=dead&group=no+host+%23").await.has(&["Retry all…", "Discard all…"]);
    let list = list.has_no(&["Cancel all…"]);
    // Submits the second form of the list, with one of its buttons.
    let form = list.body.split("<form class=\"actions\"").nth(1).expect("a form of the whole list");
    let fields = Page { body: form.to_owned(), ..list.clone() }.hidden();
    let pairs: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let of_list = pairs.iter().take_while(|(name, _)| *name != "back").copied().chain([("do", "bulk-retry")]);
    let preview = super::client::question(&browser, &of_list.collect::<Vec<_>>()).await;
    let preview = preview.has(&["Bulk retry 2 jobs of t?", "<dd>no host #</dd>"]);
    browser.confirm(&preview, "").await.leads_to();
    for (id, state) in ids.into_iter().zip([JobState::Ready, JobState::Ready, JobState::Dead]) {
        broker.until_state(id, state).await;
    }
    browser.get("/ui/jobs?type=t&state=ready").await.has(&["Cancel all…"]).has_no(&["Retry all…", "Discard all…"]);
    for path in [
        "/ui/jobs?state=ready",
        "/ui/jobs?type=t&tag=x",
        "/ui/jobs?type=t&sort=attempts",
        "/ui/jobs?type=t&sort=failure",
    ] {
        browser.get(path).await.has(&["<h1>Jobs"]).has_no(&["Cancel all…"]);
    }
}

#[tokio::test]
async fn a_job_is_enqueued_once_with_the_options_of_the_form_and_shown() {
    let broker = TestBroker::start().await;
    let mut browser = Browser::at(&broker);
    let page = browser.get("/ui/new-job?type=mail.send").await.has(&["name=\"payload\"", "value=\"mail.send\""]);
    let (_, once) = page.hidden().into_iter().find(|(name, _)| name == "once").expect("a request key");
    let form = [
        ("once", once.as_str()),
        ("type", "mail.send"),
        ("payload", r#"{"to": "ann"}"#),
        ("headers", "lang: en"),
        ("priority", "-3"),
        ("max_attempts", "2"),
        ("delay", "1h"),
        ("limit_key", "north"),
        ("limit_max", "4"),
        ("key", "order 7"),
        ("tags", "red, blue"),
        ("timeout", ""),
    ];
    let stored = browser.post("/ui/enqueue", &form).await;
    let path = stored.leads_to().to_owned();
    browser.get(&path).await.has(&["order 7", "lang", "red"]);
    let id: i64 = path.strip_prefix("/ui/job?id=").expect("a job").parse().expect("an id");
    let job = broker.job(id).await;
    assert_eq!((job.task_type.as_str(), &job.payload[..]), ("mail.send", &br#"{"to": "ann"}"#[..]));
    assert_eq!((job.priority, job.max_attempts, job.state()), (-3, 2, JobState::Scheduled));
    assert_eq!((job.limit_key.as_str(), job.limit_max), ("north", 4));
    assert_eq!(browser.post("/ui/enqueue", &form).await.leads_to(), path, "a form that is sent twice");
    let held = browser.post("/ui/enqueue", &form[1..]).await;
    assert_eq!(held.status, 400, "{held:?}");
    assert!(held.body.contains(&format!("no job was created, because job {id} holds the key")), "{held:?}");
    for (task_type, name, value) in
        [("t", "priority", "5000"), ("a b", "priority", "1"), ("t", "headers", "lang"), ("t", "delay", "soon")]
    {
        let refused = browser.post("/ui/enqueue", &[("type", task_type), (name, value)]).await;
        assert_eq!(refused.status, 400, "{name}={value}");
    }
    assert_eq!(broker.count("SELECT count(*) FROM howdah.job").await, 1);
}

#[tokio::test]
async fn a_form_of_a_new_job_is_refused_from_another_site_without_the_right_and_by_a_read_only_page() {
    let guarded = Guarded::start().await;
    let token = guarded.token("ann", &["read:*", "enqueue:mail.*"]).await;
    let mut browser = Browser::logged_in(&guarded.broker, &token).await;
    let form = [("type", "mail.send"), ("payload", "p")];
    let elsewhere = [("Origin", "http://evil.example"), ("Sec-Fetch-Site", "cross-site")];
    assert_eq!(browser.post_from("/ui/enqueue", &form, &elsewhere).await.status, 403);
    assert_eq!(browser.post("/ui/enqueue", &[("type", "secret")]).await.status, 403);
    assert_eq!(guarded.broker.count("SELECT count(*) FROM howdah.job").await, 0);
    let reading = guarded.broker.another_with(|config| config.page = howdah_core::config::PageMode::ReadOnly).await;
    let mut reader = browser.moved_to(&reading);
    assert_eq!(reader.post("/ui/enqueue", &form).await.status, 403);
    browser.post("/ui/enqueue", &form).await.leads_to();
    assert_eq!(guarded.broker.count("SELECT count(*) FROM howdah.job").await, 1);
}
