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
    with_timeout("a schedule", service.schedules().create_schedule(v1::CreateScheduleRequest { schedule }))
        .await
        .expect("made");
}

#[tokio::test]
async fn schedules_are_listed_in_words_and_one_is_shown_with_its_next_ten_times() {
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
    assert_eq!(one.body.matches("<li class=\"plain\">").count(), 10, "{}", one.body);
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

/// The fields of a form for a schedule at 02:30 on workdays.
const FORM: [(&str, &str); 8] = [
    ("name", "reports"),
    ("type", "report.build"),
    ("payload", "{\r\n \"all\": true\r\n}"),
    ("cron", "30 2 * * MON-FRI"),
    ("time_zone", "Europe/Berlin"),
    ("overlap", "skip"),
    ("missed", "all"),
    ("reason", "asked for by Ann"),
];

/// Returns the fields with other values for some of them, and a button.
fn form<'a>(changes: &[(&'a str, &'a str)], button: &'a str) -> Vec<(&'a str, &'a str)> {
    let kept = FORM.into_iter().filter(|(name, _)| changes.iter().all(|(changed, _)| changed != name));
    kept.chain(changes.iter().copied()).chain([("do", button)]).collect()
}

#[tokio::test]
async fn a_schedule_is_created_by_a_form_after_a_preview_of_its_times() {
    let broker = TestBroker::start().await;
    let mut browser = Browser::at(&broker);
    browser.get("/ui/schedules").await.has(&["New schedule…"]);
    browser.get("/ui/schedule/edit").await.has(&["<h1>New schedule</h1>", "value=\"UTC\"", "Show the next times"]);
    let preview = browser.post("/ui/schedule/edit", &form(&[], "preview")).await;
    let preview =
        preview.has(&["Next times, if it were created now", "value=\"30 2 * * MON-FRI\"", "value=\"skip\" selected"]);
    assert_eq!(preview.body.matches("<li class=\"plain\">").count(), 10, "{}", preview.body);
    assert_eq!(broker.count("SELECT count(*) FROM howdah.schedule").await, 0, "a preview must change nothing");
    let saved = browser.post("/ui/schedule/edit", &form(&[], "save")).await;
    assert_eq!(saved.leads_to(), "/ui/schedule?name=reports");
    browser.get(saved.leads_to()).await.has(&[
        "30 2 * * MON-FRI",
        "skip the planned time",
        "one job for each",
        "Change…",
    ]);
    let made = broker.client().await.get_schedule("reports").await.expect("get").expect("a schedule");
    assert_eq!(&made.template.expect("a job").payload[..], b"{\n \"all\": true\n}");
    let audited = "SELECT count(*) FROM howdah.audit WHERE method = 'CreateSchedule' AND reason = 'asked for by Ann'";
    assert_eq!(broker.count(audited).await, 1);
    let taken = browser.post("/ui/schedule/edit", &form(&[("missed", "one")], "save")).await;
    assert!(taken.status == 400 && taken.body.contains("another schedule has this name"), "{taken:?}");
    // A period fires at once.
    let often = form(&[("name", "often"), ("cron", ""), ("every", "1h"), ("paused", "")], "save");
    browser.post("/ui/schedule/edit", &often).await.leads_to();
    broker.until("the first job", "SELECT fired = 1 FROM howdah.schedule WHERE name = 'often'").await;
    let paused = form(&[("name", "paused"), ("cron", ""), ("every", "1h"), ("paused", "yes")], "save");
    browser.post("/ui/schedule/edit", &paused).await.leads_to();
    assert_eq!(broker.count("SELECT count(*) FROM howdah.schedule WHERE name = 'paused' AND paused").await, 1);
}

#[tokio::test]
async fn a_form_with_an_invalid_field_says_so_beside_the_field_and_keeps_what_was_written() {
    let broker = TestBroker::start().await;
    let mut browser = Browser::at(&broker);
    for (changes, problem) in [
        (
            &[("name", "a b")][..],
            "name=\"name\" value=\"a b\" maxlength=\"200\" required spellcheck=\"false\" autocapitalize=\"none\"><span class=\"note bad block\" role=\"alert\">&#34;a b&#34; has the character",
        ),
        (&[("type", "a b")], "role=\"alert\">&#34;a b&#34; has the character"),
        (&[("cron", "at three")], "role=\"alert\">is &#34;at three&#34;, which cron does not understand"),
        (&[("cron", "0 3 30 2 *")], "which no date matches"),
        (&[("time_zone", "Mars")], "role=\"alert\">is &#34;Mars&#34;, which is not in the IANA database"),
        (&[("every", "1h")], "role=\"alert\">is set together with cron; fill in one of them"),
        (&[("cron", "")], "role=\"alert\">is not set; set period or cron"),
        (&[("cron", ""), ("every", "soon")], "role=\"alert\">is &#34;soon&#34;"),
        (&[("cron", ""), ("every", "1ms")], "role=\"alert\">is 1ms; 1 s to 3650 days"),
        (&[("start", "tomorrow")], "role=\"alert\">is &#34;tomorrow&#34;"),
        (&[("overlap", "often")], "overlap is &#34;often&#34;"),
    ] {
        for button in ["preview", "save"] {
            let page = browser.post("/ui/schedule/edit", &form(changes, button)).await;
            assert_eq!(page.status, 400, "{changes:?}: {page:?}");
            assert!(page.body.contains(problem), "{changes:?}: {problem} is not in {}", page.body);
            assert!(page.body.contains("value=\"all\" selected") && page.body.contains("all&#34;: true"), "{page:?}");
        }
    }
    assert_eq!(broker.count("SELECT count(*) FROM howdah.schedule").await, 0);
    let foreign =
        browser.post_from("/ui/schedule/edit", &form(&[], "save"), &[("Origin", "http://evil.example")]).await;
    assert_eq!(foreign.status, 403, "{foreign:?}");
}

