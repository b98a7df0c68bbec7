//! Tests limits on the operator page: the types with limits, and the limit keys of a type.

use howdah_proto::v1::{JobState, Rate, TaskTypeSettings};

use super::{
    client::{Browser, question},
    views::until_shown,
};
use crate::{access::fixture::Guarded, support::*};

#[tokio::test]
async fn types_with_limits_and_their_waiting_limit_keys_are_listed() {
    let broker = TestBroker::start().await;
    let browser = Browser::at(&broker);
    browser.get("/ui/limits").await.has(&["No task type has a limit", "howdah type set --help"]);
    let key_rate = Some(Rate { per_second: 5.0, burst: 1 });
    broker.set("t", TaskTypeSettings { max_running: 1_000, key_max_running: 1, key_rate, ..Default::default() }).await;
    broker.enqueue("free").await;
    until_shown(&browser, "/ui/limits", "/ui/limits?type=t").await;
    let shown = browser.get("/ui/limits").await;
    shown.has(&["1,000 running, 1 running per key, 5 starts per second per key"]).has_no(&["free"]);
    browser
        .get("/ui/limits?type=t")
        .await
        .has(&["No limit key of this type has waiting jobs, is paused or has its own limit"]);
    broker.enqueue_all((0..3).map(|_| new_job("t", "").limit_key("ann <1>"))).await;
    // Wait until a broker has checked the limit and made a waiting job of the limit key ready.
    until_shown(
        &browser,
        "/ui/limits?type=t",
        "class=\"n\">2</td><td data-name=\"Ready or leased\" class=\"n\">1</td>",
    )
    .await;
    browser.get("/ui/limits?type=t").await.has(&["ann &#60;1&#62;", "Pause…"]).has_no(&["ann <1>"]);
    broker.limit_key("t", "ann <1>", 2_000).await;
    browser.get("/ui/limits?type=t").await.has(&["data-name=\"Own limit\" class=\"n\">2,000</td>"]);
    assert_eq!(browser.get("/ui/limits?type=a%20b").await.status, 400);
    assert_eq!(browser.get("/ui/limits?type=t&page=x").await.status, 400);
}

#[tokio::test]
async fn a_limit_key_is_paused_and_resumed_from_the_list() {
    let broker = TestBroker::start().await;
    let mut browser = Browser::at(&broker);
    broker.set("t", TaskTypeSettings { key_max_running: 1, ..Default::default() }).await;
    broker.enqueue_all((0..2).map(|_| new_job("t", "").limit_key("ann & co"))).await;
    browser.get("/ui/limits?type=t").await.has(&["value=\"ann &#38; co\"", "Pause…"]);
    let form = |action| [("do", action), ("type", "t"), ("key", "ann & co"), ("back", "/limits?type=t")];
    let confirmation =
        question(&browser, &form("pause-key")).await.has(&["Pause the limit key", "of t?", "PauseLimitKey"]);
    let done = browser.confirm(&confirmation, "").await;
    assert_eq!(done.leads_to(), "/ui/limits?type=t&done=pause-key&n=1");
    browser.get(done.leads_to()).await.has(&["Done: paused.", "paused</span>", "Resume…"]);
    let id = broker.enqueue(new_job("t", "").limit_key("ann & co")).await;
    broker.until_state(id, JobState::Waiting).await;
    let confirmation = question(&browser, &form("resume-key")).await.has(&["Resume the limit key", "ResumeLimitKey"]);
    let done = browser.confirm(&confirmation, "").await;
    browser.get(done.leads_to()).await.has(&["Done: resumed.", "Pause…"]).has_no(&["paused</span>"]);
    let mut worker = broker.worker("t").window(1).await;
    for _ in 0..3 {
        let job = worker.next().await;
        worker.ack(&job).await;
    }
}

#[tokio::test]
async fn limit_keys_of_a_foreign_type_are_not_shown_and_without_the_right_none_is_paused() {
    let guarded = Guarded::start().await;
    for name in ["secret", "mail.send"] {
        guarded.admin.set(name, TaskTypeSettings { key_max_running: 1, ..Default::default() }).await;
        guarded.admin.enqueue_all((0..2).map(|_| new_job(name, "").limit_key("ann"))).await;
    }
    let token = guarded.token("reader", &["read:mail.*", "operate:other"]).await;
    let mut browser = Browser::logged_in(&guarded.broker, &token).await;
    until_shown(&browser, "/ui/limits", "mail.send").await;
    browser.get("/ui/limits").await.has_no(&["secret"]);
    browser.get("/ui/limits?type=mail.send").await.has(&["ann"]).has_no(&["Pause…"]);
    assert_eq!(browser.get("/ui/limits?type=secret").await.status, 403);
    for action in ["pause-key", "resume-key"] {
        for task_type in ["mail.send", "secret"] {
            let form = [("do", action), ("type", task_type), ("key", "ann"), ("sure", "yes")];
            assert_eq!(browser.post("/ui/act", &form).await.status, 403, "{action} {task_type}");
        }
    }
}
