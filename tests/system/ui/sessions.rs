//! Tests logins to the operator page: a login turns a token into an opaque cookie, which is valid at every broker and
//! ends with the token.

use howdah_proto::v1::{RevokeTokensRequest, revoke_tokens_request::Selection};

use super::client::Browser;
use crate::{access::fixture::Guarded, support::*};

#[tokio::test]
async fn a_visitor_must_log_in_and_then_gets_to_the_requested_page() {
    let guarded = Guarded::start().await;
    let mut browser = Browser::at(&guarded.broker);
    let redirect = browser.get("/ui/jobs?type=a&state=dead").await;
    assert_eq!(redirect.leads_to(), "/ui/login?next=%2Fjobs%3Ftype%3Da%26state%3Ddead");
    let form = browser.get(redirect.leads_to()).await.has(&["type=\"password\"", "Log in"]).has_no(&["<nav"]);
    let next = form.hidden().into_iter().find(|(name, _)| name == "next").expect("where to go").1;
    let token = guarded.token("ann", &["read:*"]).await;
    let begun = browser.post("/ui/login", &[("token", &format!("  {token}\n")), ("next", &next)]).await;
    assert_eq!(begun.leads_to(), "/ui/jobs?type=a&state=dead");
    let cookie = begun.header("set-cookie");
    assert!(
        cookie.starts_with("__Host-howdah=")
            && cookie.ends_with("; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict; Secure")
    );
    assert!(!cookie.contains(&token) && !cookie.contains(token.split('_').nth(2).unwrap()));
    browser.get("/ui/").await.has(&["<span>ann</span>", "Log out"]);
}

#[tokio::test]
async fn a_session_holds_at_every_broker_and_ends_when_its_token_is_revoked() {
    let guarded = Guarded::start().await;
    let other = guarded.another().await;
    let token = guarded.token("ann", &["read:*"]).await;
    let browser = Browser::logged_in(&guarded.broker, &token).await;
    let there = browser.moved_to(&other);
    there.get("/ui/").await.has(&["<span>ann</span>"]);
    let id = token.split('_').nth(1).unwrap().to_owned();
    let revoke = RevokeTokensRequest { selection: Some(Selection::Id(id)) };
    with_timeout("an answer", guarded.admin.access().revoke_tokens(revoke)).await.expect("revoke");
    assert_eq!(browser.get("/ui/").await.leads_to(), "/ui/login");
    eventually("the end at the other broker", async || there.get("/ui/").await.status == 303).await;
}

#[tokio::test]
async fn a_logout_ends_the_session_also_for_copies_of_its_cookie() {
    let guarded = Guarded::start().await;
    let other = guarded.another().await;
    let token = guarded.token("ann", &["read:*"]).await;
    let mut browser = Browser::logged_in(&guarded.broker, &token).await;
    let copies = [browser.moved_to(&guarded.broker), browser.moved_to(&other)];
    copies[1].get("/ui/").await.has(&["<span>ann</span>"]);
    assert_eq!(browser.post("/ui/logout", &[]).await.leads_to(), "/ui/login");
    assert!(browser.cookies.is_empty());
    for browser in [&browser, &copies[0], &copies[1]] {
        assert_eq!(browser.get("/ui/").await.leads_to(), "/ui/login");
    }
    Browser::logged_in(&guarded.broker, &token).await.get("/ui/").await.has(&["<span>ann</span>"]);
}

#[tokio::test]
async fn invalid_tokens_and_cookies_begin_no_session() {
    let guarded = Guarded::start().await;
    let mut browser = Browser::at(&guarded.broker);
    let long = "x".repeat(5_000);
    for (token, status) in
        [("", 401), ("hwd_1_2_3", 401), ("<script>alert(1)</script>", 401), ("a\r\nb: c", 401), (&long, 400)]
    {
        let page = browser.post("/ui/login", &[("token", token)]).await;
        assert_eq!((page.status, page.header("set-cookie")), (status, ""), "{token}");
        assert!(!page.body.contains("<script>alert"), "{page:?}");
    }
    for cookie in ["", "x", &long[..3_000], "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"] {
        browser.cookies.insert("__Host-howdah".into(), cookie.into());
        assert_eq!(browser.get("/ui/").await.leads_to(), "/ui/login", "{cookie}");
    }
}

#[tokio::test]
async fn a_token_is_not_taken_over_a_connection_that_others_can_read() {
    let guarded = Guarded::start().await;
    let token = guarded.token("ann", &["read:*"]).await;
    let mut browser = Browser::at(&guarded.broker);
    browser.host = "10.0.0.1".into();
    let page = browser.post_from("/ui/login", &[("token", &token)], &[("Origin", "http://10.0.0.1")]).await;
    assert_eq!((page.status, page.header("set-cookie")), (403, ""), "{page:?}");
}

#[tokio::test]
async fn a_login_never_redirects_to_another_site() {
    let guarded = Guarded::start().await;
    let token = guarded.token("ann", &["read:*"]).await;
    for next in
        ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)", "/../../x", "/%2e%2e/x"]
    {
        let page = Browser::at(&guarded.broker).post("/ui/login", &[("token", &token), ("next", next)]).await;
        assert_eq!(page.leads_to(), "/ui/", "{next}");
    }
}

#[tokio::test]
async fn a_program_sends_its_token_in_a_header() {
    let guarded = Guarded::start().await;
    let token = guarded.token("ann", &["read:*"]).await;
    let mut browser = Browser::at(&guarded.broker);
    browser.headers.push(("Authorization".into(), format!("Bearer {token}")));
    browser.get("/ui/types").await.has(&["Task types"]);
}

#[tokio::test]
async fn without_authentication_there_is_no_login() {
    let broker = TestBroker::start().await;
    let browser = Browser::at(&broker);
    assert_eq!(browser.get("/ui/login").await.leads_to(), "/ui/");
    browser.get("/ui/").await.has_no(&["Log out"]);
}