#[tokio::test]
async fn a_form_changes_a_schedule_and_keeps_what_it_does_not_show() {
    let broker = TestBroker::start().await;
    let mut browser = Browser::at(&broker);
    let cron = Cron { expression: "30 2 * * MON-FRI".into(), time_zone: "Europe/Berlin".into() };
    let schedule = v1::Schedule {
        name: "reports".into(),
        template: Some(new_job("report.build", "a\r\nb").header("tenant", "north").priority(-5)),
        plan: Some(Plan::Cron(cron)),
        jitter: Some(wire(secs(90))),
        end_time: Some(far().into()),
        ..Default::default()
    };
    let request = v1::CreateScheduleRequest { schedule: Some(schedule) };
    with_timeout("a schedule", broker.schedules().create_schedule(request)).await.expect("made");
    let page = browser.get("/ui/schedule/edit?name=reports").await;
    page.has(&["Change the schedule reports", "value=\"Europe/Berlin\"", "\na\r\nb</textarea>"])
        .has_no(&["Create it paused"]);
    let change = [
        ("of", "reports"),
        ("type", "report.build"),
        ("payload", "a\r\nb"),
        ("every", "1h 30m"),
        ("overlap", "one_waiting"),
        ("missed", "one"),
        ("do", "save"),
    ];
    assert_eq!(browser.post("/ui/schedule/edit", &change).await.leads_to(), "/ui/schedule?name=reports");
    let changed = broker.client().await.get_schedule("reports").await.expect("get").expect("a schedule");
    assert_eq!(
        (changed.plan.clone(), changed.overlap()),
        (Some(Plan::Period(wire(secs(5400)))), OverlapPolicy::OneWaiting)
    );
    assert_eq!((changed.jitter, changed.end_time), (Some(wire(secs(90))), Some(far().into())));
    let job = changed.template.expect("a job");
    assert_eq!((&job.payload[..], job.headers["tenant"].as_str(), job.priority), (&b"a\r\nb"[..], "north", -5));
    browser.get("/ui/schedule/edit?name=reports").await.has(&["value=\"1h 30m\"", "value=\"one_waiting\" selected"]);
    // A payload that is not text stays.
    broker.sql("UPDATE howdah.schedule SET payload = '\\xff00'").await;
    let page = browser.get("/ui/schedule/edit?name=reports").await;
    page.has(&["The payload is not text, or too long for this form"]).has_no(&["<textarea"]);
    let change = [("of", "reports"), ("type", "other"), ("every", "2h"), ("do", "save")];
    browser.post("/ui/schedule/edit", &change).await.leads_to();
    let kept = "SELECT count(*) FROM howdah.schedule WHERE payload = '\\xff00' AND task_type = 'other'";
    assert_eq!(broker.count(kept).await, 1);
    assert_eq!(browser.get("/ui/schedule/edit?name=none").await.status, 404);
}

#[tokio::test]
async fn a_schedule_is_changed_only_by_callers_who_may_see_and_enqueue_its_jobs() {
    let guarded = Guarded::start().await;
    nightly(&guarded.admin, "own", "mail.send").await;
    nightly(&guarded.admin, "foreign", "secret").await;
    for (scopes, name, get, post) in [
        (&["read:mail.*"][..], "own", 403, 403),
        (&["read:mail.*", "enqueue:mail.*"], "own", 403, 403),
        (&["read:mail.*", "payload:mail.*", "enqueue:other"], "own", 200, 403),
        (&["read:mail.*", "payload:mail.*", "enqueue:mail.*"], "foreign", 404, 404),
        (&["read:mail.*", "payload:mail.*", "enqueue:mail.*"], "own", 200, 303),
    ] {
        let token = guarded.token("ann", scopes).await;
        let mut browser = Browser::logged_in(&guarded.broker, &token).await;
        let change = [("of", name), ("type", "mail.send"), ("cron", "0 4 * * *"), ("time_zone", "UTC"), ("do", "save")];
        assert_eq!(browser.get(&format!("/ui/schedule/edit?name={name}")).await.status, get, "{scopes:?} {name}");
        let page = browser.post("/ui/schedule/edit", &change).await;
        assert_eq!(page.status, post, "{scopes:?} {name}: {page:?}");
    }
    assert_eq!(guarded.broker.count("SELECT count(*) FROM howdah.schedule WHERE cron = '0 4 * * *'").await, 1);
}
