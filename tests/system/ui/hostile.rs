//! Tests that the operator page refuses requests from other origins, and oversized or malformed requests.

use howdah_proto::v1::JobState;

use super::client::Browser;
use crate::support::*;

#[tokio::test]
async fn every_answer_forbids_inline_and_foreign_content() {
    let broker = TestBroker::start().await;
    let mut browser = Browser::at(&broker);
    let mut answers = Vec::new();
    for path in ["/ui", "/ui/", "/ui/job?id=1", "/ui/assets/page.css", "/ui/login", "/ui/assets/none"] {
        answers.push(browser.get(path).await);
    }
    answers.push(browser.post_from("/ui/act", &[], &[]).await);
    for page in answers {
        let policy = page.header("content-security-policy");
        assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"), "{page:?}");
        assert!(policy.contains("frame-ancestors 'none'") && policy.contains("form-action 'self'"), "{page:?}");
        assert_eq!(page.header("x-content-type-options"), "nosniff");
        assert_eq!(page.header("referrer-policy"), "same-origin");
        for inline in [" style=", " onclick=", "<style", "javascript:"] {
            assert!(!page.body.contains(inline), "{inline}: {page:?}");
        }
        assert!(page.body.matches("<script").count() == page.body.matches("<script src=\"/ui/assets/").count());
    }
    assert_eq!(browser.get("/ui/").await.header("cache-control"), "no-store");
}

#[tokio::test]
async fn characters_that_turn_text_around_are_written_out() {
    let broker = TestBroker::start().await;
    let id = broker.enqueue(new_job("t", "x\u{2066}").key("a\u{202e}b").delay(HOUR)).await;
    let page = Browser::at(&broker).get(&format!("/ui/job?id={id}")).await;
    page.has(&["a\\u{202e}b", "x\\u{2066}", "<time datetime=", "<span class=\"state scheduled\">"])
        .has_no(&["\u{202e}", "\u{2066}"]);
    // The search field shows the key unescaped, so that the form sends the same key again.
    let page = Browser::at(&broker).get("/ui/jobs?type=t&key=a%E2%80%AEb").await;
    page.has(&["name=\"key\" value=\"a\u{202e}b\"", "<time datetime="]);
}

#[tokio::test]
async fn a_form_from_another_origin_changes_nothing() {
    let broker = TestBroker::start().await;
    let id = broker.enqueue("t").delay(HOUR).await;
    let mut browser = Browser::at(&broker);
    let id_text = id.to_string();
    let form = [("do", "cancel"), ("id", id_text.as_str()), ("sure", "yes")];
    for headers in [
        &[][..],
        &[("Origin", "http://evil.example")],
        &[("Origin", "null"), ("Sec-Fetch-Site", "same-origin")],
        &[("Sec-Fetch-Site", "same-origin")],
        &[("Origin", "http://localhost"), ("Sec-Fetch-Site", "cross-site")],
        &[("Origin", "http://localhost"), ("Sec-Fetch-Site", "same-site")],
        &[("Origin", "http://localhost:1"), ("Sec-Fetch-Site", "same-origin")],
    ] {
        for path in ["/ui/act", "/ui/theme", "/ui/login", "/ui/logout"] {
            let page = browser.post_from(path, &form, headers).await;
            assert_eq!((page.status, page.header("set-cookie")), (403, ""), "{path} {headers:?}");
        }
    }
    assert_eq!(browser.get("/ui/act").await.status, 405, "a GET must change nothing");
    assert_eq!(broker.state(id).await, JobState::Scheduled);
    assert_eq!(browser.post("/ui/act", &form[..2]).await.status, 400, "a change without a confirmation");
    assert_eq!(browser.post("/ui/act", &form).await.status, 303);
}

#[tokio::test]
async fn giant_and_broken_requests_are_refused() {
    let broker = TestBroker::start().await;
    let mut browser = Browser::at(&broker);
    broker.enqueue("t").await;
    let (many, long) = ("a=1&".repeat(2_000), "x".repeat(20_000));
    for path in [
        format!("/ui/jobs?{many}"),
        format!("/ui/jobs?type={long}"),
        format!("/ui/type?name={long}"),
        format!("/ui/job?id={long}"),
        "/ui/job?id=99999999999999999999999".into(),
        "/ui/job?id=-".into(),
        "/ui/jobs?type=t&page=AAAA".into(),
        "/ui/jobs?type=t&page=%00%ff%fe".into(),
        "/ui/jobs?type=t&state=ready&page=".to_owned() + &"A".repeat(500),
        format!("/ui/confirm?do=retry{}", "&id=1".repeat(550)),
        "/ui/types?from=99999999999999999999999".into(),
        "/ui/types?from=-1".into(),
        "/ui/jobs?type=t&key=%00".into(),
    ] {
        let page = browser.get(&path).await;
        assert!([400, 414, 431].contains(&page.status), "{path:.60}: {page:?}");
    }
    browser.get("/ui/types?from=18446744073709551615").await.has(&["No task type fits"]);
    let form = [("do", "retry"), ("id", "1"), ("sure", "yes"), ("reason", &*"x".repeat(1_000))];
    assert_eq!(browser.post("/ui/act", &form).await.status, 400, "a reason that is too long");
    assert_eq!(browser.post("/ui/act", &[("do", &"x".repeat(100_000))]).await.status, 400);
    let negative = [("do", "retry"), ("id", "-5"), ("sure", "yes")];
    assert_eq!(browser.post("/ui/act", &negative).await.leads_to(), "/ui/?done=retry&n=0");
}

#[tokio::test]
async fn a_cursor_of_other_jobs_is_refused() {
    let broker = TestBroker::start().await;
    broker.enqueue_all(vec!["a"; 60]).await;
    broker.enqueue_all(vec!["b"; 60]).await;
    let browser = Browser::at(&broker);
    let next = browser.get("/ui/jobs?type=a&state=ready").await.next_page().expect("a page after it");
    assert_eq!(browser.get(&next).await.status, 200);
    assert_eq!(browser.get(&next.replace("type=a", "type=b")).await.status, 400);
}
