//! The fake broker's side of a `StreamEnqueue` stream and of an `EnqueueJobs` call.

use howdah_client::proto::{
    self, EnqueueJobsRequest, EnqueueJobsResponse, EnqueuedJob, StreamEnqueueRequest, StreamEnqueueResponse,
};
use tokio::sync::{mpsc, oneshot};
use tonic::{Status, Streaming};

use super::within;

/// One `StreamEnqueue` stream, from the broker's side.
pub struct Pipeline {
    pub(super) requests: Streaming<StreamEnqueueRequest>,
    pub(super) responses: mpsc::Sender<Result<StreamEnqueueResponse, Status>>,
}

impl Pipeline {
    pub async fn next(&mut self) -> StreamEnqueueRequest {
        within(self.requests.message()).await.unwrap().unwrap()
    }

    /// Asserts that the client has closed the stream.
    pub async fn closed(&mut self) {
        let end = within(self.requests.message()).await;
        assert!(matches!(end, Ok(None)), "not closed: {end:?}");
    }

    /// Answers that the jobs are stored. Their ids are `first` and the following numbers.
    pub async fn store(&self, request: &StreamEnqueueRequest, first: i64, is_new: bool) {
        let ids = first..first + request.jobs.len() as i64;
        let jobs = ids.map(|id| EnqueuedJob { id, is_new, ..EnqueuedJob::default() }).collect();
        self.answer(request, jobs, None).await;
    }

    pub async fn refuse(&self, request: &StreamEnqueueRequest, code: tonic::Code, field: &str) {
        let error = proto::RequestError {
            code: code.into(),
            message: format!("{field} is bad"),
            field: field.into(),
            reason: "INVALID_FIELD".into(),
            ..Default::default()
        };
        self.answer(request, Vec::new(), Some(error)).await;
    }

    async fn answer(&self, request: &StreamEnqueueRequest, jobs: Vec<EnqueuedJob>, error: Option<proto::RequestError>) {
        let answer = StreamEnqueueResponse { sequence: request.sequence, jobs, error };
        within(self.responses.send(Ok(answer))).await.unwrap();
    }

    pub async fn break_off(self, status: Status) {
        within(self.responses.send(Err(status))).await.unwrap();
    }
}

/// One `EnqueueJobs` call. The test answers it.
pub struct EnqueueCall {
    pub request: EnqueueJobsRequest,
    pub(super) reply: oneshot::Sender<Result<EnqueueJobsResponse, Status>>,
}

impl EnqueueCall {
    pub fn store(self, first: i64, is_new: bool) {
        let ids = first..first + self.request.jobs.len() as i64;
        let jobs = ids.map(|id| EnqueuedJob { id, is_new, ..EnqueuedJob::default() }).collect();
        self.reply.send(Ok(EnqueueJobsResponse { jobs })).unwrap();
    }

    pub fn fail(self, status: Status) {
        self.reply.send(Err(status)).unwrap();
    }
}
