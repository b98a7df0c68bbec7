//! Tests an operator page over several stores.

use howdah_cli::postgres::StopMode;
use howdah_proto::v1::DrainStoreRequest;
use rustix::process::Signal;

use super::{client::Browser, views::until_shown};
use crate::{
    stores::{
        calls::{enqueue_at, two},
        unavailable::second_server,
    },
    support::*,
};

/// Returns the beginning of a store's table row, in HTML.
fn row(name: &str, number: u32) -> String {
    format!("<th scope=\"row\">{name}</th><td class=\"n\">{number}</td>")
}

#[tokio::test]
async fn each_store_is_shown_with_its_number_its_state_and_its_jobs() {
    let (_shop, _mail, broker) = two().await;
    let browser = Browser::at(&broker);
    enqueue_at(&broker, "mail", "t").await;
    let (shop, mail) = (row("shop", 0), row("mail", 1));
    for (store, jobs) in [(&shop, 0), (&mail, 1)] {
        until_shown(&browser, "/ui/storage", &format!("{store}<td>ready</td><td class=\"n ready\">{jobs}</td>")).await;
    }
    let shown = browser.get("/ui/storage").await;
    shown.has(&[&format!("{shop}<td>ready</td><td class=\"n ready\">0</td>")]).has_no(&[">draining<", "Read replica"]);
    browser.get("/ui/").await.has_no(&["closed to new jobs", "cannot be reached"]);

    broker.stores().drain_store(DrainStoreRequest { store: "mail".into() }).await.expect("a closed store");
    let closed = format!("{mail}<td>closed <span class=\"tag\">draining</span>");
    browser.get("/ui/storage").await.has(&[&closed, &format!("{shop}<td>ready</td>")]);
    let notice = "Store mail is closed to new jobs";
    browser.get("/ui/").await.has(&[notice]).has_no(&["Store shop"]);
    let mut worker = broker.worker("t").await;
    let job = worker.next().await;
    assert!(worker.ack(&job).status().await == howdah_proto::v1::SettleStatus::Ok);
    eventually("no job left", async || !browser.get("/ui/storage").await.body.contains(">draining<")).await;
    browser.get("/ui/storage").await.has(&[&format!("{mail}<td>closed")]);
    // The page lists the worker once, in the store that has its type.
    let workers = browser.get("/ui/workers").await.has(&["jobs of store mail"]).has_no(&["jobs of store shop"]);
    assert_eq!(workers.body.matches("0 of 1").count(), 1, "{workers:?}");
}

#[tokio::test]
async fn an_unreachable_store_is_named_and_the_others_are_still_shown() {
    let shop = database().await.empty("page_shop", "").await;
    let (mut cluster, mail) = second_server().await;
    let stores = [("shop", &shop), ("mail", &mail)];
    let broker = TestBroker::on_stores(&stores, |config| config.database_timeout = secs(8)).await;
    let browser = Browser::at(&broker);
    enqueue_at(&broker, "shop", "t").await;
    until_shown(&browser, "/ui/storage", &format!("{}<td>ready</td><td class=\"n ready\">1</td>", row("shop", 0)))
        .await;
    cluster.stop(StopMode::Immediate).await;
    until_shown(&browser, "/ui/", "The database of store mail cannot be reached now").await;
    let away = format!("{}<td><span class=\"tag bad\">unreachable</span></td>", row("mail", 1));
    let shown =
        browser.get("/ui/storage").await.has(&[&away, "its jobs are not known", "<th scope=\"row\">ready</th>"]);
    shown.has(&[&format!("{}<td>ready</td><td class=\"n ready\">1</td>", row("shop", 0))]);
    browser.get("/ui/jobs?type=t").await.has(&["The database of store mail cannot be reached now"]);
    let tables = browser.get("/ui/storage?store=mail").await.has(&["The database of store mail cannot be reached now"]);
    tables.has(&[&away]).has_no(&["<th scope=\"row\">ready</th>"]);
    cluster.restart().await.expect("restart");
    eventually("a store that is back", async || !browser.get("/ui/").await.body.contains("cannot be reached")).await;
}

#[tokio::test]
async fn a_store_that_does_not_answer_in_time_is_said_to_be_missing_from_a_list() {
    let shop = database().await.empty("slow_shop", "").await;
    let (cluster, mail) = second_server().await;
    let broker = TestBroker::on_stores(&[("shop", &shop), ("mail", &mail)], |_| {}).await;
    let browser = Browser::at(&broker);
    let row = |id: i64| format!("/job?id={id}\">");
    let (shops, mails) = (enqueue_at(&broker, "shop", "t").await, enqueue_at(&broker, "mail", "t").await);
    let list = "/ui/jobs?type=t&state=ready";
    browser.get(list).await.has(&[&row(shops), &row(mails)]).has_no(&["has not answered"]);
    signal_postgres(cluster.data_dir(), Signal::STOP);
    let shown = browser.get(list).await;
    signal_postgres(cluster.data_dir(), Signal::CONT);
    shown.has(&[&row(shops), "The database of store mail cannot be reached now."]).has_no(&[&row(mails)]);
    eventually("all of them", async || browser.get(list).await.body.contains(&row(mails))).await;
    browser.get(list).await.has_no(&["has not answered"]);
}

#[tokio::test]
async fn the_only_store_is_not_named() {
    let shop = database().await.empty("only_shop", "").await;
    let broker = TestBroker::on_stores(&[("shop", &shop)], |_| {}).await;
    let shown = Browser::at(&broker).get("/ui/storage").await;
    shown.has(&["Brokers and storage"]).has_no(&["<h2>Stores</h2>", "<th scope=\"col\">Store</th>"]);
}
