//! Tests that the operator page shows user input as text in every view.

use howdah_proto::v1::{self, JobState, TaskTypeSettings, schedule::Plan};

use super::{
    client::{Browser, encoded, question},
    progress,
};
use crate::{access::fixture::Guarded, support::*};

const SCRIPT: &str = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>&lt;{{7*7}}";
/// A script in HTML that is short enough for a tag of a job.
const TAG: &str = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>";
/// A script in HTML with only characters that are valid in the name of a principal.
const PRINCIPAL: &str = "<script>alert(1)</script>\"'><img/src=x/onerror=alert(1)>";

/// Unescaped markup that must not appear in a page.
const BAD: [&str; 5] = ["<script>", "<img", "onerror=alert(1)>", "\"'>", "javascript:"];

/// Creates jobs, a worker, a bulk operation, a schedule and a pause whose texts all contain HTML with scripts. Returns a dead
/// job, a succeeded job and the worker.
async fn scripts(guarded: &Guarded, browser: &mut Browser) -> (i64, i64, Worker) {
    let admin = &guarded.admin;
    admin.set("t", TaskTypeSettings { key_max_running: 1, ..Default::default() }).await;
    let job = || new_job("t", SCRIPT).header(SCRIPT, SCRIPT).fair_key(SCRIPT).tags(&[TAG]).max_attempts(1);
    let dead = admin.enqueue(job().key(SCRIPT).limit_key(SCRIPT)).await;
    let mut worker = admin.worker("t").label("host", SCRIPT).window(1).await;
    let taken = worker.next().await;
    worker.report(vec![progress(&taken, 0.5, SCRIPT)]).await;
    worker.nack(&taken, SCRIPT).await;
    admin.until_state(dead, JobState::Dead).await;
    let done = admin.enqueue(job()).await;
    let taken = worker.next().await;
    worker.ack(&taken).result(SCRIPT).await;
    admin.until_state(done, JobState::Succeeded).await;
    worker.window("t", 0).await;
    admin.enqueue_all((0..3).map(|_| job().limit_key(SCRIPT))).await;
    let schedule = Some(v1::Schedule {
        name: "hourly".into(),
        template: Some(new_job("t", SCRIPT)),
        plan: Some(Plan::Period(wire(HOUR))),
        start_time: Some(far().into()),
        ..Default::default()
    });
    with_timeout("made", admin.schedules().create_schedule(v1::CreateScheduleRequest { schedule }))
        .await
        .expect("a schedule");
    admin.sql(&format!("UPDATE howdah.schedule SET last_error = $script${SCRIPT}$script$")).await;
    for pairs in [
        &[("do", "pause-key"), ("type", "t"), ("key", SCRIPT)][..],
        &[("do", "bulk-reprioritize"), ("type", "t"), ("state", "waiting"), ("priority", "5")],
    ] {
        let confirmation = question(browser, pairs).await;
        browser.confirm(&confirmation, SCRIPT).await.leads_to();
    }
    (dead, done, worker)
}

