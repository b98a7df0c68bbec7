//! Tests that a read-only operator page shows everything, offers no actions and refuses all changes.

use howdah_core::config::PageMode;
use howdah_proto::v1::{self, JobState, TaskTypeSettings, schedule::Plan};

use super::{actions::dead_with, client::Browser};
use crate::support::*;

/// Every action of the page, on the data of `everything`. A unit test in server/src/page checks that this list is complete.
const ACTIONS: [&[(&str, &str)]; 24] = [
    &[("do", "retry"), ("type", "t")],
    &[("do", "rerun"), ("id", "1")],
    &[("do", "cancel"), ("type", "t")],
    &[("do", "discard"), ("type", "t")],
    &[("do", "release"), ("id", "1")],
    &[("do", "reprioritize"), ("type", "t"), ("priority", "1")],
    &[("do", "pause-type"), ("type", "t")],
    &[("do", "resume-type"), ("type", "t")],
    &[("do", "set-type"), ("type", "t"), ("max_attempts", "3")],
    &[("do", "pause-key"), ("type", "t"), ("key", "k")],
    &[("do", "resume-key"), ("type", "t"), ("key", "k")],
    &[("do", "run-schedule"), ("name", "hourly")],
    &[("do", "pause-schedule"), ("name", "hourly")],
    &[("do", "resume-schedule"), ("name", "hourly")],
    &[("do", "bulk-retry"), ("type", "t")],
    &[("do", "bulk-cancel"), ("type", "t")],
    &[("do", "bulk-discard"), ("type", "t")],
    &[("do", "bulk-reprioritize"), ("type", "t"), ("priority", "1")],
    &[("do", "bulk-move"), ("type", "t"), ("to", "u")],
    &[("do", "bulk-set"), ("type", "t"), ("attempts", "9")],
    &[("do", "pause-bulk"), ("bulk", "1")],
    &[("do", "resume-bulk"), ("bulk", "1")],
    &[("do", "cancel-bulk"), ("bulk", "1")],
    &[("do", "undo-bulk"), ("bulk", "1")],
];

/// Creates data for every view of the page. Returns a dead job.
async fn everything(broker: &TestBroker) -> i64 {
    broker.set("t", TaskTypeSettings { key_max_running: 1, ..Default::default() }).await;
    let dead = dead_with(broker, "t", &["no route to host"]).await[0];
    broker.enqueue_all((0..600).map(|n| new_job("t", "").tags(&["red"]).limit_key(&format!("k{}", n % 2)))).await;
    let schedule = Some(v1::Schedule {
        name: "hourly".into(),
        template: Some(new_job("t", "")),
        plan: Some(Plan::Period(wire(HOUR))),
        start_time: Some(far().into()),
        ..Default::default()
    });
    with_timeout("made", broker.schedules().create_schedule(v1::CreateScheduleRequest { schedule }))
        .await
        .expect("a schedule");
    super::bulks::slow(broker, "t").await;
    dead
}

#[tokio::test]
async fn a_page_that_is_read_only_shows_every_view_and_offers_nothing() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let id = everything(&broker).await;
    let reading = broker.another_with(|config| config.page = PageMode::ReadOnly).await;
    let browser = Browser::at(&reading);
    super::views::until_shown(&browser, "/ui/types", "name=t").await;
    for (path, text) in [
        ("/ui/", "Overview"),
        ("/ui/types", "name=t"),
        ("/ui/type?name=t", "Concurrent jobs per limit key"),
        ("/ui/jobs?type=t", "job?id="),
        ("/ui/jobs?type=t&state=dead", "no route to host"),
        ("/ui/jobs?type=t&tag=red", "The newest first"),
        ("/ui/jobs?type=t&sort=attempts", "no route to host"),
        ("/ui/jobs?type=t&key=none", "The newest first"),
        (&*format!("/ui/job?id={id}"), "no route to host"),
        ("/ui/jobs?state=dead", "no route to host"),
        ("/ui/new-job?type=t", "You may not enqueue jobs"),
        ("/ui/failures", "no route to host"),
        ("/ui/schedules", "hourly"),
        ("/ui/schedule?name=hourly", "Every 1h"),
        ("/ui/statistics", "Statistics"),
        ("/ui/workers", "Workers"),
        ("/ui/limits?type=t", ">k1</th>"),
        ("/ui/bulks", "cancel jobs, at most 1 a second"),
        ("/ui/storage", "Partitions of history"),
        ("/ui/audit", "StartBulk"),
        ("/ui/tokens", "No token is stored"),
    ] {
        let page = browser.get(path).await.has(&["This page changes nothing", text]);
        assert!(!page.body.contains("…</button>") && !page.body.contains("type=\"checkbox\" name=\"id\""), "{path}");
    }
    browser.get("/ui/bulks").await.has_no(&["Start a bulk operation"]);
    browser.get(&format!("/ui/job?id={id}")).await.has_no(&["Set priority"]);
}

#[tokio::test]
async fn a_page_that_is_read_only_refuses_every_change_itself() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let id = everything(&broker).await;
    let reading = broker.another_with(|config| config.page = PageMode::ReadOnly).await;
    let mut browser = Browser::at(&reading);
    // Leaves out audit entries of earlier bulk operations that still run.
    let audited = "SELECT count(*) FROM howdah.audit WHERE reason NOT LIKE 'bulk operation %'";
    let before = broker.count(audited).await;
    for action in ACTIONS {
        let form: Vec<_> = action.iter().copied().chain([("sure", "yes")]).collect();
        let page = browser.post("/ui/act", &form).await;
        assert_eq!(page.status, 403, "{action:?}: {page:?}");
        assert!(page.body.contains("the page is read-only"), "{action:?}: {page:?}");
    }
    let page = browser.post("/ui/schedule/edit", &[("of", "hourly"), ("type", "t"), ("every", "2h")]).await;
    assert!(page.status == 403 && page.body.contains("the page is read-only"), "{page:?}");
    assert_eq!(browser.get("/ui/schedule/edit?name=hourly").await.status, 403);
    assert_eq!(broker.count(audited).await, before, "refused calls are not recorded");
    assert_eq!(broker.state(id).await, JobState::Dead);
    assert_eq!(broker.retry(&[id]).await, [id], "calls by gRPC go on");
}
