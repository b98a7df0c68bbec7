//! Tests the views of the operator page.

use howdah_proto::v1::{JobState, TaskTypeSettings};

use super::{client::Browser, progress};
use crate::support::*;

/// Waits until the page shows this text, because the page's figures lag behind.
pub async fn until_shown(browser: &Browser, path: &str, text: &str) {
    browser.until_has(path, &[text]).await;
}

#[tokio::test]
async fn the_overview_and_the_list_of_types_show_how_many_jobs_there_are_of_each() {
    let broker = TestBroker::start().await;
    let browser = Browser::at(&broker);
    browser.get("/ui/").await.has(&["There is no task type yet", "Overview"]);
    broker.enqueue_all(["mail.send", "mail.send", "mail.send"]).await;
    broker.enqueue("other").delay(HOUR).await;
    broker.set("quiet", TaskTypeSettings { paused: true, ..Default::default() }).await;
    // Waits until the page lists the type that was created last, because its figures then include all jobs.
    until_shown(&browser, "/ui/", ">quiet</a>").await;
    browser.get("/ui/").await.has(&[
        "<b data-live=\"ready\">3</b>",
        "mail.send",
        "type=mail.send&amp;state=ready\">3</a>",
        "Paused",
        ">quiet</a>",
    ]);
    // Compares only the tables of the page, because the numbers above the tables change with time.
    let overview = browser.get("/ui/").await;
    let at =
        overview.body.split("Busiest types <span class=\"counted\">as of ").nth(1).expect("when they were counted");
    assert!(at[2..3] == *":" && at[5..6] == *":" && at[8..].starts_with(" UTC<"), "{at:.20}");
    assert!(overview.body.find("data-live=\"age\"") > overview.body.find("class=\"tiles\""));
    let by_name = browser.get("/ui/types").await.has(&["3 types", "mail.send", "other", "quiet", "paused"]);
    assert!(by_name.body.find("mail.send") < by_name.body.find("other"));
    let by_number = browser.get("/ui/types?sort=scheduled").await;
    assert!(by_number.body.find("name=other") < by_number.body.find("name=mail.send"));
    browser.get("/ui/types?q=ma").await.has(&["mail.send", "1 type<"]).has_no(&["name=other"]);
}

#[tokio::test]
async fn a_type_is_shown_with_its_settings_and_its_jobs_page_by_page() {
    let broker = TestBroker::start().await;
    let browser = Browser::at(&broker);
    let ids = broker.enqueue_all(vec!["t"; 120]).await;
    broker.set("t", TaskTypeSettings { max_running: 1_000, max_attempts: 3, ..Default::default() }).await;
    until_shown(&browser, "/ui/type?name=t", "<b>120</b>").await;
    browser.get("/ui/type?name=t").await.has(&["Concurrent jobs", "1,000", "Pause…"]);
    let mut path = "/ui/jobs?type=t&state=ready".to_owned();
    let mut seen = Vec::new();
    loop {
        let page = browser.get(&path).await.has(&["Jobs of"]);
        let links = page.body.split("<th scope=\"row\"><a href=\"/ui/job?id=").skip(1);
        seen.extend(links.map(|rest| rest.split('"').next().unwrap().parse::<i64>().unwrap()));
        let Some(next) = page.next_page() else { break };
        path = next;
    }
    assert_eq!(seen, ids, "each once, in the order in which they run");
    browser.get("/ui/jobs?type=t&state=dead").await.has(&["There is no such job"]);
}

#[tokio::test]
async fn a_type_s_jobs_are_listed_by_attempts_the_most_first() {
    let broker = TestBroker::start().await;
    let once = broker.enqueue("t").max_attempts(1).await;
    let mut worker = broker.worker("t").window(10).await;
    let job = worker.next().await;
    worker.nack(&job, "no route").await;
    let often = broker.enqueue("t").max_attempts(3).retry_after_each(std::time::Duration::ZERO).await;
    for _ in 0..3 {
        let job = worker.next().await;
        worker.nack(&job, "no route to host").await;
    }
    broker.until_state(often, JobState::Dead).await;
    let page = Browser::at(&broker).get("/ui/jobs?type=t&sort=attempts").await;
    let page = page.has(&["no route to host", "3/3", "1/1"]);
    let at = |id: i64| page.body.find(&format!("job?id={id}\"")).expect("shown");
    assert!(at(often) < at(once));
}

