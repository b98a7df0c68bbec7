//! Enqueues a single job, with statements that Postgres executes with less fixed cost than the statements for batches.

use std::{borrow::Cow, collections::HashMap};

use howdah_core::job::JobOptions;
use postgres_types::Json;

use super::{
    connection::Param,
    enqueue::{OneRequest, PlainJob, RequestKeys},
};

/// Parameters of a single job.
pub(super) struct OneJob<'a> {
    job: PlainJob<'a>,
    timeout_ms: Option<i64>,
    headers: Option<Json<&'a HashMap<String, String>>>,
    options: Option<Json<Cow<'a, JobOptions>>>,
    payload: &'a [u8],
    request: OneRequest<'a>,
}

impl<'a> OneJob<'a> {
    /// Returns the parameters if there is exactly one job and its payload is stored inline.
    pub(super) fn new(jobs: &[PlainJob<'a>], requests: &RequestKeys<'a>) -> Option<Self> {
        let &[job] = jobs else { return None };
        if job.out_of_line {
            return None;
        }
        let request = requests.of_one()?;
        Some(Self {
            job,
            timeout_ms: job.job.timeout.map(|timeout| timeout.as_millis() as i64),
            headers: (!job.job.headers.is_empty()).then_some(Json(&job.job.headers)),
            options: job.options(),
            payload: job.payload(),
            request,
        })
    }

    pub(super) fn params(&self) -> [Param<'_>; 10] {
        [
            &self.job.type_id,
            &self.job.rank_base,
            &self.job.job.priority,
            &self.job.max_attempts,
            &self.timeout_ms,
            &self.headers,
            &self.options,
            &self.payload,
            &self.request.key,
            &self.request.body_hash,
        ]
    }
}
