//! Calls for operators who change many jobs in the background. A bulk operation runs in one store: the home of its task type,
//! unless the call names another.

use howdah_core::job::{Bulk, BulkPreview, BulkSpec, BulkState, JobState, JobView, TaskTypeName};
use howdah_engine::{
    broker::SharedBroker,
    operate::bulk::{StartBulkQuery, expected, no_bulk},
};
use tonic::Status;

use crate::{
    api::{pace, verbs::prelude::*},
    stores::ConfiguredStore,
};

pub(crate) mod spec;

/// Returns the bulk operation. Fails with `NOT_FOUND` if the caller does not have the permission `operation` for its task type.
/// If the bulk operation moves jobs, `Operation::Operate` is required for both task types.
async fn own(call: &Call, operation: Operation, id: i64) -> Result<Bulk, Error> {
    let bulk = call.broker.operator.get_bulk(id).await?;
    let may = |name: &TaskTypeName| permit::may(&call.caller, operation, name.as_str());
    let to = bulk.spec.change.to_type().filter(|_| operation == Operation::Operate);
    let is_own = may(&bulk.spec.task_type) && to.is_none_or(may);
    if is_own { Ok(bulk) } else { Err(no_bulk(id)) }
}

/// Fills in the task type of an undo, from the bulk operation that it undoes.
async fn complete(call: &Call, spec: Option<v1::BulkSpec>) -> Result<Option<v1::BulkSpec>, Error> {
    let Some(mut spec) = spec else { return Ok(None) };
    if spec.operation() != v1::BulkOperation::Undo || spec.undo_bulk_id <= 0 {
        return Ok(Some(spec));
    }
    let undone = own(call, Operation::Operate, spec.undo_bulk_id).await?.spec.task_type;
    if spec.task_type.is_empty() {
        spec.task_type = undone.to_string();
    } else if spec.task_type != undone.as_str() {
        let problem = format!("is not {undone}, the task type of bulk operation {}; leave it out", spec.undo_bulk_id);
        return Err(Error::invalid("spec.task_type", problem));
    }
    Ok(Some(spec))
}

/// Checks that the caller may operate the task types that the jobs have before and after the bulk operation.
fn permitted(caller: &Caller, spec: &BulkSpec) -> Result<(), Error> {
    for task_type in [Some(&spec.task_type), spec.change.to_type()].into_iter().flatten() {
        caller.check(Operation::Operate, task_type)?;
    }
    match spec.change.to_type() {
        Some(to) => caller.check_reroute(&spec.task_type, to),
        None => Ok(()),
    }
}

