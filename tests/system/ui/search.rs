//! Tests that the operator page finds jobs by their contents, and reports jobs that do not exist.

use super::{
    client::{Browser, question},
    views::until_shown,
};
use crate::{access::fixture::Guarded, support::*};

fn row(id: i64) -> String {
    format!("<a href=\"/ui/job?id={id}\">")
}

#[tokio::test]
async fn jobs_are_found_by_their_key_also_when_they_are_dead() {
    let broker = TestBroker::start().await;
    let browser = Browser::at(&broker);
    let dead = broker.enqueue("t").key("order 1").max_attempts(1).await;
    let mut worker = broker.worker("t").window(1).await;
    let job = worker.next().await;
    worker.nack(&job, "no route").await;
    worker.window("t", 0).await;
    let holder = broker.enqueue("t").key("order 1").await;
    let other = broker.enqueue("t").key("order 2").await;
    let page = browser.get("/ui/jobs?type=t&key=order+1").await.has(&["order 1", &row(dead), &row(holder)]);
    let page = page.has_no(&[&row(other), "order 2"]);
    assert!(page.body.find(&row(holder)) < page.body.find(&row(dead)), "the newest first");
    browser.get("/ui/jobs?type=t&key=order+1&state=dead").await.has(&[&row(dead)]).has_no(&[&row(holder)]);
    browser.get("/ui/jobs?type=t&key=order").await.has(&["There is no such job"]);
}

