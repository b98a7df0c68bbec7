//! Tests bulk operations on the operator page: preview, progress and control.

use howdah_proto::v1::{self, BulkOperation, BulkSpec, JobState};

use super::{
    actions::dead_with,
    client::{Browser, question},
};
use crate::{access::fixture::Guarded, support::*};

/// Starts a bulk operation that changes one job per second, so that it stays active during the test.
pub async fn slow(service: &Service, task_type: &str) -> i64 {
    let (operation, task_type) = (BulkOperation::Cancel as i32, task_type.into());
    let spec = Some(BulkSpec { operation, task_type, max_jobs_per_second: 1, ..Default::default() });
    let request = v1::StartBulkRequest { spec, ..Default::default() };
    service.bulks().start_bulk(request).await.expect("a start").into_inner().bulk.expect("one").id
}

/// Waits until the bulk operation is in this state, with a SQL query.
async fn until_state(broker: &TestBroker, state: &str) {
    broker
        .until(
            "the state of the bulk operation",
            &format!("SELECT count(*) = 1 FROM howdah.bulk WHERE state = '{state}'"),
        )
        .await;
}

#[tokio::test]
async fn dead_jobs_with_an_error_are_retried_in_the_background_after_a_preview() {
    let broker = TestBroker::start().await;
    let ids = dead_with(&broker, "t", &["no host 1", "no host 2", "no host 3", "no host 4", "too large"]).await;
    let mut browser = Browser::at(&broker);
    browser.get("/ui/failures").await.has(&["In the background…", "/ui/bulks?type=t&amp;state=dead&amp;group="]);
    browser.get("/ui/bulks?state=dead&group=no+%3Chost").await.has(&["<option selected>dead</option>", "no &#60;host"]);
    let pairs = [("do", "bulk-retry"), ("type", "t"), ("state", "dead"), ("group", "no host #"), ("back", "/bulks")];
    let confirmation = question(&browser, &pairs).await.has(&[
        "Bulk retry 4 jobs of t?",
        "no host 1",
        "StartBulk",
        "<dt>State</dt><dd>dead</dd>",
        "<dt>Last error</dt><dd>no host #</dd>",
        "<dt>Jobs in a second</dt><dd>no limit, but other work goes first</dd>",
    ]);
    assert_eq!(confirmation.body.matches("<th scope=\"row\">").count(), 3);
    assert_eq!(broker.count("SELECT count(*) FROM howdah.bulk").await, 0, "a confirmation page must change nothing");
    let done = browser.confirm(&confirmation, "host is back").await;
    assert_eq!(done.leads_to(), "/ui/bulks?done=bulk-retry&n=1");
    until_state(&broker, "completed").await;
    browser.get(done.leads_to()).await.has(&[
        "Done: started.",
        "completed",
        "retry dead jobs",
        "no host #",
        "4 of 4",
        "host is back",
    ]);
    for (id, state) in ids.iter().zip([JobState::Ready; 4].into_iter().chain([JobState::Dead])) {
        assert_eq!(broker.state(*id).await, state);
    }
    browser.confirm(&confirmation, "again").await.leads_to();
    assert_eq!(
        broker.count("SELECT count(*) FROM howdah.bulk").await,
        1,
        "a form that is sent twice starts one operation"
    );
}

