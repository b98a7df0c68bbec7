//! Enqueue over HTTP: `POST /v1/jobs/TYPE` with the payload as the body, or `POST /v1/jobs` with an `EnqueueJobsRequest` as JSON.
//! Requires the setting `http_enqueue`.
//!
//! Requests are converted to protocol messages and then get the same checks and errors as gRPC requests.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{Extension, Path, RawQuery, State, rejection::PathRejection},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::post,
};
use bytes::Bytes;
use howdah_core::error::{Error, http_status};
use howdah_engine::memory::{Account, Memory};
use howdah_proto::{ERROR_DOMAIN, json, v1};
use serde_json::json;

use super::{
    ENQUEUES,
    body::{self, Bounds, too_large},
    job_words::JobWords,
    slots::Slot,
};
use crate::{
    api::{
        self,
        verbs::{EnqueueJobs, Verb as _, enqueue, store_of_http},
    },
    browser,
    stores::SharedStores,
};

/// Time limit for receiving a request body.
pub(crate) const BODY_WITHIN: Duration = Duration::from_secs(30);

/// State of the HTTP routes that enqueue jobs.
#[derive(Clone)]
struct Producer {
    stores: SharedStores,
    /// Memory budget for the request bodies of all clients.
    memory: Arc<Memory>,
    /// Slots for concurrent enqueue requests. A principal gets at most a quarter of them.
    slots: Arc<Memory>,
}

/// The routes.
pub(super) fn routes(stores: SharedStores) -> Router {
    let memory = Memory::new(stores.main().config().limits.received_bytes);
    let producer = Producer { stores, memory, slots: Memory::new(ENQUEUES) };
    Router::new().route("/v1/jobs", post(batch)).route("/v1/jobs/{*task_type}", post(single)).with_state(producer)
}

/// Enqueues one job. The request body is the payload; the query or the headers contain the options of the job.
async fn single(
    State(producer): State<Producer>,
    Extension(slot): Extension<Arc<Slot>>,
    task_type: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let stored = async {
        let Path(task_type) = task_type.map_err(|problem| Error::invalid("task_type", problem.body_text()))?;
        let words = JobWords::parse(query.as_deref().unwrap_or_default(), &headers)?;
        let most = producer.stores.main().cluster().payload_bytes;
        let request_key = words.request_key.clone();
        // `growth` is 2: the payload is in memory twice, in the received body and in the job.
        let stored = producer.enqueue(body, &headers, (&slot, Bounds { most, growth: 2 }), async |payload| {
            let job = words.job(task_type, payload)?;
            Ok((vec![job], request_key))
        });
        // There is only one job, so errors name a field without the prefix `jobs[0]`.
        stored.await.map_err(|error| match error {
            Error::Invalid { field, problem } => {
                let field = field.strip_prefix("jobs[0].").unwrap_or(&field).to_owned();
                Error::Invalid { field, problem }
            }
            other => other,
        })
    };
    match stored.await {
        Ok(jobs) => match jobs.first() {
            Some(job) => answered("EnqueuedJob", job),
            None => failed(&Error::Internal("bug: Postgres returned no id for the job, which may be stored".into())),
        },
        Err(error) => producer.refused(&error),
    }
}

/// Enqueues the jobs of an `EnqueueJobsRequest` in JSON, all in one transaction.
async fn batch(
    State(producer): State<Producer>,
    Extension(slot): Extension<Arc<Slot>>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let most = producer.stores.main().config().limits.message_bytes;
    // `growth` is 16: the decoded jobs take more memory than their JSON.
    let parse = async |body: Bytes| {
        let request: v1::EnqueueJobsRequest = json::read("EnqueueJobsRequest", &body)
            .map_err(|error| Error::invalid("body", format!("is not an EnqueueJobsRequest: {error}")))?;
        Ok((request.jobs, request.request_key))
    };
    match producer.enqueue(body, &headers, (&slot, Bounds { most, growth: 16 }), parse).await {
        Ok(jobs) => answered("EnqueueJobsResponse", &v1::EnqueueJobsResponse { jobs }),
        Err(error) => producer.refused(&error),
    }
}

impl Producer {
    /// Builds the response for an error. Counts and logs the error if it means that the caller was refused.
    fn refused(&self, error: &Error) -> Response {
        self.stores.authenticator().refusals.note_http(error, "/v1/jobs");
        failed(error)
    }

    /// Receives a body within its size and time limits, and enqueues its jobs.
    async fn enqueue(
        &self,
        body: Body,
        headers: &HeaderMap,
        (slot, bounds): (&Arc<Slot>, Bounds),
        jobs: impl AsyncFnOnce(Bytes) -> Result<(Vec<v1::NewJob>, String), Error>,
    ) -> Result<Vec<v1::EnqueuedJob>, Error> {
        let credential = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        let caller = self.stores.authenticator().caller(credential, slot.peer()).await?;
        caller.check_rule(EnqueueJobs::RULE)?;
        browser::refuse(headers)?;
        let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
        if let Some(length) = length
            && length > bounds.most
        {
            return Err(too_large(bounds.most));
        }
        let shares = caller.quota().map(|principal| &principal.shares);
        // The port allows more connections than there are enqueue slots, so that probes can always connect. A connection has
        // one request at a time.
        let sends = shares.map_or_else(Arc::default, |shares| shares.sends.clone());
        let Some(_place) = self.slots.try_take(&sends, 1) else {
            return Err(Error::Unavailable(format!(
                "the limit of {ENQUEUES} concurrent enqueue requests, or of a quarter of it per principal, is reached; try again later"
            )));
        };
        let _kept = slot.keep();
        let account = shares.map_or_else(|| slot.account.clone(), |shares| Account::part_of(&shares.bodies));
        let (body, _room) = body::receive(body, bounds, &self.memory, &account).await?;
        let (mut jobs, request_key) = jobs(body).await?;
        api::give_trace_context(headers, &mut jobs);
        let broker = store_of_http(&self.stores.now(), headers, &caller, &jobs).await?;
        enqueue(broker, caller, jobs, request_key, None).await
    }
}

/// Formats a protocol message as a JSON response.
fn answered(message: &str, value: &impl prost::Message) -> Response {
    match json::write(message, value) {
        Ok(body) => answer(StatusCode::OK, &body),
        Err(error) => failed(&Error::Internal(error.to_string())),
    }
}

fn answer(status: StatusCode, body: &serde_json::Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], format!("{body}\n")).into_response()
}

/// Formats an error as a `google.rpc.Status` in JSON, like the gRPC error.
pub(super) fn failed(error: &Error) -> Response {
    let (code, reason) = error.code();
    let mut details = vec![json!({
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": reason,
        "domain": ERROR_DOMAIN,
    })];
    if let Error::Invalid { field, problem } = error {
        details.push(json!({
            "@type": "type.googleapis.com/google.rpc.BadRequest",
            "fieldViolations": [{ "field": field, "description": problem }],
        }));
    }
    let retry_after = error.retry_after();
    if let Some(wait) = retry_after {
        details.push(json!({
            "@type": "type.googleapis.com/google.rpc.RetryInfo",
            "retryDelay": format!("{:.3}s", wait.as_secs_f64()),
        }));
    }
    let body = json!({ "code": code as i32, "message": error.to_string(), "details": details });
    let mut answer = answer(StatusCode::from_u16(http_status(code)).unwrap_or_default(), &body);
    if let Some(wait) = retry_after {
        // Rounded up to whole seconds, so that the client does not retry too early.
        answer.headers_mut().insert(header::RETRY_AFTER, (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).into());
    }
    answer
}