#[tokio::test]
async fn jobs_are_found_by_a_header_by_a_text_and_by_a_path_in_their_payload() {
    let broker = TestBroker::start().await;
    let browser = Browser::at(&broker);
    let north = broker.enqueue(new_job("t", r#"{"order":{"id":17},"to":"ann"}"#)).header("tenant", "north").await;
    let south = broker.enqueue(new_job("t", r#"{"order":{"id":18},"to":"bob"}"#)).header("tenant", "south=2").await;
    for (query, found, other) in [
        ("header=tenant%3Dnorth", north, south),
        ("header=tenant%3Dsouth%3D2", south, north),
        ("text=bob", south, north),
        ("path=%24.order.id+%3D%3D+17&since=7d", north, south),
        ("text=ann&since=2026-01-01T00:00:00Z", north, south),
    ] {
        let page = browser.get(&format!("/ui/jobs?type=t&state=ready&{query}")).await;
        page.has(&[&row(found), "Scanned 2 jobs of about "]).has_no(&[&row(other)]);
        browser.get(&format!("/ui/jobs?type=t&state=dead&{query}")).await.has(&["There is no such job"]);
        browser.get(&format!("/ui/jobs?type=t&{query}")).await.has(&["Choose a state, too"]).has_no(&[&row(found)]);
    }
    for wrong in ["header=tenant", "text=a&path=b", "key=a&text=b", "path=%24%24", "text=a&since=yesterday"] {
        assert_eq!(browser.get(&format!("/ui/jobs?type=t&state=ready&{wrong}")).await.status, 400, "{wrong}");
    }
}

#[tokio::test]
async fn jobs_are_found_by_conditions_which_must_all_hold() {
    let broker = TestBroker::start().await;
    let browser = Browser::at(&broker);
    let north = broker.enqueue(new_job("t", "").key("k").fair_key("north").tags(&["red"])).await;
    let south = broker.enqueue(new_job("t", "").fair_key("south").tags(&["red"])).await;
    for query in [
        "state=ready&fair_key=north",
        "tag=red&fair_key=north",
        "key=k&newer_than=1h",
        "state=ready&header=&fair_key=north&attempts_at_most=0",
    ] {
        browser.get(&format!("/ui/jobs?type=t&{query}")).await.has(&[&row(north)]).has_no(&[&row(south)]);
    }
    for none in ["tag=red&older_than=1h", "tag=red&attempts_at_least=1", "worker=00000000000000aa", "key=k&tag=blue"] {
        browser.get(&format!("/ui/jobs?type=t&{none}")).await.has(&["There is no such job"]);
    }
    browser.get("/ui/jobs?type=t&fair_key=north").await.has(&["Choose a state, too"]);
    for wrong in ["older_than=soon", "worker=x", "tag=red&attempts_at_most=-1"] {
        assert_eq!(browser.get(&format!("/ui/jobs?type=t&{wrong}")).await.status, 400, "{wrong}");
    }
}

#[tokio::test]
async fn a_search_goes_on_where_the_page_before_has_ended() {
    let broker = TestBroker::start().await;
    let browser = Browser::at(&broker);
    let ids = broker.enqueue_all((0..120).map(|_| new_job("t", "ann").header("tenant", "north"))).await;
    let mut path = "/ui/jobs?type=t&state=ready&header=tenant%3Dnorth&since=7d".to_owned();
    let mut seen = Vec::new();
    loop {
        let page = browser.get(&path).await.has(&["Scanned "]);
        let links = page.body.split("<th scope=\"row\"><a href=\"/ui/job?id=").skip(1);
        seen.extend(links.map(|rest| rest.split('"').next().unwrap().parse::<i64>().unwrap()));
        let Some(next) = page.next_page() else { break };
        assert!(next.contains("since=20"), "the next page must keep the time range: {next}");
        path = next;
    }
    assert_eq!(seen, ids);
}

#[tokio::test]
async fn payloads_are_searched_only_by_those_who_may_see_them() {
    let guarded = Guarded::start().await;
    let id = guarded.admin.enqueue(new_job("t", "ann")).header("tenant", "north").await;
    let browser = Browser::logged_in(&guarded.broker, &guarded.token("ann", &["read:*"]).await).await;
    let page = browser.get("/ui/jobs?type=t&state=ready&header=tenant%3Dnorth").await.has(&[&row(id)]);
    page.has_no(&["name=\"text\"", "name=\"path\""]);
    for query in ["text=ann", "path=%24"] {
        assert_eq!(browser.get(&format!("/ui/jobs?type=t&state=ready&{query}")).await.status, 403, "{query}");
    }
}

#[tokio::test]
async fn a_text_that_is_no_type_and_no_id_leads_to_the_search_by_key_and_by_tag() {
    let broker = TestBroker::start().await;
    let browser = Browser::at(&broker);
    let id = broker.enqueue("t").key("cust:42").await;
    let found = browser.get("/ui/find?q=cust:42").await;
    let hint = browser.get(found.leads_to()).await.has(&["No task type fits", "/ui/jobs?tag=cust%3A42"]);
    hint.has(&["/ui/jobs?key=cust%3A42"]);
    browser.get("/ui/jobs?key=cust:42").await.has(&["Choose a task type", "name=\"key\" value=\"cust:42\""]);
    browser.get("/ui/jobs?key=cust:42&type=t").await.has(&[&row(id)]);
}

#[tokio::test]
async fn a_mistyped_task_type_is_told_from_one_without_jobs() {
    let broker = TestBroker::start().await;
    let browser = Browser::at(&broker);
    broker.set("empty", howdah_proto::v1::TaskTypeSettings { max_running: 1, ..Default::default() }).await;
    until_shown(&browser, "/ui/types", "name=empty").await;
    for view in ["jobs", "jobs?state=dead", "failures", "statistics", "workers", "limits"] {
        let mark = if view.contains('?') { '&' } else { '?' };
        let unknown = "There is no task type nope.";
        browser.get(&format!("/ui/{view}{mark}type=nope")).await.has(&[unknown]);
        browser.get(&format!("/ui/{view}{mark}type=empty")).await.has_no(&["There is no task type"]);
    }
    for action in ["pause-type", "resume-type", "retry", "discard", "cancel", "bulk-retry", "bulk-cancel"] {
        let confirmation = question(&browser, &[("do", action), ("type", "nope")]).await;
        assert_eq!(confirmation.status, 404, "{action}");
        assert!(confirmation.body.contains("there is no task type nope"), "{action}: {confirmation:?}");
    }
    let confirmation = question(&browser, &[("do", "pause-key"), ("type", "nope"), ("key", "k")]).await;
    assert_eq!(confirmation.status, 404);
}

#[tokio::test]
async fn an_address_without_a_view_is_answered_with_a_page_that_says_so() {
    let broker = TestBroker::start().await;
    let browser = Browser::at(&broker);
    for path in ["/ui/nothing", "/ui/search", "/ui/job/1", "/ui/job/", "/ui/a/b?c=d"] {
        let page = browser.get(path).await;
        assert_eq!(page.status, 404, "{path}");
        assert!(page.body.contains("no view at this address") && page.body.contains("To the overview"), "{page:?}");
        assert!(page.header("content-security-policy").starts_with("default-src 'none'"), "{page:?}");
    }
    let guarded = Guarded::start().await;
    let stranger = Browser::at(&guarded.broker);
    assert_eq!(stranger.get("/ui/nothing").await.leads_to(), "/ui/login?next=%2Fnothing");
}