#[tokio::test]
async fn scripts_in_all_user_input_are_shown_as_text() {
    let guarded = Guarded::start_with(|config| config.name = SCRIPT.into()).await;
    let all = ["enqueue:*", "work:*", "read:*", "payload:*", "operate:*", "admin:*"];
    let mut browser = Browser::logged_in(&guarded.broker, &guarded.token(PRINCIPAL, &all).await).await;
    let (dead, done, _worker) = scripts(&guarded, &mut browser).await;
    super::views::until_shown(&browser, "/ui/types", "name=t").await;
    let [script, tag] = [SCRIPT, TAG].map(|text| encoded(&[("x", text)]).split_off(2));
    // Views of the page, each with the number of scripts that it shows, besides the names of the broker and the
    // principal.
    let paths = [
        ("/ui/".to_owned(), 1),
        (format!("/ui/?done={script}&n={script}"), 0),
        ("/ui/types".into(), 0),
        (format!("/ui/types?q={script}&sort={script}"), 2),
        ("/ui/type?name=t".into(), 0),
        ("/ui/jobs?type=t".into(), 1),
        ("/ui/jobs".into(), 2),
        (format!("/ui/new-job?type={script}"), 1),
        (format!("/ui/confirm?do=set-type&type=t&fallback={script}"), 0),
        ("/ui/jobs?type=t&state=dead".into(), 2),
        ("/ui/jobs?type=t&sort=attempts".into(), 2),
        (format!("/ui/jobs?type=t&state=dead&group={script}"), 2),
        (format!("/ui/jobs?type=t&key={script}"), 2),
        (format!("/ui/jobs?type=t&tag={tag}"), 2),
        (format!("/ui/jobs?type=t&state=dead&header={script}%3D{script}"), 1),
        (format!("/ui/jobs?type=t&state=dead&text={script}"), 3),
        (format!("/ui/jobs?type=t&state=dead&path={script}"), 0),
        (format!("/ui/jobs?type=t&state=dead&text=a&since={script}"), 0),
        (format!("/ui/job?id={dead}"), 6),
        (format!("/ui/job?id={dead}&as=text"), 6),
        (format!("/ui/job?id={done}"), 4),
        (format!("/ui/find?q={script}"), 0),
        ("/ui/failures".into(), 1),
        (format!("/ui/failures?type={script}"), 0),
        ("/ui/schedules".into(), 0),
        ("/ui/schedule?name=hourly".into(), 1),
        (format!("/ui/schedule?name={script}"), 0),
        ("/ui/schedule/edit?name=hourly".into(), 1),
        ("/ui/statistics".into(), 0),
        (format!("/ui/statistics?type=t&over={script}"), 0),
        ("/ui/workers".into(), 2),
        ("/ui/limits?type=t".into(), 2),
        ("/ui/bulks".into(), 2),
        (format!("/ui/bulks?type=t&state={script}&group={script}"), 3),
        ("/ui/storage".into(), 1),
        (format!("/ui/storage?store={script}"), 0),
        ("/ui/audit".into(), 4),
        (format!("/ui/audit?principal={script}&method={script}&id={script}"), 0),
        ("/ui/tokens?ended=yes".into(), 1),
        (format!("/ui/confirm?do=retry&id={dead}&back=/{script}"), 1),
        (format!("/ui/confirm?do=discard&type=t&group={script}"), 1),
        (format!("/ui/confirm?do=bulk-retry&type=t&group={script}"), 1),
        (format!("/ui/confirm?do=bulk-set&type=t&add={tag}"), 1),
        (format!("/ui/confirm?do=pause-key&type=t&key={script}"), 1),
        ("/ui/confirm?do=cancel-bulk&bulk=1".into(), 0),
        (format!("/ui/confirm?do={script}"), 0),
        (format!("/ui/login?next=/{script}"), 0),
        (format!("/ui/{script}"), 0),
    ];
    for (path, least) in paths {
        let page = browser.get(&path).await;
        assert!([200, 303, 307, 400, 404].contains(&page.status), "{path}: {page:?}");
        for bad in BAD {
            assert!(!page.body.contains(bad), "{bad} in {path}: {}", page.body);
        }
        assert!(!page.header("location").contains(['<', '"', '\n']), "{page:?}");
        let shown = page.body.matches("&#60;script&#62;alert(1)").count();
        let of_layout = if page.body.contains("<footer>") { 1 + usize::from(page.body.contains("Log out")) } else { 0 };
        assert!(shown >= least + of_layout, "{shown} scripts in {path}: {}", page.body);
    }
}

#[tokio::test]
async fn control_characters_of_an_error_are_written_out() {
    let broker = TestBroker::start().await;
    let id = super::actions::dead_with(&broker, "t", &["\u{1b}[31mred\u{7}\nsecond\tline"]).await[0];
    let browser = Browser::at(&broker);
    browser.get(&format!("/ui/job?id={id}")).await.has(&["\\u{1b}[31mred\\u{7}\nsecond\tline"]).has_no(&["\u{1b}"]);
    for path in ["/ui/failures", "/ui/jobs?type=t&state=dead"] {
        browser.get(path).await.has(&["\\u{1b}[31mred\\u{7}…"]);
    }
}
