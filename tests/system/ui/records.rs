//! Tests views of other records on the operator page: audit, tokens, brokers, storage.

use super::client::Browser;
use crate::{access::fixture::Guarded, support::*};

async fn revoke(admin: &Service, principal: &str) {
    use howdah_proto::v1::{RevokeTokensRequest, revoke_tokens_request::Selection};
    let request = RevokeTokensRequest { selection: Some(Selection::Principal(principal.into())) };
    with_timeout("an answer", admin.access().revoke_tokens(request)).await.expect("revoked");
}

#[tokio::test]
async fn the_audit_shows_changes_with_reasons_and_is_filtered_by_job_method_and_principal() {
    let broker = TestBroker::start().await;
    let mut browser = Browser::at(&broker);
    browser.get("/ui/audit").await.has(&["No matching entry"]);
    let ids = [broker.enqueue("t").delay(HOUR).await, broker.enqueue("t").delay(HOUR).await];
    for (id, reason) in ids.iter().zip(["ticket <42>", "a mistake"]) {
        let form = [("do", "cancel"), ("id", &*id.to_string()), ("reason", reason), ("sure", "yes")];
        browser.post("/ui/act", &form).await.leads_to();
    }
    browser.post("/ui/act", &[("do", "pause-type"), ("type", "t"), ("sure", "yes")]).await.leads_to();
    let all = browser.get("/ui/audit").await;
    let all = all.has(&["CancelJobs", "UpdateTaskType", "ticket &#60;42&#62;", &format!("/ui/job?id={}\"", ids[0])]);
    assert!(all.body.find("UpdateTaskType").unwrap() < all.body.find("ticket").unwrap(), "the newest is first");
    let path = |id: i64| format!("/ui/audit?id={id}");
    browser.get(&path(ids[0])).await.has(&["ticket"]).has_no(&["a mistake", "UpdateTaskType"]);
    browser.get("/ui/audit?method=CancelJobs").await.has(&["ticket", "a mistake"]).has_no(&[">UpdateTaskType<"]);
    browser.get("/ui/audit?principal=nobody").await.has(&["No matching entry"]);
    for (query, status) in [("page=x", 400), ("method=Nothing", 200), ("id=%00", 400)] {
        assert_eq!(browser.get(&format!("/ui/audit?{query}")).await.status, status, "{query}");
    }
}

#[tokio::test]
async fn the_audit_is_read_page_by_page() {
    let broker = TestBroker::start().await;
    let browser = Browser::at(&broker);
    for n in 0..60 {
        let id = broker.enqueue("t").delay(HOUR).await;
        assert_eq!(broker.cancel(&[id]).await, [id], "{n}");
    }
    let first = browser.get("/ui/audit?method=CancelJobs").await.has(&["rel=\"next\""]);
    let next = first.next_page().expect("a page after it");
    let second = browser.get(&next).await.has(&["CancelJobs"]);
    let rows = |page: &super::client::Page| page.body.matches("<th scope=\"row\">CancelJobs").count();
    assert_eq!((rows(&first), rows(&second), second.next_page()), (50, 10, None));
}

#[tokio::test]
async fn tokens_are_listed_with_their_scopes_and_never_with_what_is_secret() {
    let guarded = Guarded::start().await;
    let admin = guarded.token("boss", &["admin:*", "read:*"]).await;
    let ann = guarded.token("ann", &["enqueue:mail.*", "read:*"]).await;
    let bob = guarded.token("bob", &["work:*"]).await;
    revoke(&guarded.admin, "bob").await;
    let browser = Browser::logged_in(&guarded.broker, &admin).await;
    let now = browser.get("/ui/tokens").await.has(&["ann", "<code>enqueue:mail.*</code>", "by admin", "never"]);
    let now = now.has_no(&["<th scope=\"row\">bob</th>"]);
    let ended = browser.get("/ui/tokens?ended=yes").await.has(&["<th scope=\"row\">bob</th>", "work:*"]);
    for page in [now, ended] {
        for token in [&admin, &ann, &bob] {
            page.clone().has_no(&[token, token.split('_').nth(2).expect("its secret part")]);
        }
    }
    assert_eq!(browser.get("/ui/tokens?page=x").await.status, 400);
}

#[tokio::test]
async fn the_storage_is_shown_with_its_brokers_its_tables_and_who_holds_a_snapshot() {
    let broker = TestBroker::start_with(|config| config.name = "broker-a".into()).await;
    let other = broker.another_with(|config| config.name = "broker-b".into()).await;
    let browser = Browser::at(&broker);
    let shown = browser.get("/ui/storage").await;
    let shown = shown.has(&["broker-a", "broker-b", "answers this page", "lives", "<th scope=\"row\">ready</th>"]);
    let shown = shown.has(&["Notification queue", "Partitions of history"]);
    assert_eq!(
        shown.body.matches("answers this page").count(),
        stores::count(),
        "the answering broker is marked once per store"
    );
    other.stop().await;
    eventually("a page without the stopped broker", async || {
        !browser.get("/ui/storage").await.body.contains("broker-b")
    })
    .await;
    let session = broker.database.connect().await;
    let hold = "SET application_name = '<holder>'; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1";
    session.batch_execute(hold).await.expect(hold);
    // Waits until the page shows all texts at once, because the session with the oldest snapshot may briefly be a running
    // statement.
    browser.until_has("/ui/storage", &["&#60;holder&#62;", "a session", "idle in transaction"]).await;
}

#[tokio::test]
async fn audit_and_tokens_are_hidden_from_readers_and_the_storage_from_readers_of_some_types() {
    let guarded = Guarded::start().await;
    let reader = Browser::logged_in(&guarded.broker, &guarded.token("ann", &["read:*", "operate:*"]).await).await;
    reader.get("/ui/storage").await.has(&["Brokers and storage"]).has_no(&[">Audit<", ">Tokens<"]);
    let one = Browser::logged_in(&guarded.broker, &guarded.token("bob", &["read:mail.*"]).await).await;
    one.get("/ui/").await.has(&["Overview"]).has_no(&[">Audit<", ">Tokens<", ">Storage<"]);
    for (browser, path) in [(&reader, "/ui/audit"), (&reader, "/ui/tokens"), (&one, "/ui/storage")] {
        assert_eq!(browser.get(path).await.status, 403, "{path}");
    }
}
