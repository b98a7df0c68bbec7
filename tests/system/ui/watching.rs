//! Tests workers, events and explanations of waiting jobs on the operator page.

use howdah_proto::v1::TaskTypeSettings;

use super::{
    client::{Browser, question},
    views::until_shown,
};
use crate::support::*;

#[tokio::test]
async fn the_workers_of_all_brokers_are_shown_with_what_they_hold() {
    let (a, b) = TestBroker::pair().await;
    let browser = Browser::at(&a);
    browser.get("/ui/workers").await.has(&["No worker is connected"]);
    let mut here = a.worker("mail.send").label("host", "<one>").window(7).await;
    a.enqueue("mail.send").await;
    here.next().await;
    let _there = b.worker("other").window(3).await;
    let page = browser
        .get("/ui/workers")
        .await
        .has(&["host=&#60;one&#62;", "1 of 7", "working", "Quiet for"])
        .has_no(&["<one>"]);
    assert!(page.body.contains("name=mail.send"), "{page:?}");
    until_shown(&browser, "/ui/workers", "0 of 3").await;
    browser.get("/ui/workers?type=other").await.has(&["0 of 3", "idle"]).has_no(&["1 of 7"]);
    a.enqueue("nobody").await;
    browser.get("/ui/workers?type=nobody").await.has(&["No worker takes jobs of this type"]);
    assert_eq!(browser.get("/ui/workers?page=x").await.status, 400);
}

#[tokio::test]
async fn statistics_are_shown_as_plots_and_tables_for_all_types_and_for_one() {
    let broker = TestBroker::start().await;
    let browser = Browser::at(&broker);
    browser.get("/ui/statistics").await.has(&["Nothing happened in this time"]);
    // Stops background statistics and backlog samples. The test aggregates once at the end, because a minute may begin in
    // between, and sets the backlog itself.
    broker.sql("UPDATE howdah.statistics_sum SET summed = 'infinity'; UPDATE howdah.backlog_sample SET sampled = 'infinity'").await;
    let mut worker = broker.worker("mail.send").window(10).await;
    broker.enqueue("mail.send").await;
    let failing = broker.enqueue("mail.send").max_attempts(1).await;
    for job in worker.take(2).await {
        if job.id == failing { worker.nack(&job, "no").await } else { worker.ack(&job).await }
    }
    let sum = "UPDATE howdah.statistics_change SET at = now(); UPDATE howdah.statistics_sum SET summed = '-infinity'";
    broker.sql(sum).await;
    for over in ["2h", "24h", "7d", "90d", ""] {
        let path = format!("/ui/statistics?type=mail.send&over={over}");
        let counts = "<td class=\"n\">2</td><td class=\"n\">1</td><td class=\"n\">1</td><td class=\"n\">1</td>";
        until_shown(&browser, &path, counts).await;
        browser.get(&path).await.has(&[
            "Wait time",
            "Attempts",
            "<path class=\"succeeded\" d=\"M",
            "complete until",
            "Wait</span> mean",
            "Run</span> sum",
        ]);
    }
    broker
        .sql(
            "INSERT INTO howdah.backlog SELECT t.id, p.minutes, date_bin(make_interval(mins => p.minutes), now(), '1970-01-01 00:00:00+00'), 7, 0, 0, 2, 0
             FROM howdah.task_type t CROSS JOIN (VALUES (1::smallint), (60), (1440)) p (minutes)
             ON CONFLICT (type_id, minutes, starts) DO UPDATE SET ready = 7, dead = 0, waiting = 2",
        )
        .await;
    for over in ["2h", "24h", "7d", "90d"] {
        let page = browser.get(&format!("/ui/statistics?type=mail.send&over={over}")).await;
        page.has(&[
            "Backlog: maximum per period",
            "<path class=\"waiting\" d=\"M",
            "top: 9 jobs",
            "<td class=\"n\">7</td>",
        ]);
    }
    browser.get("/ui/statistics").await.has(&["statistics?type=mail.send&amp;over=24h\">mail.send</a>"]);
    for wrong in ["over=99d", "over=junk&type=mail.send"] {
        assert_eq!(browser.get(&format!("/ui/statistics?{wrong}")).await.status, 400, "{wrong}");
    }
    assert_eq!(browser.get("/ui/statistics?type=a%20b").await.status, 400);
}

#[tokio::test]
async fn a_job_says_why_it_does_not_run_and_where_it_stands() {
    let broker = TestBroker::start().await;
    let browser = Browser::at(&broker);
    let first = broker.enqueue("t").await;
    let second = broker.enqueue("t").await;
    let after = broker.enqueue("t").after(&[first]).await;
    let path = |id: i64| format!("/ui/job?id={id}");
    browser.get(&path(second)).await.has(&["Why the job does not run", "No worker", "1 job goes before this one."]);
    browser.get(&path(first)).await.has(&["The job is next in its queue."]);
    browser.get(&path(after)).await.has(&["Why the job does not run", &format!("job?id={first}\">{first}</a>")]);
    broker.set("t", TaskTypeSettings { paused: true, ..Default::default() }).await;
    until_shown(&browser, &path(first), "paused").await;
    let paused = browser.get(&path(first)).await;
    let paused = paused.has(&["howdah type set t --paused false", "/ui/type?name=t", "value=\"resume-type\">Resume…"]);
    assert!(paused.hidden().contains(&("type".into(), "t".into())), "{paused:?}");
    broker.set("t", TaskTypeSettings::default()).await;
    let mut worker = broker.worker("t").window(1).await;
    let job = worker.next().await;
    browser.get(&path(job.id)).await.has(&["Where the job runs"]);
    worker.ack(&job).await;
    browser.get(&path(job.id)).await.has_no(&["Where the job runs", "Why the job does not run"]);
}

#[tokio::test]
async fn a_job_of_a_paused_limit_key_offers_to_resume_the_key() {
    let broker = TestBroker::start().await;
    let mut browser = Browser::at(&broker);
    broker.set("t", TaskTypeSettings { key_max_running: 1, ..Default::default() }).await;
    broker.enqueue(new_job("t", "").limit_key("ann's")).await;
    let key = [("type", "t"), ("key", "ann's")];
    let form = |action| [("do", action), key[0], key[1]];
    let confirmation = question(&browser, &form("pause-key")).await;
    browser.confirm(&confirmation, "").await.leads_to();
    let id = broker.enqueue(new_job("t", "").limit_key("ann's")).await;
    let path = format!("/ui/job?id={id}");
    until_shown(&browser, &path, "is paused").await;
    let page =
        browser.get(&path).await.has(&["howdah limit resume t &#39;ann&#39;\\&#39;&#39;s&#39;", "/ui/limits?type=t"]);
    page.has(&["name=\"key\" value=\"ann&#39;s\"", "value=\"resume-key\">Resume…"]);
    let confirmation = question(&browser, &form("resume-key")).await;
    browser.confirm(&confirmation, "").await.leads_to();
    browser.get(&path).await.has_no(&["is paused"]);
}
