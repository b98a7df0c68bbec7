//! `TaskTypeService`: job counts, settings, limit keys and statistics of task types.

use std::time::Duration;

use howdah_proto::{Rpc, v1};
use tonic::{Request, Response, Status};

use super::{
    actor::actor,
    answer,
    authenticate::caller,
    check, page_token,
    pages::{Paged, Pages},
    permit, render,
};
use crate::{
    access::{Caller, Operation},
    broker::SharedBroker,
    error::Error,
    job::TypeView,
    store::LimitKeyView,
};

/// Service for operators.
pub(super) struct TaskTypeService {
    broker: SharedBroker,
}

impl TaskTypeService {
    pub(super) fn new(broker: SharedBroker) -> Self {
        Self { broker }
    }

    fn pages(&self, caller: &Caller, request: &mut impl Paged) -> Result<Pages, Status> {
        Ok(Pages::open(&self.broker.page_token_key, caller.principal(), request)?)
    }

    /// Page of the types that the caller may read, the last name if there are more, and the age of the counts. The page ends with
    /// a type that the caller may read, because the token of the next page contains its name.
    async fn visible(
        &self,
        caller: &Caller,
        query: check::type_query::TypesQuery,
    ) -> Result<(Vec<TypeView>, Option<String>, Option<Duration>), Error> {
        let check::type_query::TypesQuery { mut after, page_size, only, last_count } = query;
        let all = caller.may_everywhere(Operation::Read);
        let read = if all { page_size } else { check::type_query::MAX_PAGE };
        loop {
            let operator = &self.broker.operator;
            let (mut types, age) = if last_count {
                operator.list_counted_types(after, read, only.clone()).await?
            } else {
                (operator.list_task_types(after, read, only.clone()).await?, None)
            };
            // A full page may be followed by another one.
            let last = types.last().filter(|_| types.len() >= read).map(|view| view.name.clone());
            types.retain(|view| permit::may(caller, Operation::Read, &view.name));
            let more = last.is_some() || types.len() > page_size;
            types.truncate(page_size);
            match (last, types.last()) {
                (Some(last), None) => after = last,
                (_, end) => {
                    let next = end.filter(|_| more).map(|view| page_token::encode_name(&view.name));
                    return Ok((types, next, age));
                }
            }
        }
    }
}

howdah_proto::task_type_service!(TaskTypeService);

impl TaskTypeService {
    pub(super) async fn list_task_types(
        &self,
        request: Request<v1::ListTaskTypesRequest>,
    ) -> Result<Response<v1::ListTaskTypesResponse>, Status> {
        let caller = caller(&request)?;
        let room = answer::room(&self.broker.answers, &request, answer::MEDIUM).await?;
        let mut request = request.into_inner();
        let pages = self.pages(&caller, &mut request)?;
        let query = check::list_task_types(&request)?;
        let one = query.only.is_some();
        let everything = query.after.is_empty() && !one && !query.last_count;
        if let Some(only) = &query.only {
            caller.check(Operation::Read, only)?;
        }
        let everything = everything && caller.may_everywhere(Operation::Read);
        let storage = if everything { self.broker.operator.storage_health().await } else { None };
        let (types, next, age) = self.visible(&caller, query).await?;
        let next_page_token = pages.seal(next.filter(|_| !one));
        let task_types: Vec<_> = types.into_iter().map(render::task_type).collect();
        let storage = storage.map(render::storage_health);
        let entries = task_types.len();
        let answer =
            v1::ListTaskTypesResponse { task_types, next_page_token, storage, count_age: age.map(render::duration) };
        Ok(answer::with_room(answer, entries, room))
    }

