//! Tests the settings of a task type on the operator page: the values in effect, and changes with a preview.

use howdah_proto::v1::{HistoryMode, ListTaskTypesRequest, TaskTypeSettings};

use super::client::{Browser, Page, question};
use crate::{access::fixture::Guarded, support::*};

/// Asserts that the page's table of settings has this row: label, value in effect, source.
fn assert_row(page: &Page, label: &str, value: &str, source: &str) {
    let row = page.body.split("<tr").find(|row| row.contains(&format!(">{label}</th>"))).expect(label);
    let cells = format!("class=\"long\">{value}</td><td data-name=\"From\">{source}</td>");
    assert!(row.contains(&cells), "{cells} is not in {row}");
}

/// Current settings of the type `t`.
async fn settings(broker: &TestBroker) -> TaskTypeSettings {
    let request = ListTaskTypesRequest { task_type: "t".into(), ..Default::default() };
    let answer =
        with_timeout("listed", broker.task_types().list_task_types(request)).await.expect("the type").into_inner();
    answer.task_types.into_iter().next().and_then(|view| view.settings).expect("settings")
}

#[tokio::test]
async fn a_type_is_shown_with_the_values_in_effect_of_all_settings_and_their_sources() {
    let broker = TestBroker::start_with(|config| {
        config.max_attempts = 12;
        config.history_days = 9;
    })
    .await;
    broker.set("t", TaskTypeSettings { max_running: 1_000, ..Default::default() }).await;
    let page = Browser::at(&broker).get("/ui/type?name=t").await.has(&["<h2>Settings</h2>"]);
    assert_row(&page, "Concurrent jobs", "1,000", "task type");
    assert_row(&page, "Attempts", "12", "broker setting");
    assert_row(&page, "Days of history", "9", "broker setting");
    assert_row(&page, "Largest payload, in bytes", "1.0 MiB", "cluster setting");
    assert_row(&page, "Timeout of an attempt", "none", "built in");
    assert_row(&page, "History keeps", "all jobs", "built in");
    assert_eq!(page.body.matches("<tr").count(), 1 + 27, "a heading, and all settings");
}

#[tokio::test]
async fn settings_are_changed_after_a_preview_of_old_and_new_values_and_the_audit_shows_both() {
    let broker = TestBroker::start().await;
    let old = TaskTypeSettings { max_running: 5, history: HistoryMode::None.into(), ..Default::default() };
    broker.set("t", old.clone()).await;
    let mut browser = Browser::at(&broker);
    // A browser sends every field of the form.
    let form = [
        ("do", "set-type"),
        ("type", "t"),
        ("back", "/type?name=t"),
        ("max_running", "7"),
        ("timeout", "1m 30s"),
        ("history", ""),
        ("fallback", ""),
        ("retry_kind", ""),
        ("rate_burst", ""),
    ];
    let preview = question(&browser, &form).await.has(&[
        "Change settings of t?",
        "<dt>Concurrent jobs</dt><dd>5 → 7</dd>",
        "<dt>Timeout of an attempt</dt><dd>none (built in) → 1m 30s</dd>",
        "<dt>History keeps</dt><dd>no succeeded jobs → all jobs (built in)</dd>",
        "UpdateTaskType",
    ]);
    preview.clone().has_no(&["Fallback", "name=\"fallback\"", "name=\"retry_kind\""]);
    assert_eq!(settings(&broker).await, old, "a preview changes nothing");
    // A setting that another operator changes after the preview stays as it is.
    broker.set("t", TaskTypeSettings { max_backlog: 99, paused: true, ..old }).await;
    let done = browser.confirm(&preview, "more workers").await;
    assert_eq!(done.leads_to(), "/ui/type?name=t&done=set-type&n=1");
    let page = browser.get(done.leads_to()).await.has(&["Done: changed."]);
    assert_row(&page, "Concurrent jobs", "7", "task type");
    let new = settings(&broker).await;
    assert_eq!((new.max_running, new.history, new.max_backlog, new.paused), (7, 0, 99, true));
    assert_eq!((new.timeout, new.retry_policy), (Some(wire(secs(90))), None));
    let link = "/ui/audit?method=UpdateTaskType";
    assert!(page.body.contains(&format!("href=\"{link}\"")), "{page:?}");
    browser.get(link).await.has(&["max_running: 5 -&#62; 7", "more workers"]);
}

#[tokio::test]
async fn a_preview_refuses_invalid_settings_and_has_no_button_without_a_change() {
    let broker = TestBroker::start().await;
    broker.set("t", TaskTypeSettings { max_running: 5, ..Default::default() }).await;
    let browser = Browser::at(&broker);
    for (name, value, problem) in [
        ("max_attempts", "5000", "settings.max_attempts"),
        ("max_attempts", "many", "max_attempts is not a number"),
        ("rate", "10", "settings.rate.burst is 0"),
        ("timeout", "soon", "timeout is not a duration"),
        ("fallback", "t", "settings.fallback"),
    ] {
        let page = question(&browser, &[("do", "set-type"), ("type", "t"), (name, value)]).await;
        assert_eq!(page.status, 400, "{name}={value}");
        assert!(page.body.contains(problem), "{problem} is not in {}", page.body);
    }
    let same = question(&browser, &[("do", "set-type"), ("type", "t"), ("max_running", "5")]).await;
    same.has(&["t has these settings", "Go back"]).has_no(&["name=\"sure\""]);
    assert_eq!(question(&browser, &[("do", "set-type"), ("type", "none"), ("max_running", "5")]).await.status, 404);
}

#[tokio::test]
async fn a_reader_sees_the_settings_and_cannot_change_them() {
    let guarded = Guarded::start().await;
    guarded.admin.set("t", TaskTypeSettings { max_running: 5, ..Default::default() }).await;
    let mut browser = Browser::logged_in(&guarded.broker, &guarded.token("ann", &["read:*"]).await).await;
    let page = browser.get("/ui/type?name=t").await.has_no(&["name=\"max_running\"", "Preview the change"]);
    assert_row(&page, "Concurrent jobs", "5", "task type");
    let form = [("do", "set-type"), ("type", "t"), ("max_running", "7"), ("sure", "yes")];
    assert_eq!(browser.post("/ui/act", &form).await.status, 403);
}
