//! Sends each job to a URL as an HTTP request. The payload is the body of the request, and the body of the answer is the result.
//!
//! - `address`: allowed addresses and redirects
//! - `sign`: signatures of requests
//! - this module: a request, and the conversion of its answer to an outcome

mod address;
mod sign;

#[cfg(test)]
mod tests;

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use howdah_client::{Job, Outcome};
use howdah_core::error;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{
    Client, Method, Request, Response, StatusCode, Url,
    header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER},
    redirect::Policy,
};

pub use self::sign::Secret;
use super::attempt::{Attempt, MAX_RESULT_BYTES, succeeded};

/// Maximum bytes of an answer in an error.
const ERROR_BYTES: usize = 4 << 10;
/// Time limit for the DNS lookup, the TCP connection and the TLS handshake together.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// Header of an answer that names the next stage of the job.
const NEXT_STAGE: HeaderName = HeaderName::from_static("howdah-next-stage");
/// Maximum delay of `Retry-After`.
const LATEST: Duration = Duration::from_hours(365 * 24);

/// Target and settings of the requests.
#[derive(Clone, Debug)]
pub struct Target {
    /// URL with the scheme `http` or `https`.
    pub url: Url,
    /// HTTP method, usually POST.
    pub method: Method,
    /// Headers of each request.
    pub headers: HeaderMap,
    /// Secret that signs requests.
    pub secret: Option<Secret>,
    /// Time limit for a request with its answer, including redirects.
    pub timeout: Duration,
    /// Whether private, loopback and link-local addresses are allowed.
    pub allow_private: bool,
    /// Maximum number of idle connections.
    pub idle_connections: usize,
}

/// Worker that sends a request for each job.
#[derive(Debug)]
pub struct Post {
    target: Target,
    client: Client,
}

impl Post {
    /// Creates a worker. Fails if the scheme or the address of the URL is not allowed.
    pub fn new(target: Target) -> Result<Self, String> {
        address::check(&target.url, target.allow_private)?;
        let client = client(&target)?;
        Ok(Self { target, client })
    }

    /// Runs one job. If the attempt is stopped, the connection is closed immediately.
    pub async fn run(&self, attempt: &Attempt) -> Outcome {
        tokio::select! {
            biased;
            () = attempt.stopped() => Outcome::release(),
            answer = self.answer(&attempt.job) => match answer {
                Ok(outcome) => outcome,
                Err(problem) => Outcome::retry(problem),
            }
        }
    }

    /// Sends the request, follows redirects, and reads the final answer. One time limit applies to all requests together.
    async fn answer(&self, job: &Job) -> Result<Outcome, String> {
        let until = Instant::now() + self.target.timeout;
        let mut url = self.target.url.clone();
        let mut redirects = 0;
        loop {
            let mut request = self.request(job, url.clone(), SystemTime::now());
            *request.timeout_mut() = Some(until.saturating_duration_since(Instant::now()));
            let answer = self.client.execute(request).await.map_err(describe)?;
            match address::redirect(&url, answer.status(), answer.headers(), redirects, self.target.allow_private)? {
                Some(to) => url = to,
                None => return Ok(outcome(answer).await),
            }
            redirects += 1;
        }
    }

    fn request(&self, job: &Job, url: Url, now: SystemTime) -> Request {
        let is_own = url.origin() == self.target.url.origin();
        let mut request = Request::new(self.target.method.clone(), url);
        let headers = request.headers_mut();
        add_job_headers(headers, job);
        if is_own {
            headers.extend(self.target.headers.clone());
        }
        headers.insert("howdah-job-id", job.id.into());
        if let Ok(task_type) = HeaderValue::from_str(&job.task_type) {
            headers.insert("howdah-task-type", task_type);
        }
        headers.insert("howdah-attempt", job.attempt.into());
        headers.insert("howdah-max-attempts", job.max_attempts.into());
        if let Some(secret) = self.target.secret.as_ref().filter(|_| is_own) {
            let timestamp = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            headers.insert("howdah-timestamp", timestamp.into());
            if let Ok(signature) = HeaderValue::from_str(&secret.sign(&request, &job.payload)) {
                request.headers_mut().insert(sign::SIGNATURE, signature);
            }
        }
        *request.body_mut() = Some(job.payload.clone().into());
        request
    }
}

