//! Selects the store for an enqueue request. All jobs of a request go to one store, because a request is one transaction.

use std::pin::pin;

use futures::{StreamExt as _, stream};
use howdah_core::{error::Error, job::TaskTypeName};
use howdah_engine::{
    access::{Caller, Operation},
    broker::SharedBroker,
};
use howdah_proto::v1;
use tonic::{codegen::http::HeaderMap, metadata::MetadataMap};

use super::{STORE, named};
use crate::stores::Stores;

/// Maximum number of task types whose stores are looked up concurrently, so that a slow store does not delay them one after
/// another.
const LOOK_UPS: usize = 8;

/// Fields of an enqueue request that determine its store.
pub(in crate::api::verbs) struct Kinds {
    /// Task types of the jobs, each with the index of its first job.
    types: Vec<(usize, String)>,
    /// Job ids of dependencies, each with the index of the job that depends on it.
    after: Vec<(usize, i64)>,
}

/// Collects the task types and dependencies of these jobs.
pub(in crate::api::verbs) fn kinds(jobs: &[v1::NewJob]) -> Kinds {
    let mut types: Vec<(usize, String)> = Vec::new();
    let mut after = Vec::new();
    for (nth, job) in jobs.iter().enumerate() {
        if types.iter().all(|(_, known)| *known != job.task_type) {
            types.push((nth, job.task_type.clone()));
        }
        after.extend(job.after.iter().map(|id| (nth, *id)));
    }
    Kinds { types, after }
}

/// Returns the broker of the store for the jobs of a request: the store that the call names, or else the home store of their
/// task types. Fails if the types have different home stores, or if a job depends on a job of another store.
pub(in crate::api::verbs) async fn common_store(
    stores: &Stores,
    metadata: &MetadataMap,
    caller: &Caller,
    kinds: &Kinds,
) -> Result<SharedBroker, Error> {
    let broker = match named(metadata)? {
        Some(name) => stores.named(name)?.served()?.reachable()?,
        None => common_home(stores, caller, kinds).await?,
    };
    for (nth, id) in &kinds.after {
        if let Some(other) = stores.store_of(*id)
            && let Some(own) = stores.name_of(broker)
            && own != other
        {
            let problem = format!(
                "names job {id}, which is in store {other}, and this job goes to store {own}: jobs wait only for jobs of \
                 their own store"
            );
            return Err(Error::invalid(format!("jobs[{nth}].after"), problem));
        }
    }
    Ok(broker.clone())
}

async fn common_home<'a>(stores: &'a Stores, caller: &Caller, kinds: &Kinds) -> Result<&'a SharedBroker, Error> {
    let mut names = Vec::new();
    for (nth, task_type) in &kinds.types {
        // The primary store rejects an invalid name.
        let Ok(name) = TaskTypeName::parse(task_type) else { return Ok(stores.main()) };
        // The permission is checked before the lookup. Callers cannot cause lookups of types that they may not use, nor learn
        // their stores.
        caller.check(Operation::Enqueue, &name)?;
        names.push((*nth, name));
    }
    let look_up = |(nth, name): (usize, TaskTypeName)| async move {
        let served = stores.home(&name).await;
        (nth, name, served)
    };
    let mut homes = pin!(stream::iter(names).map(look_up).buffered(LOOK_UPS));
    let mut home: Option<(&str, TaskTypeName)> = None;
    while let Some((nth, name, served)) = homes.next().await {
        let served = served?;
        match &home {
            Some((store, first)) if *store != served.name => {
                let problem = format!(
                    "belongs to store {}, but task type {first} of this request belongs to store {store}: a request is one \
                     transaction, so send one request per store, or select one store with the metadata {STORE}",
                    served.name
                );
                return Err(Error::invalid(format!("jobs[{nth}].task_type"), problem));
            }
            Some(_) => {}
            None => home = Some((&served.name, name)),
        }
    }
    match home {
        Some((store, _)) => stores.named(store)?.served()?.reachable(),
        None => Ok(stores.main()),
    }
}

/// Returns the broker of the store for the jobs of an HTTP request.
pub(crate) async fn store_of_http(
    stores: &Stores,
    headers: &HeaderMap,
    caller: &Caller,
    jobs: &[v1::NewJob],
) -> Result<SharedBroker, Error> {
    if let Some(broker) = stores.only() {
        return Ok(broker.clone());
    }
    common_store(stores, &MetadataMap::from_headers(headers.clone()), caller, &kinds(jobs)).await
}