/// Finds the store of a bulk operation by its id. If two stores use the id, the call must name the store.
async fn of_bulk(call: &Call, id: i64) -> Result<&SharedBroker, Status> {
    if let Some(broker) = call.named_broker()? {
        return Ok(broker);
    }
    let mut found: Vec<&ConfiguredStore> = Vec::new();
    for store in call.stores.all() {
        let broker = store.served()?.reachable()?;
        // Skips bulk operations that the caller may not read, as if they did not exist.
        match own(&call.at(broker), Operation::Read, id).await {
            Ok(_) => found.push(store),
            Err(Error::NotFound(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(call.only_found(&found, "id", &format!("is {id}, the id of a bulk operation"))?)
}

/// Returns the broker of the store in which a bulk operation with this spec runs.
async fn of_spec<'a>(call: &'a Call, spec: Option<&v1::BulkSpec>) -> Result<&'a SharedBroker, Status> {
    match spec {
        // An undo runs in the store of the bulk operation that it undoes.
        Some(spec) if spec.undo_bulk_id != 0 => of_bulk(call, spec.undo_bulk_id).await,
        spec => Ok(call.named_or_home(spec.map_or("", |spec| &spec.task_type)).await?),
    }
}

/// Runs a verb in a store, and writes the name of the store to the bulk operation in its response.
async fn in_store<V: Verb>(
    call: &Call,
    broker: &SharedBroker,
    request: V::Request,
    bulk: impl Fn(&mut V::Response) -> &mut Option<v1::Bulk>,
) -> Answer<V> {
    let mut answer = call.in_store::<V>(broker, request).await?;
    if let Some(bulk) = bulk(answer.get_mut()) {
        call.stores.name_of(broker).unwrap_or_default().clone_into(&mut bulk.store);
    }
    Ok(answer)
}

impl Verb for StartBulk {
    const RULE: Rule = Rule::Types(Operation::Operate);

    type Args = v1::StartBulkRequest;

    /// Checks nothing. `run` checks the request after [`complete`] has filled in the task type of an undo.
    fn check(request: v1::StartBulkRequest, _: &ClusterSettings, _: &Limits) -> Result<Self::Args, Error> {
        Ok(request)
    }

    async fn run(call: &mut Call, mut request: v1::StartBulkRequest) -> Result<v1::StartBulkResponse, Error> {
        let by = call.by()?;
        request.spec = complete(call, request.spec).await?;
        let query = check(request, &call.broker.cluster())?;
        permitted(&call.caller, &query.spec)?;
        pace::may(&call.caller)?;
        let bulk = Some(spec::render(call.broker.operator.start_bulk(&query, &by).await?));
        Ok(v1::StartBulkResponse { bulk })
    }

    async fn route(call: &Call, request: v1::StartBulkRequest) -> Answer<Self> {
        let broker = of_spec(call, request.spec.as_ref()).await?;
        in_store::<Self>(call, broker, request, |answer| &mut answer.bulk).await
    }
}

/// Checks a request to start a bulk operation. The task type of an undo must be filled in already.
pub(in crate::api::verbs) fn check(
    request: v1::StartBulkRequest,
    cluster: &ClusterSettings,
) -> Result<StartBulkQuery, Error> {
    let spec = spec::check(request.spec, cluster)?;
    let request_key = text::optional("request_key", request.request_key, cluster.key_bytes)?;
    Ok(StartBulkQuery { spec, request_key })
}

impl Verb for PreviewBulk {
    const RULE: Rule = Rule::Types(Operation::Operate);
    const READS: bool = true;
    const ANSWER_BYTES: usize = answer::MEDIUM;

    type Args = Option<v1::BulkSpec>;

    /// Checks nothing. `run` checks the spec after [`complete`] has filled in the task type of an undo.
    fn check(request: v1::PreviewBulkRequest, _: &ClusterSettings, _: &Limits) -> Result<Self::Args, Error> {
        Ok(request.spec)
    }

    async fn run(call: &mut Call, spec: Self::Args) -> Result<v1::PreviewBulkResponse, Error> {
        let spec = spec::check(complete(call, spec).await?, &call.broker.cluster())?;
        permitted(&call.caller, &spec)?;
        let preview = call.broker.operator.preview_bulk(&spec).await?;
        let reads = call.caller.check(Operation::Read, &spec.task_type).is_ok();
        Ok(shown(&spec, preview, reads))
    }

    async fn route(call: &Call, request: v1::PreviewBulkRequest) -> Answer<Self> {
        let broker = of_spec(call, request.spec.as_ref()).await?;
        call.in_store::<Self>(broker, request).await
    }

    fn entries(response: &v1::PreviewBulkResponse) -> usize {
        response.examples.len()
    }
}

/// Converts a preview to the response. The examples contain only ids and states, unless the caller may read the jobs (`reads`).
fn shown(spec: &BulkSpec, preview: BulkPreview, reads: bool) -> v1::PreviewBulkResponse {
    let jobs = if preview.has_more { preview.in_states.unwrap_or_default() } else { preview.selected };
    v1::PreviewBulkResponse {
        selected_count: preview.selected,
        has_more: preview.has_more,
        examples: preview.examples.into_iter().map(|job| example(job, reads)).collect(),
        states_count: preview.in_states,
        running_count: preview.running,
        creates_task_type: preview.creates_type,
        expected_duration: Some(render::duration(expected(spec, jobs.max(preview.selected)))),
    }
}

fn example(mut job: JobView, reads: bool) -> v1::Job {
    (job.payload, job.result) = (None, None);
    let last = job.failures.pop();
    job.failures = last.into_iter().collect();
    let (id, state): (i64, JobState) = (job.id, job.state);
    if reads { render::job(job) } else { v1::Job { id, state: state.to_proto() as i32, ..v1::Job::default() } }
}

impl Verb for GetBulk {
    const RULE: Rule = Rule::Types(Operation::Read);

    type Args = i64;

    fn check(request: v1::GetBulkRequest, _: &ClusterSettings, _: &Limits) -> Result<i64, Error> {
        Ok(request.id)
    }

    async fn run(call: &mut Call, id: i64) -> Result<v1::GetBulkResponse, Error> {
        Ok(v1::GetBulkResponse { bulk: Some(spec::render(own(call, Operation::Read, id).await?)) })
    }

    async fn route(call: &Call, request: v1::GetBulkRequest) -> Answer<Self> {
        let broker = of_bulk(call, request.id).await?;
        in_store::<Self>(call, broker, request, |answer| &mut answer.bulk).await
    }
}

pub(crate) const PAGE: usize = 100;
pub(crate) const MAX_PAGE: usize = 1_000;

/// A query for bulk operations.
#[derive(Clone, Debug)]
pub(crate) struct BulkQuery {
    /// Task type; `None` for all types.
    pub(crate) task_type: Option<TaskTypeName>,
    /// If true, lists only bulk operations that have not ended.
    pub(crate) open_only: bool,
    pub(crate) page_size: usize,
    /// Lists only bulk operations whose id is lower than this.
    pub(crate) before: i64,
}

impl Verb for ListBulks {
    const RULE: Rule = Rule::Types(Operation::Read);
    const ANSWER_BYTES: usize = answer::MEDIUM;

    type Args = BulkQuery;

    paged!(bulks, page_size);

    fn check(request: v1::ListBulksRequest, _: &ClusterSettings, _: &Limits) -> Result<BulkQuery, Error> {
        Ok(BulkQuery {
            task_type: optional_task_type("task_type", &request.task_type)?,
            open_only: request.open_only,
            page_size: numbers::page_size(request.page_size, PAGE, MAX_PAGE)?,
            before: page_token::numbers(&request.page_token)?.map_or(i64::MAX, |[id]| id),
        })
    }

    fn permit(caller: &Caller, query: &BulkQuery) -> Result<(), Error> {
        query.task_type.as_ref().map_or(Ok(()), |only| caller.check(Operation::Read, only))
    }

    async fn run(call: &mut Call, query: BulkQuery) -> Result<v1::ListBulksResponse, Error> {
        let (bulks, next) = visible(call, query).await?;
        Ok(v1::ListBulksResponse {
            bulks: bulks.into_iter().map(spec::render).collect(),
            next_page_token: next.map(|id| page_token::encode([id])).unwrap_or_default(),
        })
    }

    async fn route(call: &Call, request: v1::ListBulksRequest) -> Answer<Self> {
        let stores = call.concerned(&request.task_type).await?;
        call.pages::<Self>(stores, request).await
    }
}

merged!(ListBulks: of_store bulks);

/// Returns a page of the bulk operations that the caller may read. Also returns the id before which the next page starts.
async fn visible(call: &Call, query: BulkQuery) -> Result<(Vec<Bulk>, Option<i64>), Error> {
    let BulkQuery { task_type, open_only, page_size, mut before } = query;
    let name = task_type.as_ref().map(TaskTypeName::as_str);
    loop {
        let mut bulks = call.broker.operator.list_bulks(before, name, open_only, page_size).await?;
        let next = bulks.last().filter(|_| bulks.len() >= page_size).map(|last| last.id);
        bulks.retain(|bulk| permit::may(&call.caller, Operation::Read, bulk.spec.task_type.as_str()));
        match next {
            Some(last) if bulks.is_empty() => before = last,
            next => return Ok((bulks, next)),
        }
    }
}

macro_rules! changes {
    ($($verb:ident -> $response:ident: $to:ident;)*) => {
        $(
            impl Verb for $verb {
                const RULE: Rule = Rule::Types(Operation::Operate);

                type Args = i64;

                fn check(request: Self::Request, _: &ClusterSettings, _: &Limits) -> Result<i64, Error> {
                    Ok(request.id)
                }

                async fn run(call: &mut Call, id: i64) -> Result<v1::$response, Error> {
                    Ok(v1::$response { bulk: change(call, id, BulkState::$to).await? })
                }

                async fn route(call: &Call, request: Self::Request) -> Answer<Self> {
                    let broker = of_bulk(call, request.id).await?;
                    in_store::<Self>(call, broker, request, |answer| &mut answer.bulk).await
                }
            }
        )*
    };
}

changes! {
    PauseBulk -> PauseBulkResponse: Paused;
    ResumeBulk -> ResumeBulkResponse: Running;
    CancelBulk -> CancelBulkResponse: Cancelled;
}

async fn change(call: &Call, id: i64, to: BulkState) -> Result<Option<v1::Bulk>, Error> {
    let by = call.by()?;
    let bulk = own(call, Operation::Operate, id).await?;
    if let (BulkState::Running, Some(target)) = (to, bulk.spec.change.to_type()) {
        call.caller.check_reroute(&bulk.spec.task_type, target)?;
    }
    Ok(Some(spec::render(call.broker.operator.change_bulk(&bulk, to, &by).await?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_key_over_200_bytes_is_refused() {
        let spec = v1::BulkSpec { operation: 2, task_type: "a".into(), ..v1::BulkSpec::default() };
        let start = v1::StartBulkRequest { spec: Some(spec), request_key: "k".repeat(201) };
        assert_eq!(check(start, &ClusterSettings::DEFAULT).unwrap_err().field(), Some("request_key"));
    }

    #[test]
    fn a_negative_page_size_and_an_invalid_page_token_are_refused() {
        let check = |request| ListBulks::check(request, &ClusterSettings::DEFAULT, &Limits::default());
        let list = v1::ListBulksRequest { page_size: -1, ..Default::default() };
        assert_eq!(check(list).unwrap_err().field(), Some("page_size"));
        let list = v1::ListBulksRequest { page_token: "x".into(), ..Default::default() };
        assert_eq!(check(list).unwrap_err().field(), Some("page_token"));
    }
}
