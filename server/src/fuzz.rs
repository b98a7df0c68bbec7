//! Entry points for the fuzzers in `fuzz/`. Each function takes untrusted input and must neither panic nor take long.

use std::sync::LazyLock;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use bytes::Bytes;
use howdah_core::{
    config::{Dsn, redacted},
    job::{ClusterSettings, schedule::PlanText},
};
use howdah_engine::access::{Scope, Token};
use howdah_proto::{json, v1};
use tokio::runtime::{Builder, Runtime};

use crate::{
    api::{
        check_jobs, check_schedule, receive,
        verbs::{check_all, page_token::open_page_token},
    },
    credentials::jwt,
    web::words_of_job,
};

const LIMITS: ClusterSettings = ClusterSettings::DEFAULT;

/// Decodes the bytes as each request type in turn, and validates the decoded request.
pub fn requests(bytes: &[u8]) {
    for error in check_all(bytes) {
        assert!(error.field().is_some(), "{error}");
        assert!(error.to_string().len() < 2_000, "{error}");
    }
}

/// Receives a request body in chunks, with one message or a stream of messages.
pub fn received(chunks: Vec<Vec<u8>>, is_stream: bool) {
    static RUNTIME: LazyLock<Option<Runtime>> =
        LazyLock::new(|| Builder::new_current_thread().enable_time().build().ok());
    let chunks = chunks.into_iter().map(Bytes::from).collect();
    let ended = RUNTIME.as_ref().map(|runtime| runtime.block_on(receive::fuzz::receive(chunks, is_stream)));
    assert!(ended.is_some(), "a runtime");
}

/// Parses the text as a Howdah token and as a scope. A parsed value formatted as text must equal the input.
pub fn tokens(text: &str) {
    if let Ok(token) = Token::parse(text) {
        assert_eq!(token.secret(), text);
    }
    if let Ok(scope) = Scope::parse(text) {
        assert_eq!(scope.to_string(), text);
    }
}

/// Parses the text as a JSON Web Token, and as lines with a token's header, its claims and a key set.
pub fn jwt(text: &str) {
    jwt::read_for_fuzzers(text);
}

/// Parses a page token.
pub fn page_tokens(text: &str) {
    open_page_token(text);
}

/// Parses a cron expression and, on the second line, a time zone. Each planned time must be later than the one before.
pub fn schedules(text: &str) {
    let (expression, time_zone) = text.split_once('\n').unwrap_or((text, "UTC"));
    let plan = PlanText::Cron { expression: expression.into(), time_zone: time_zone.into() };
    let cron = v1::Cron { expression: expression.into(), time_zone: time_zone.into() };
    let schedule = v1::Schedule {
        name: "fuzz".into(),
        plan: Some(v1::schedule::Plan::Cron(cron)),
        template: Some(v1::NewJob { task_type: "fuzz".into(), ..Default::default() }),
        ..Default::default()
    };
    let _ = check_schedule(schedule, &LIMITS);
    if let Ok(plan) = plan.parse() {
        let mut after = 1_700_000_000_000_000;
        for _ in 0..3 {
            let Some(next) = plan.next_after(0, after) else { break };
            assert!(next > after, "{next} is not after {after}");
            after = next;
        }
    }
}

/// Parses a connection string and hides its password. The redacted string must not contain the password.
pub fn dsn(text: &str) {
    let _ = redacted(text);
    if let Ok(dsn) = Dsn::parse(text)
        && let Some(password) = dsn.config.get_password().and_then(|password| std::str::from_utf8(password).ok())
        && password.len() > 8
        // Checks only alphanumeric passwords, because others may have several spellings, such as escapes.
        && password.chars().all(char::is_alphanumeric)
    {
        // The redacted string may contain the password's letters in another part, such as the host. Backslashes are
        // removed first, because the redacted string has none.
        let elsewhere = text.replace('\\', "").replacen(password, "", 1).contains(password);
        assert!(elsewhere || !redacted(text).contains(password), "{:?}", redacted(text));
    }
}

/// Parses the body of `POST /v1/jobs`, and the options of one job: a query on the first line, then one header per line.
pub fn http(bytes: &[u8]) {
    if let Ok(request) = json::read::<v1::EnqueueJobsRequest>("EnqueueJobsRequest", bytes) {
        let _ = check_jobs(request.jobs, &LIMITS);
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let mut lines = text.lines();
    let query = lines.next().unwrap_or_default();
    let mut headers = HeaderMap::new();
    for (name, value) in lines.filter_map(|line| line.split_once(':')).take(100) {
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(value)) {
            headers.append(name, value);
        }
    }
    if let Ok(job) = words_of_job(query, &headers) {
        let _ = check_jobs(vec![job], &LIMITS);
    }
}