#[tokio::test]
async fn a_bulk_operation_is_paused_resumed_and_cancelled_from_the_list() {
    let broker = TestBroker::start().await;
    let mut browser = Browser::at(&broker);
    browser.get("/ui/bulks").await.has(&["There is no such bulk operation"]);
    broker.enqueue_all(vec!["t"; 600]).await;
    let id = slow(&broker, "t").await.to_string();
    browser.get("/ui/bulks").await.has(&["running", "of 600", "at most 1 a second", "Pause…", "Cancel…"]);
    for (action, title, message, offered) in [
        ("pause-bulk", "Pause the bulk operation", "Done: paused.", "Resume…"),
        ("resume-bulk", "Resume the bulk operation", "Done: resumed.", "Pause…"),
        ("pause-bulk", "Pause the bulk operation", "Done: paused.", "Resume…"),
        ("cancel-bulk", "Cancel the bulk operation", "Done: cancelled.", "cancelled"),
    ] {
        let confirmation = question(&browser, &[("do", action), ("bulk", &id), ("back", "/bulks")]).await;
        let confirmation = confirmation.has(&[title, "t: cancel jobs, at most 1 a second"]);
        let done = browser.confirm(&confirmation, "").await;
        browser.get(done.leads_to()).await.has(&[message, offered]);
    }
    browser.get("/ui/bulks").await.has_no(&["Pause…", "Resume…", "Cancel…"]);
    browser.get("/ui/bulks?open=yes").await.has(&["There is no such bulk operation"]);
    browser.get("/ui/bulks?type=other").await.has_no(&["of 600"]);
    let form = [("do", "pause-bulk"), ("bulk", &*id), ("sure", "yes")];
    assert_eq!(browser.post("/ui/act", &form).await.status, 400, "the operation has ended");
    assert_eq!(browser.get("/ui/bulks?page=x").await.status, 400);
}

#[tokio::test]
async fn jobs_cancelled_by_a_bulk_operation_are_put_back_from_the_list_after_a_preview() {
    let broker = TestBroker::start().await;
    let mut browser = Browser::at(&broker);
    let ids = broker.enqueue_all(vec!["t"; 3]).await;
    let confirmation = question(&browser, &[("do", "bulk-cancel"), ("type", "t"), ("back", "/bulks")]).await;
    browser.confirm(&confirmation, "").await;
    until_state(&broker, "completed").await;
    browser.get("/ui/bulks").await.has(&["3 of 3", "Undo…"]);
    let confirmation = question(&browser, &[("do", "undo-bulk"), ("bulk", "1"), ("back", "/bulks")]).await.has(&[
        "Bulk undo 3 jobs of bulk operation 1?",
        "another job now holds its key",
        "StartBulk",
        "<dt>What it does</dt><dd>t: cancel jobs</dd>",
    ]);
    assert_eq!(broker.count("SELECT count(*) FROM howdah.bulk").await, 1, "a confirmation page must change nothing");
    let done = browser.confirm(&confirmation, "a mistake").await;
    broker.until("the end", "SELECT count(*) = 2 FROM howdah.bulk WHERE state = 'completed'").await;
    browser.get(done.leads_to()).await.has(&["Done: started.", "undo jobs of bulk operation 1", "a mistake"]);
    for id in ids {
        assert_eq!(broker.state(id).await, JobState::Ready);
    }
    browser.get("/ui/bulks").await.has_no(&["Undo…"]);
    let again = question(&browser, &[("do", "undo-bulk"), ("bulk", "1")]).await;
    again.has(&["Bulk undo: bulk operation 1 has no job to put back"]).has_no(&["name=\"sure\""]);
    for id in ["2", "7", "x"] {
        let status = question(&browser, &[("do", "undo-bulk"), ("bulk", id)]).await.status;
        assert!((400..500).contains(&status), "{id}: {status}");
    }
}