#[tokio::test]
async fn a_job_is_shown_with_its_progress_failures_payload_and_headers() {
    let broker = TestBroker::start().await;
    let id = broker.enqueue(new_job("t", r#"{"to":"ann"}"#)).key("order 1").max_attempts(1).header("lang", "en").await;
    let first = broker.enqueue("first").await;
    let after = broker.enqueue("t").after(&[first]).await;
    let mut worker = broker.worker("t").window(10).await;
    let job = worker.next().await;
    worker.report(vec![progress(&job, 0.25, "a quarter")]).await;
    let browser = Browser::at(&broker);
    let path = format!("/ui/job?id={id}");
    browser.get(&path).await.has(&["Attempt 1 runs", "a quarter", "25 %", "Take from worker…"]);
    worker.nack(&job, "smtp: no route\nline 2").await;
    let dead = browser.get(&path).await.has(&["Attempt 1 failed", "smtp: no route\nline 2", "Retry…", "Discard…"]);
    dead.has(&["{\n  &#34;to&#34;: &#34;ann&#34;\n}", "order 1", "1 of 1", "<dt>lang</dt><dd>en</dd>"]);
    browser.get(&format!("{path}&as=hex")).await.has(&["000000  7b 22 74 6f"]);
    browser.get(&format!("/ui/job?id={after}")).await.has(&["Waits for other jobs", &format!("/ui/job?id={first}\"")]);
    assert_eq!(browser.get(&format!("/ui/find?q={id}")).await.leads_to(), path);
    assert_eq!(browser.get(&format!("/ui/jobs?id={id}")).await.leads_to(), path);
    until_shown(&browser, "/ui/types", "name=first").await;
    assert_eq!(browser.get("/ui/find?q=first").await.header("location"), "/ui/type?name=first");
    assert_eq!(browser.get("/ui/find?q=fir").await.header("location"), "/ui/types?q=fir");
}

#[tokio::test]
async fn missing_jobs_and_types_are_404_and_malformed_requests_are_400() {
    let broker = TestBroker::start().await;
    let browser = Browser::at(&broker);
    for path in ["/ui/job?id=7", "/ui/type?name=none", "/ui/assets/none.css"] {
        assert_eq!(browser.get(path).await.status, 404, "{path}");
    }
    for path in
        ["/ui/job", "/ui/job?id=x", "/ui/type", "/ui/type?name=a%20b", "/ui/jobs?type=t&state=gone", "/ui/confirm?do=x"]
    {
        assert_eq!(browser.get(path).await.status, 400, "{path}");
    }
}

#[tokio::test]
async fn a_prefix_of_a_proxy_is_in_every_link_whether_the_proxy_takes_it_off_or_not() {
    let broker = TestBroker::start_with(|config| config.page_prefix = Some("/jobs/howdah".into())).await;
    broker.enqueue("t").await;
    let browser = Browser::at(&broker);
    for at in ["/ui", "/jobs/howdah/ui"] {
        let page = browser
            .get(&format!("{at}/types"))
            .await
            .has(&["/jobs/howdah/ui/types", "/jobs/howdah/ui/assets/page.css"]);
        for link in page.body.split("href=\"").chain(page.body.split("action=\"")).skip(1) {
            assert!(
                link.starts_with("/jobs/howdah/ui/") || link.starts_with('#') || link.starts_with('<'),
                "{link:.80}"
            );
        }
        assert_eq!(browser.get(&format!("{at}/assets/page.css")).await.status, 200);
        assert_eq!(browser.get(at).await.header("location"), "/jobs/howdah/ui/");
    }
}

#[tokio::test]
async fn the_page_is_not_found_while_it_is_turned_off() {
    let broker = TestBroker::start_with(|config| config.page = howdah_core::config::PageMode::Off).await;
    assert_eq!(Browser::at(&broker).get("/ui/").await.status, 404);
}

#[tokio::test]
async fn light_or_dark_is_remembered() {
    let broker = TestBroker::start().await;
    let mut browser = Browser::at(&broker);
    browser.get("/ui/").await.has_no(&["data-theme"]);
    let chosen = browser.post("/ui/theme", &[("theme", "dark"), ("back", "/types?q=a")]).await;
    assert_eq!(chosen.leads_to(), "/ui/types?q=a");
    browser.get("/ui/").await.has(&["<html lang=\"en\" data-theme=\"dark\">"]);
    assert_eq!(browser.post("/ui/theme", &[("theme", "\"><script>")]).await.status, 400);
}

#[tokio::test]
async fn a_job_s_tags_lead_to_the_other_jobs_with_them() {
    let broker = TestBroker::start().await;
    let id = broker.enqueue(new_job("t", "x").tags(&["a&b <c>", "d"])).await;
    let other = broker.enqueue(new_job("t", "x").tags(&["a&b <c>"]).delay(HOUR)).await;
    let none = broker.enqueue("t").await;
    let browser = Browser::at(&broker);
    let page = browser.get(&format!("/ui/job?id={id}")).await;
    let link = "/ui/jobs?type=t&amp;tag=a%26b%20%3Cc%3E";
    let page = page.has(&["Tags", link]).has_no(&["<c>"]);
    assert!(page.body.contains("tag=d\""), "{}", page.body);
    let row = |id: i64| format!("<a href=\"/ui/job?id={id}\">");
    let found = browser.get(&link.replace("&amp;", "&")).await.has(&[&row(id), &row(other), "The newest first"]);
    let found = found.has_no(&[&row(none), "<c>"]);
    assert!(found.body.find(&row(other)) < found.body.find(&row(id)));
    browser.get("/ui/jobs?type=t&tag=a%26b%20%3Cc%3E&state=scheduled").await.has(&[&row(other)]).has_no(&[&row(id)]);
    browser.get("/ui/jobs?type=t&tag=nothing").await.has(&["There is no such job"]);
    browser.get("/ui/job?id=3").await.has_no(&["<dt>Tags"]);
}