    pub(super) async fn update_task_type(
        &self,
        request: Request<v1::UpdateTaskTypeRequest>,
    ) -> Result<Response<v1::UpdateTaskTypeResponse>, Status> {
        let by = actor(&self.broker, &request, Rpc::UpdateTaskType)?;
        let (name, settings) = check::update_task_type(request.get_ref(), &self.broker.cluster())?;
        let caller = caller(&request)?;
        caller.check(Operation::Operate, &name)?;
        if let Some(to) = &settings.fallback
            && let Err(denied) = caller.check_reroute(&name, to)
            // A fallback that the caller may not set may stay unchanged.
            && self.broker.operator.type_settings(&name).await?.and_then(|now| now.fallback).as_ref() != Some(to)
        {
            return Err(denied.into());
        }
        let answer = Some(render::settings(&settings));
        self.broker.operator.update_task_type(name, settings, &by).await?;
        Ok(Response::new(v1::UpdateTaskTypeResponse { settings: answer }))
    }

    pub(super) async fn pause_limit_key(
        &self,
        request: Request<v1::PauseLimitKeyRequest>,
    ) -> Result<Response<v1::PauseLimitKeyResponse>, Status> {
        let (caller, by) = (caller(&request)?, actor(&self.broker, &request, Rpc::PauseLimitKey)?);
        let pause = check::pause_limit_key(request.into_inner(), &self.broker.cluster())?;
        caller.check(Operation::Operate, &pause.task_type)?;
        self.broker.operator.pause_limit_key(pause.task_type, &pause.key, pause.duration, &by).await?;
        Ok(Response::new(v1::PauseLimitKeyResponse {}))
    }

    pub(super) async fn resume_limit_key(
        &self,
        request: Request<v1::ResumeLimitKeyRequest>,
    ) -> Result<Response<v1::ResumeLimitKeyResponse>, Status> {
        let (caller, by) = (caller(&request)?, actor(&self.broker, &request, Rpc::ResumeLimitKey)?);
        let (task_type, key) = check::resume_limit_key(request.into_inner(), &self.broker.cluster())?;
        caller.check(Operation::Operate, &task_type)?;
        self.broker.operator.resume_limit_key(&task_type, &key, &by).await?;
        Ok(Response::new(v1::ResumeLimitKeyResponse {}))
    }

    pub(super) async fn list_limit_keys(
        &self,
        request: Request<v1::ListLimitKeysRequest>,
    ) -> Result<Response<v1::ListLimitKeysResponse>, Status> {
        let caller = caller(&request)?;
        let room = answer::room(&self.broker.answers, &request, answer::MEDIUM).await?;
        let mut request = request.into_inner();
        let pages = self.pages(&caller, &mut request)?;
        let (task_type, after, page_size) = check::list_limit_keys(&request)?;
        caller.check(Operation::Read, &task_type)?;
        let keys = self.broker.operator.list_limit_keys(&task_type, &after, page_size).await?;
        let next_page_token = pages.seal(next_key_page(&keys, page_size));
        let limit_keys: Vec<_> = keys.into_iter().map(render::limit_key).collect();
        let entries = limit_keys.len();
        Ok(answer::with_room(v1::ListLimitKeysResponse { limit_keys, next_page_token }, entries, room))
    }

    pub(super) async fn get_stats(
        &self,
        request: Request<v1::GetStatsRequest>,
    ) -> Result<Response<v1::GetStatsResponse>, Status> {
        let caller = caller(&request)?;
        let room = answer::room(&self.broker.answers, &request, answer::MEDIUM).await?;
        let query = check::get_stats(request.get_ref())?;
        permit::one_or_all(&caller, Operation::Read, query.only.as_ref())?;
        let operator = &self.broker.operator;
        // Read first, so that the response includes everything counted until then.
        let complete_time = operator.stats_until().await?.map(render::time);
        let rows = match &query.only {
            Some(name) => operator.stats_of_type(name, query.range).await?,
            None => operator.stats_by_type(query.range, query.limit).await?,
        };
        let stats: Vec<_> = rows.into_iter().map(render::stats).collect();
        let entries = stats.len();
        Ok(answer::with_room(v1::GetStatsResponse { stats, complete_time }, entries, room))
    }
}

fn next_key_page(keys: &[LimitKeyView], page_size: usize) -> Option<String> {
    let last = keys.last().filter(|_| keys.len() >= page_size)?;
    Some(page_token::encode_limit_key(&last.key))
}