#[tokio::test]
async fn jobs_are_moved_and_get_fields_after_a_preview() {
    let broker = TestBroker::start().await;
    let mut browser = Browser::at(&broker);
    let ids = broker.enqueue_all(vec!["t"; 3]).await;
    browser.get("/ui/bulks").await.has(&["move to another type", "set fields", "Move to type"]);
    let pairs = [("do", "bulk-move"), ("type", "t"), ("to", "<u>"), ("back", "/bulks")];
    assert_eq!(question(&browser, &pairs).await.status, 400);
    let pairs = [("do", "bulk-move"), ("type", "t"), ("to", "u"), ("back", "/bulks")];
    let confirmation = question(&browser, &pairs).await.has(&[
        "Bulk move 3 jobs of t to u?",
        "cannot be undone",
        "There is no task type u yet: it will be created.",
        "Expected duration: less than a second.",
        "<dt>New task type</dt><dd>u</dd>",
        "<dt>State</dt><dd>any state that the operation changes</dd>",
    ]);
    let done = browser.confirm(&confirmation, "a slow host").await;
    until_state(&broker, "completed").await;
    browser.get(done.leads_to()).await.has(&["Done: started.", "move jobs to u", "a slow host"]).has_no(&["Undo…"]);
    super::views::until_shown(&browser, "/ui/types", "name=u").await;
    let pairs =
        [("do", "bulk-set"), ("type", "u"), ("attempts", "9"), ("delay", "2h"), ("add", "x, y"), ("rate", "1000")];
    let confirmation =
        question(&browser, &pairs).await.has(&["Bulk set fields of 3 jobs of u?", ">Bulk set fields</button>"]);
    let confirmation = confirmation.has(&[
        "<dt>Attempts at most</dt><dd>9</dd>",
        "<dt>Start</dt><dd>in 2h</dd>",
        "<dt>Tags that are added</dt><dd>x, y</dd>",
        "<dt>Jobs in a second</dt><dd>at most 1,000</dd>",
    ]);
    browser.confirm(&confirmation, "").await;
    broker.until("the end", "SELECT count(*) = 2 FROM howdah.bulk WHERE state = 'completed'").await;
    browser
        .get("/ui/bulks")
        .await
        .has(&["set jobs, max attempts 9, start 20", "with tag x, with tag y, at most 1,000 a second"]);
    let job = broker.job(ids[0]).await;
    assert_eq!((job.state(), &*job.task_type, job.max_attempts), (JobState::Scheduled, "u", 9));
    for pairs in [
        &[("do", "bulk-set"), ("type", "u")][..],
        &[("do", "bulk-cancel"), ("type", "u"), ("attempts", "9")],
        &[("do", "bulk-retry"), ("type", "u"), ("to", "t")],
    ] {
        assert_eq!(question(&browser, pairs).await.status, 400, "{pairs:?}");
    }
}

#[tokio::test]
async fn dead_jobs_are_discarded_and_ready_ones_get_another_priority_in_the_background() {
    let broker = TestBroker::start().await;
    let mut browser = Browser::at(&broker);
    let dead = dead_with(&broker, "t", &["no host", "no host"]).await;
    let ready = broker.enqueue_all(vec!["t"; 3]).await;
    for (pairs, title, message) in [
        (&[("do", "bulk-discard"), ("type", "t")][..], "Bulk discard 2 jobs of t?", "discard jobs"),
        (
            &[("do", "bulk-reprioritize"), ("type", "t"), ("priority", "-7")],
            "Bulk set the priority of 3 jobs of t to -7?",
            "reprioritize jobs, priority -7",
        ),
    ] {
        let confirmation = question(&browser, pairs).await.has(&[title, "StartBulk"]).has_no(&[" of</button>"]);
        browser.confirm(&confirmation, "").await.leads_to();
        broker.until("the end", "SELECT bool_and(state = 'completed') FROM howdah.bulk").await;
        browser.get("/ui/bulks").await.has(&[message]);
    }
    for id in dead {
        assert_eq!(broker.state(id).await, JobState::Discarded);
    }
    for id in ready {
        assert_eq!(broker.job(id).await.priority, -7);
    }
}

#[tokio::test]
async fn a_bulk_operation_that_the_call_refuses_is_refused_by_the_preview() {
    let broker = TestBroker::start().await;
    let browser = Browser::at(&broker);
    for pairs in [
        &[("do", "bulk-discard"), ("type", "t"), ("state", "ready")][..],
        &[("do", "bulk-retry"), ("type", "a b")],
        &[("do", "bulk-retry"), ("type", "t"), ("rate", "-1")],
        &[("do", "bulk-retry"), ("type", "t"), ("priority", "1")],
        &[("do", "bulk-reprioritize"), ("type", "t"), ("priority", "5000")],
    ] {
        assert_eq!(question(&browser, pairs).await.status, 400, "{pairs:?}");
    }
    let unseen = question(&browser, &[("do", "bulk-cancel"), ("type", "never.seen")]).await;
    assert_eq!(unseen.status, 404, "a mistyped name is told");
}

