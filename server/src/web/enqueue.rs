//! Jobs over HTTP: `POST /v1/jobs/TYPE` with the payload as the body, or `POST /v1/jobs` with an `EnqueueJobsRequest`
//! as JSON. Only if `http_enqueue` is on.
//!
//! Requests become messages of the protocol. From there on they get the same checks and errors as gRPC.

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
use howdah_proto::{ERROR_DOMAIN, Rpc, json, v1};
use serde_json::json;

use super::{
    ENQUEUES,
    body::{self, Bounds, too_large},
    job_words::JobWords,
    places::Place,
};
use crate::{
    access::rule,
    api, browser,
    error::{Error, http_status},
    memory::{Account, Memory},
    stores::SharedFleet,
};

/// How long a body may take to arrive.
pub(crate) const BODY_WITHIN: Duration = Duration::from_secs(30);

/// State of the routes.
#[derive(Clone)]
struct Producer {
    fleet: SharedFleet,
    /// Memory for the bodies of all clients.
    memory: Arc<Memory>,
    /// Places for requests, shared as memory is.
    places: Arc<Memory>,
}

/// The routes.
pub(super) fn routes(fleet: SharedFleet) -> Router {
    let memory = Memory::new(fleet.main().config().limits.received_bytes);
    let producer = Producer { fleet, memory, places: Memory::new(ENQUEUES) };
    Router::new().route("/v1/jobs", post(batch)).route("/v1/jobs/{*task_type}", post(single)).with_state(producer)
}

/// One job: its payload is the body, its options are in the query or in headers.
async fn single(
    State(producer): State<Producer>,
    Extension(place): Extension<Arc<Place>>,
    task_type: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let stored = async {
        let Path(task_type) = task_type.map_err(|problem| Error::invalid("task_type", problem.body_text()))?;
        let words = JobWords::of(query.as_deref().unwrap_or_default(), &headers)?;
        let most = producer.fleet.main().cluster().payload_bytes;
        let request_key = words.request_key.clone();
        // Twice its size: once as received, once as a job.
        let stored = producer.enqueue(body, &headers, (&place, Bounds { most, growth: 2 }), async |payload| {
            let job = words.job(task_type, payload)?;
            Ok((vec![job], request_key))
        });
        // There is only one job, so the field is not `jobs[0]`.
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
            None => failed(&Error::Internal("the store returned no id for the job".into())),
        },
        Err(error) => producer.refused(&error),
    }
}

/// Several jobs, all or none.
async fn batch(
    State(producer): State<Producer>,
    Extension(place): Extension<Arc<Place>>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let most = producer.fleet.main().config().limits.message_bytes;
    // JSON takes less memory than the messages that it becomes.
    let parse = async |body: Bytes| {
        let request: v1::EnqueueJobsRequest = json::read("EnqueueJobsRequest", &body)
            .map_err(|error| Error::invalid("body", format!("is not an EnqueueJobsRequest: {error}")))?;
        Ok((request.jobs, request.request_key))
    };
    match producer.enqueue(body, &headers, (&place, Bounds { most, growth: 16 }), parse).await {
        Ok(jobs) => answered("EnqueueJobsResponse", &v1::EnqueueJobsResponse { jobs }),
        Err(error) => producer.refused(&error),
    }
}

impl Producer {
    /// The answer with an error, which is noted if it refuses the caller.
    fn refused(&self, error: &Error) -> Response {
        self.fleet.main().access.refusals.note_http(error, "/v1/jobs");
        failed(error)
    }

    /// Receives a body within its bounds, and stores the jobs made of it.
    async fn enqueue(
        &self,
        body: Body,
        headers: &HeaderMap,
        (place, bounds): (&Arc<Place>, Bounds),
        jobs: impl AsyncFnOnce(Bytes) -> Result<(Vec<v1::NewJob>, String), Error>,
    ) -> Result<Vec<v1::EnqueuedJob>, Error> {
        let credential = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        let caller = self.fleet.main().access.caller(credential, place.peer()).await?;
        caller.check_rule(rule(Rpc::EnqueueJobs))?;
        browser::refuse(headers)?;
        let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
        if let Some(length) = length
            && length > bounds.most
        {
            return Err(too_large(bounds.most));
        }
        let shares = caller.quota().map(|principal| &principal.shares);
        // The other connections are for probes. A connection has one request at a time.
        let sends = shares.map_or_else(Arc::default, |shares| shares.sends.clone());
        let Some(_place) = self.places.try_take(&sends, 1) else {
            return Err(Error::Unavailable(format!(
                "{ENQUEUES} requests send jobs already, or a quarter of them are of this principal; try again later"
            )));
        };
        let _kept = place.keep();
        let account = shares.map_or_else(|| place.account.clone(), |shares| Account::part_of(&shares.bodies));
        let (body, _room) = body::receive(body, bounds, &self.memory, &account).await?;
        let (mut jobs, request_key) = jobs(body).await?;
        api::give_trace_context(headers, &mut jobs);
        let broker = api::fleet::store_of_http(&self.fleet, headers, &caller, &jobs).await?;
        api::enqueue(broker, caller, jobs, request_key, None).await
    }
}

/// A message of the protocol as JSON.
fn answered(message: &str, value: &impl prost::Message) -> Response {
    match json::write(message, value) {
        Ok(body) => answer(StatusCode::OK, &body),
        Err(error) => failed(&Error::Internal(error.to_string())),
    }
}

fn answer(status: StatusCode, body: &serde_json::Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], format!("{body}\n")).into_response()
}

/// The error as a `google.rpc.Status` in JSON, as gRPC would return it.
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
        // Whole seconds, and not too early.
        answer.headers_mut().insert(header::RETRY_AFTER, (wait.as_secs() + 1).into());
    }
    answer
}
