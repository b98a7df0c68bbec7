//! Tests the figures of the overview that go beyond job counts: the last hour, types without workers, and error groups.

use howdah_proto::v1::TaskTypeSettings;

use super::{actions::dead_with, client::Browser, views::until_shown};
use crate::{access::fixture::Guarded, support::*};

#[tokio::test]
async fn the_overview_plots_throughput_error_rate_and_percentiles_of_the_last_hour() {
    let broker = TestBroker::start().await;
    let browser = Browser::at(&broker);
    browser.get("/ui/").await.has_no(&["Last hour", "<figure"]);
    let ids = broker.enqueue_all(["mail.send", "mail.send", "other"]).await;
    let failing = broker.enqueue("other").max_attempts(1).await;
    let mut worker = broker.worker("mail.send").window(10).await;
    worker.window("other", 10).await;
    for job in worker.take(ids.len() + 1).await {
        if job.id == failing { worker.nack(&job, "no route").await } else { worker.ack(&job).await }
    }
    // Of four attempts, of two types, one has failed.
    let whole = ["Last hour", "Throughput <span class=\"figure\">0.1/min", "Error rate <span class=\"figure\">25 %"];
    browser.until_has("/ui/", &whole).await;
    let page = browser.get("/ui/").await.has(&["Wait time <span class=\"figure\">p95 ", "<path class=\"tail\""]);
    assert_eq!(page.body.matches("<figure").count(), 3);
}

#[tokio::test]
async fn a_type_with_ready_jobs_is_marked_while_no_broker_has_a_worker_for_it() {
    let (here, there) = TestBroker::pair().await;
    let browser = Browser::at(&here);
    here.enqueue_all(["lonely"; 3]).await;
    here.enqueue("paused").await;
    here.set("paused", TaskTypeSettings { paused: true, ..Default::default() }).await;
    here.enqueue("later").delay(HOUR).await;
    let marked = ["Ready jobs without a worker", ">lonely <b>3</b>", "<span class=\"tag bad\">no worker</span>"];
    browser.until_has("/ui/", &marked).await;
    let chips = browser.get("/ui/").await;
    assert_eq!(
        chips.body.matches("class=\"chip bad\"").count(),
        1,
        "neither paused nor scheduled jobs need a worker now"
    );
    browser.get("/ui/types?q=lonely").await.has(&["no worker"]);
    browser.get("/ui/type?name=lonely").await.has(&["No worker takes jobs of this type"]);
    // The worker of the other broker holds one job, so two stay ready.
    let mut worker = there.worker("lonely").window(1).await;
    worker.next().await;
    eventually("the mark is gone", async || {
        let page = browser.get("/ui/").await.body;
        page.contains("name=lonely") && !page.contains("no worker")
    })
    .await;
    browser.get("/ui/type?name=lonely").await.has_no(&["No worker takes jobs of this type"]);
}

#[tokio::test]
async fn the_overview_links_to_the_largest_error_groups() {
    let broker = TestBroker::start().await;
    let browser = Browser::at(&broker);
    browser.get("/ui/").await.has_no(&["Fails most"]);
    dead_with(&broker, "other", &["too large"]).await;
    dead_with(&broker, "mail.send", &["no <host> 7", "no <host> 8"]).await;
    let page = browser.get("/ui/").await.has(&["Fails most", "no &#60;host&#62; 8", "too large"]);
    let link = "/ui/jobs?type=mail.send&amp;state=dead&amp;group=no%20%3Chost%3E%20%23\"";
    assert!(
        page.body.find(link).expect("a link") < page.body.find("too large").expect("the other"),
        "the largest first"
    );
}

#[tokio::test]
async fn a_reader_of_some_types_sees_no_totals_of_others_on_the_overview() {
    let guarded = Guarded::start().await;
    dead_with(&guarded.admin, "secret", &["unheard of"]).await;
    guarded.admin.enqueue_all(["secret", "mail.send"]).await;
    let token = guarded.token("ann", &["read:mail.*"]).await;
    let browser = Browser::logged_in(&guarded.broker, &token).await;
    until_shown(&browser, "/ui/", ">mail.send <b>1</b>").await;
    browser.get("/ui/").await.has_no(&["secret", "unheard of", "Last hour", "Fails most"]);
}