#[tokio::test]
async fn bulk_operations_on_unreadable_types_are_hidden_and_actions_need_the_right_to_operate() {
    let guarded = Guarded::start().await;
    guarded.admin.enqueue_all(vec!["secret"; 600]).await;
    guarded.admin.enqueue_all(vec!["mail.send"; 600]).await;
    let (foreign, own) = (slow(&guarded.admin, "secret").await, slow(&guarded.admin, "mail.send").await);
    let reads = guarded.token("ann", &["read:mail.*"]).await;
    let reader = Browser::logged_in(&guarded.broker, &reads).await;
    super::views::until_shown(&reader, "/ui/types", "mail.send").await;
    let page = reader.get("/ui/bulks").await.has(&["mail.send", "of 600"]);
    page.has_no(&["secret", "Pause…", "Cancel…", "Start a bulk operation"]);
    assert_eq!(reader.get("/ui/bulks?type=secret").await.status, 403);
    let operates = guarded.token("bob", &["read:mail.*", "operate:mail.*"]).await;
    let operator = Browser::logged_in(&guarded.broker, &operates).await;
    operator.get("/ui/bulks").await.has(&["Pause…", "Start a bulk operation"]).has_no(&["secret"]);
    for (mut browser, id, status) in
        [(reader.clone(), own, 403), (operator.clone(), foreign, 404), (operator.clone(), own, 303)]
    {
        let form = [("do", "cancel-bulk"), ("bulk", &*id.to_string()), ("sure", "yes")];
        assert_eq!(browser.post("/ui/act", &form).await.status, status);
    }
    for (mut browser, task_type) in [(reader, "mail.send"), (operator, "secret")] {
        let form = [("do", "bulk-cancel"), ("type", task_type)];
        assert_eq!(question(&browser, &form).await.status, 403);
        let form = [("do", "bulk-cancel"), ("type", task_type), ("sure", "yes")];
        assert_eq!(browser.post("/ui/act", &form).await.status, 403);
    }
}

#[tokio::test]
async fn the_preview_of_a_bulk_cancel_says_how_many_jobs_run() {
    let broker = TestBroker::start().await;
    let browser = Browser::at(&broker);
    broker.enqueue_all(vec!["t"; 5]).await;
    let none = question(&browser, &[("do", "bulk-cancel"), ("type", "t")]).await;
    none.has(&["Bulk cancel 5 jobs of t?", "None of the selected jobs is running."]);
    let mut worker = broker.worker("t").window(2).await;
    worker.take(2).await;
    let confirmation = question(&browser, &[("do", "bulk-cancel"), ("type", "t")]).await;
    confirmation.has(&["Bulk cancel 5 jobs of t?", "Of the selected jobs, 2 jobs run now."]);
}

#[tokio::test]
async fn a_bulk_operation_with_conditions_is_previewed_started_and_listed_with_them() {
    let broker = TestBroker::start().await;
    let wanted = broker.enqueue(new_job("t", "").tags(&["red"]).limit_key("acme")).await;
    let other = broker.enqueue(new_job("t", "").tags(&["red"])).await;
    let mut browser = Browser::at(&broker);
    browser.get("/ui/bulks?type=t&limit_key=acme").await.has(&["name=\"limit_key\" value=\"acme\""]);
    let pairs = [
        ("do", "bulk-cancel"),
        ("type", "t"),
        ("tag", "red"),
        ("limit_key", "acme"),
        ("newer_than", "1h"),
        ("back", "/bulks"),
    ];
    let confirmation = question(&browser, &pairs).await.has(&[
        "Bulk cancel 1 job of t?",
        "<dt>Tag</dt><dd>red</dd>",
        "<dt>Limit key</dt><dd>acme</dd>",
        "<dt>Newer than</dt>",
    ]);
    let done = browser.confirm(&confirmation, "").await;
    until_state(&broker, "completed").await;
    browser.get(done.leads_to()).await.has(&["tag red, limit key acme", "1 of 1"]);
    assert_eq!((broker.state(wanted).await, broker.state(other).await), (JobState::Cancelled, JobState::Ready));
}