/// Creates the HTTP client. It does not follow redirects, because each hop is checked and signed as a separate request.
fn client(target: &Target) -> Result<Client, String> {
    Client::builder()
        .user_agent(concat!("howdah/", env!("CARGO_PKG_VERSION")))
        // A proxy would bypass the check of addresses.
        .no_proxy()
        .dns_resolver(Arc::new(address::Resolver { allow_private: target.allow_private }))
        .redirect(Policy::none())
        .connect_timeout(CONNECT_WITHIN)
        .pool_max_idle_per_host(target.idle_connections)
        .build()
        .map_err(describe)
}

/// Adds the headers, tags and trace context of the job.
fn add_job_headers(headers: &mut HeaderMap, job: &Job) {
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    for (name, value) in &job.headers {
        // Headers that are invalid in HTTP are omitted.
        if let (Some(name), Ok(value)) = (header_name(name), HeaderValue::from_str(value)) {
            headers.insert(name, value);
        }
    }
    // All tags are in one header, because proxies may join several headers with the same name.
    let tags: Vec<String> = job.tags.iter().map(|tag| utf8_percent_encode(tag, NON_ALPHANUMERIC).to_string()).collect();
    if let (false, Ok(value)) = (tags.is_empty(), HeaderValue::from_str(&tags.join(","))) {
        headers.insert(HeaderName::from_static("howdah-tags"), value);
    }
    for (name, value) in [("traceparent", &job.traceparent), ("tracestate", &job.tracestate)] {
        if let (false, Ok(value)) = (value.is_empty(), HeaderValue::from_str(value)) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
}

/// Returns the name of a job's header in the request. `content-type` is kept. Other headers get a prefix, so that they cannot be
/// confused with headers of the worker.
fn header_name(name: &str) -> Option<HeaderName> {
    if name.eq_ignore_ascii_case("content-type") {
        return Some(CONTENT_TYPE);
    }
    HeaderName::try_from(format!("howdah-header-{name}")).ok()
}

/// Converts an answer to an outcome.
async fn outcome(response: Response) -> Outcome {
    let status = response.status();
    let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| wait(value, SystemTime::now()));
    if status.is_success() {
        let stage =
            response.headers().get(NEXT_STAGE).map(|stage| String::from_utf8_lossy(stage.as_bytes()).into_owned());
        return match body(response, MAX_RESULT_BYTES).await {
            Ok((result, true)) => succeeded(result, stage),
            Ok((_, false)) => Outcome::fail(format!(
                "the answer ({status}) has more than {MAX_RESULT_BYTES} bytes, the maximum size of a result"
            )),
            Err(error) => Outcome::retry(format!("the answer ({status}) broke off: {error}")),
        };
    }
    let (text, _) = body(response, ERROR_BYTES).await.unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let error = match text.trim() {
        "" => status.to_string(),
        text => format!("{status}: {text}"),
    };
    match retry_after {
        _ if is_final(status) => Outcome::fail(error),
        Some(delay) => Outcome::retry_after(error, delay),
        None => Outcome::retry(error),
    }
}

/// Returns whether the status means that a retry would be refused too, so that the job fails for good.
fn is_final(status: StatusCode) -> bool {
    use StatusCode as Status;
    status.is_client_error()
        && !matches!(status, Status::REQUEST_TIMEOUT | Status::TOO_EARLY | Status::TOO_MANY_REQUESTS)
}

/// Parses `Retry-After`: seconds or a date.
fn wait(value: &HeaderValue, now: SystemTime) -> Option<Duration> {
    let text = value.to_str().ok()?.trim();
    let wait = match text.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => httpdate::parse_http_date(text).ok()?.duration_since(now).unwrap_or_default(),
    };
    Some(wait.min(LATEST))
}

/// Reads at most this many bytes of the body. Also returns whether that is the complete body.
async fn body(mut response: Response, most: usize) -> Result<(Bytes, bool), String> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(describe)? {
        body.extend_from_slice(&chunk);
        if body.len() > most {
            body.truncate(most);
            return Ok((body.into(), false));
        }
    }
    Ok((body.into(), true))
}

/// Formats an error with its causes, without the URL, which may contain credentials.
fn describe(error: reqwest::Error) -> String {
    let (is_timeout, text) = (error.is_timeout(), error::describe(&error.without_url()));
    if is_timeout { format!("no answer in time: {text}") } else { text }
}
