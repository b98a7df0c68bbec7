//! Tests schedules on the operator page: planned times and actions.

use howdah_proto::v1::{self, Cron, JobState, OverlapPolicy, schedule::Plan};

use super::client::{Browser, encoded, question};
use crate::{access::fixture::Guarded, support::*};

/// Creates a schedule that fires at 02:30 on workdays.
async fn nightly(service: &Service, name: &str, task_type: &str) {
    let cron = Cron { expression: "30 2 * * MON-FRI".into(), time_zone: "Europe/Berlin".into() };
    let schedule = Some(v1::Schedule {
        name: name.into(),
        template: Some(new_job(task_type, "{}")),
        plan: Some(Plan::Cron(cron)),
        overlap: OverlapPolicy::Skip as i32,
        ..Default::default()
    });
    soon("a schedule", service.schedules().create_schedule(v1::CreateScheduleRequest { schedule }))
        .await
        .expect("made");
}

#[tokio::test]
async fn schedules_are_listed_in_words_and_one_is_shown_with_its_next_five_times() {
    let broker = TestBroker::start().await;
    let browser = Browser::at(&broker);
    browser.get("/ui/schedules").await.has(&["There is no schedule"]);
    nightly(&broker, "reports", "report.build").await;
    let list = browser.get("/ui/schedules").await;
    list.has(&["/ui/schedule?name=reports", "report.build", "At 02:30, on Monday", "Europe/Berlin", "in "])
        .has_no(&["paused", "fails"]);
    let one = browser.get("/ui/schedule?name=reports").await;
    let one = one.has(&[
        "30 2 * * MON-FRI",
        "skip the planned time",
        "0 jobs enqueued, 0 times skipped",
        "Run now…",
        "Pause…",
    ]);
    assert_eq!(one.body.matches("<li class=\"plain\">").count(), 5, "{}", one.body);
    let failed = "UPDATE howdah.schedule SET last_error = 'the payload is <b>too large</b>' WHERE name = 'reports'";
    broker.sql(failed).await;
    browser.get("/ui/schedules").await.has(&["fails"]);
    browser.get("/ui/schedule?name=reports").await.has(&["the payload is &#60;b&#62;too large"]);
    for (path, status) in [("?name=none", 404), ("?name=a%20b", 400), ("", 400)] {
        assert_eq!(browser.get(&format!("/ui/schedule{path}")).await.status, status, "{path}");
    }
    assert_eq!(browser.get("/ui/schedules?page=x").await.status, 400);
}

#[tokio::test]
async fn a_schedule_is_run_now_once_however_often_the_form_is_sent() {
    let broker = TestBroker::start().await;
    let mut browser = Browser::at(&broker);
    nightly(&broker, "reports", "report.build").await;
    let back = ("back", "/schedule?name=reports");
    let confirmation = question(&browser, &[("do", "run-schedule"), ("name", "reports"), back]).await;
    let confirmation = confirmation.has(&["Run the schedule reports?", "in addition to its plan", "RunSchedule"]);
    assert_eq!(broker.count("SELECT count(*) FROM howdah.job").await, 0, "a confirmation page must change nothing");
    let done = browser.confirm(&confirmation, "the month was wrong").await;
    assert_eq!(done.leads_to(), "/ui/schedule?name=reports&done=run-schedule&n=1");
    browser.confirm(&confirmation, "sent twice").await.leads_to();
    assert_eq!(broker.count("SELECT count(*) FROM howdah.job WHERE task_type = 'report.build'").await, 1);
    let id = broker.count("SELECT last_job_id FROM howdah.schedule").await;
    assert_eq!(broker.state(id).await, JobState::Ready);
    browser.get(done.leads_to()).await.has(&[
        "Done: run.",
        "1 job enqueued, 0 times skipped",
        &format!("/ui/job?id={id}\""),
    ]);
}

#[tokio::test]
async fn a_schedule_is_paused_and_resumed() {
    let broker = TestBroker::start().await;
    let mut browser = Browser::at(&broker);
    nightly(&broker, "reports", "report.build").await;
    for (action, message, offered, list, paused) in [
        ("pause-schedule", "Done: paused.", "Resume…", "paused</span>", 1),
        ("resume-schedule", "Done: resumed.", "Pause…", "At 02:30", 0),
    ] {
        let confirmation =
            question(&browser, &[("do", action), ("name", "reports"), ("back", "/schedule?name=reports")]).await;
        let done = browser.confirm(&confirmation.has(&["the schedule reports?"]), "").await;
        browser.get(done.leads_to()).await.has(&[message, offered]);
        browser.get("/ui/schedules").await.has(&[list]);
        assert_eq!(broker.count("SELECT count(*) FROM howdah.schedule WHERE paused").await, paused, "{action}");
    }
}

#[tokio::test]
async fn schedules_of_unreadable_types_are_hidden_and_actions_need_the_scope_enqueue() {
    let guarded = Guarded::start().await;
    nightly(&guarded.admin, "own", "mail.send").await;
    nightly(&guarded.admin, "foreign", "secret").await;
    let reads = guarded.token("ann", &["read:mail.*"]).await;
    let reader = Browser::logged_in(&guarded.broker, &reads).await;
    reader.get("/ui/schedules").await.has(&["mail.send"]).has_no(&["foreign", "secret"]);
    assert_eq!(reader.get("/ui/schedule?name=foreign").await.status, 404);
    reader.get("/ui/schedule?name=own").await.has(&["mail.send"]).has_no(&["Run now…", "Pause…"]);
    let enqueues = guarded.token("bob", &["read:mail.*", "enqueue:mail.*"]).await;
    let owner = Browser::logged_in(&guarded.broker, &enqueues).await;
    owner.get("/ui/schedule?name=own").await.has(&["Run now…", "Pause…"]);
    for action in ["run-schedule", "pause-schedule", "resume-schedule"] {
        for (mut browser, name, status) in [(reader.clone(), "own", 403), (owner.clone(), "foreign", 404)] {
            let form = [("do", action), ("name", name), ("sure", "yes")];
            let page = browser.post("/ui/act", &form).await;
            assert_eq!(page.status, status, "{}: {page:?}", encoded(&form));
        }
    }
    assert_eq!(guarded.broker.count("SELECT count(*) FROM howdah.schedule WHERE paused OR fired > 0").await, 0);
}
