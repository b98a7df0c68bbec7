//! `BulkService`: preview, start, pause, resume, cancel, get and list bulk operations.

use howdah_proto::{Rpc, v1};
use tonic::{Request, Response, Status};

use super::{actor::actor, answer, authenticate::caller, check, pace, page_token, pages::Pages, permit, render};
use crate::{
    access::{Caller, Operation},
    broker::SharedBroker,
    error::Error,
    job::{Bulk, BulkSpec, BulkState, TaskTypeName},
    operate::bulk::no_bulk,
    store::Actor,
};

/// Service for operators who change many jobs.
pub(super) struct BulkService {
    broker: SharedBroker,
}

impl BulkService {
    pub(super) fn new(broker: SharedBroker) -> Self {
        Self { broker }
    }

    /// Returns the bulk operation if the caller may do `operation` with its jobs, and otherwise `NOT_FOUND`. A move requires the
    /// right for both task types.
    async fn own(&self, caller: &Caller, operation: Operation, id: i64) -> Result<Bulk, Error> {
        let bulk = self.broker.operator.get_bulk(id).await?;
        let to = bulk.spec.change.to_type().filter(|_| operation == Operation::Operate);
        if ![Some(&bulk.spec.task_type), to]
            .into_iter()
            .flatten()
            .all(|name| permit::may(caller, operation, name.as_str()))
        {
            return Err(no_bulk(id));
        }
        Ok(bulk)
    }

    /// Completes the spec of an undo with the task type of the bulk operation to undo.
    async fn complete(&self, caller: &Caller, spec: Option<v1::BulkSpec>) -> Result<Option<v1::BulkSpec>, Error> {
        let Some(mut spec) = spec else { return Ok(None) };
        if spec.operation() != v1::BulkOperation::Undo || spec.undo_bulk_id <= 0 {
            return Ok(Some(spec));
        }
        let undone = self.own(caller, Operation::Operate, spec.undo_bulk_id).await?.spec.task_type;
        if spec.task_type.is_empty() {
            spec.task_type = undone.to_string();
        } else if spec.task_type != undone.as_str() {
            let problem =
                format!("is not {undone}, the task type of bulk operation {}; leave it out", spec.undo_bulk_id);
            return Err(Error::invalid("spec.task_type", problem));
        }
        Ok(Some(spec))
    }

    /// Checks that the caller may operate the task types of the jobs, before and after the change.
    fn permitted(caller: &Caller, spec: BulkSpec) -> Result<BulkSpec, Error> {
        for task_type in [Some(&spec.task_type), spec.change.to_type()].into_iter().flatten() {
            caller.check(Operation::Operate, task_type)?;
        }
        if let Some(to) = spec.change.to_type() {
            caller.check_reroute(&spec.task_type, to)?;
        }
        Ok(spec)
    }

    async fn change(&self, caller: &Caller, id: i64, to: BulkState, by: &Actor) -> Result<Option<v1::Bulk>, Error> {
        let bulk = self.own(caller, Operation::Operate, id).await?;
        if let (BulkState::Running, Some(target)) = (to, bulk.spec.change.to_type()) {
            caller.check_reroute(&bulk.spec.task_type, target)?;
        }
        Ok(Some(render::bulk(self.broker.operator.change_bulk(&bulk, to, by).await?)))
    }

    /// Page of bulk operations that the caller may read, and the id before which the next page starts.
    async fn visible(&self, caller: &Caller, query: check::BulkQuery) -> Result<(Vec<Bulk>, Option<i64>), Error> {
        let check::BulkQuery { task_type, open_only, page_size, mut before } = query;
        let name = task_type.as_ref().map(TaskTypeName::as_str);
        loop {
            let mut bulks = self.broker.operator.list_bulks(before, name, open_only, page_size).await?;
            let next = bulks.last().filter(|_| bulks.len() >= page_size).map(|last| last.id);
            bulks.retain(|bulk| permit::may(caller, Operation::Read, bulk.spec.task_type.as_str()));
            match next {
                Some(last) if bulks.is_empty() => before = last,
                next => return Ok((bulks, next)),
            }
        }
    }
}

howdah_proto::bulk_service!(BulkService);

impl BulkService {
    pub(super) async fn preview_bulk(
        &self,
        request: Request<v1::PreviewBulkRequest>,
    ) -> Result<Response<v1::PreviewBulkResponse>, Status> {
        let caller = caller(&request)?;
        let room = answer::room(&self.broker.answers, &request, answer::MEDIUM).await?;
        let spec = self.complete(&caller, request.into_inner().spec).await?;
        let spec = Self::permitted(&caller, check::bulk_spec(spec, &self.broker.cluster())?)?;
        let preview = self.broker.operator.preview_bulk(&spec).await?;
        let reads = caller.check(Operation::Read, &spec.task_type).is_ok();
        let entries = preview.examples.len();
        Ok(answer::with_room(render::bulk_preview(&spec, preview, reads), entries, room))
    }

    pub(super) async fn start_bulk(
        &self,
        request: Request<v1::StartBulkRequest>,
    ) -> Result<Response<v1::StartBulkResponse>, Status> {
        let (caller, by) = (caller(&request)?, actor(&self.broker, &request, Rpc::StartBulk)?);
        let mut request = request.into_inner();
        request.spec = self.complete(&caller, request.spec).await?;
        let mut query = check::start_bulk(request, &self.broker.cluster())?;
        query.spec = Self::permitted(&caller, query.spec)?;
        pace::may(&caller)?;
        let bulk = Some(render::bulk(self.broker.operator.start_bulk(&query, &by).await?));
        Ok(Response::new(v1::StartBulkResponse { bulk }))
    }

    pub(super) async fn pause_bulk(
        &self,
        request: Request<v1::PauseBulkRequest>,
    ) -> Result<Response<v1::PauseBulkResponse>, Status> {
        let (caller, by) = (caller(&request)?, actor(&self.broker, &request, Rpc::PauseBulk)?);
        let bulk = self.change(&caller, request.get_ref().id, BulkState::Paused, &by).await?;
        Ok(Response::new(v1::PauseBulkResponse { bulk }))
    }

    pub(super) async fn resume_bulk(
        &self,
        request: Request<v1::ResumeBulkRequest>,
    ) -> Result<Response<v1::ResumeBulkResponse>, Status> {
        let (caller, by) = (caller(&request)?, actor(&self.broker, &request, Rpc::ResumeBulk)?);
        let bulk = self.change(&caller, request.get_ref().id, BulkState::Running, &by).await?;
        Ok(Response::new(v1::ResumeBulkResponse { bulk }))
    }

    pub(super) async fn cancel_bulk(
        &self,
        request: Request<v1::CancelBulkRequest>,
    ) -> Result<Response<v1::CancelBulkResponse>, Status> {
        let (caller, by) = (caller(&request)?, actor(&self.broker, &request, Rpc::CancelBulk)?);
        let bulk = self.change(&caller, request.get_ref().id, BulkState::Cancelled, &by).await?;
        Ok(Response::new(v1::CancelBulkResponse { bulk }))
    }

    pub(super) async fn get_bulk(
        &self,
        request: Request<v1::GetBulkRequest>,
    ) -> Result<Response<v1::GetBulkResponse>, Status> {
        let bulk = self.own(&caller(&request)?, Operation::Read, request.get_ref().id).await?;
        Ok(Response::new(v1::GetBulkResponse { bulk: Some(render::bulk(bulk)) }))
    }

    pub(super) async fn list_bulks(
        &self,
        request: Request<v1::ListBulksRequest>,
    ) -> Result<Response<v1::ListBulksResponse>, Status> {
        let caller = caller(&request)?;
        let room = answer::room(&self.broker.answers, &request, answer::MEDIUM).await?;
        let mut request = request.into_inner();
        let pages = Pages::open(&self.broker.page_token_key, caller.principal(), &mut request)?;
        let query = check::list_bulks(&request)?;
        if let Some(task_type) = &query.task_type {
            caller.check(Operation::Read, task_type)?;
        }
        let (bulks, next) = self.visible(&caller, query).await?;
        let next_page_token = pages.seal(next.map(page_token::encode_bulk));
        let bulks: Vec<_> = bulks.into_iter().map(render::bulk).collect();
        let entries = bulks.len();
        Ok(answer::with_room(v1::ListBulksResponse { bulks, next_page_token }, entries, room))
    }
}
