//! Routing of enqueue requests to stores, and lookup of stores by id.

use std::{collections::BTreeMap, pin::pin};

use futures::{StreamExt as _, stream};
use howdah_proto::v1;
use tokio_util::sync::CancellationToken;
use tonic::{codegen::http::HeaderMap, metadata::MetadataMap};

use super::{RoutingService, Services};
use crate::{
    access::{Caller, Operation},
    broker::SharedBroker,
    error::Error,
    job::TaskTypeName,
    stores::SharedStores,
};

/// Number of task types whose stores are looked up concurrently, so that a group of types waits only once for a slow
/// store.
const LOOK_UPS: usize = 8;

/// Fields of a request that determine its store.
pub(super) struct Kinds {
    /// Task types, each with the position of its first job.
    types: Vec<(usize, String)>,
    /// Ids of dependencies, each with the position of the first job that depends on it.
    after: Vec<(usize, i64)>,
}

/// Collects the task types and dependencies of these jobs.
pub(super) fn kinds(jobs: &[v1::NewJob]) -> Kinds {
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

impl RoutingService {
    /// Store of a request's jobs: the store that the call names, or the home of their types. All jobs go to one store, because a
    /// request is one transaction.
    pub(super) async fn store_of(
        &self,
        metadata: &MetadataMap,
        caller: &Caller,
        kinds: &Kinds,
    ) -> Result<Services, Error> {
        let services = match self.named_services(metadata)? {
            Some(services) => services,
            None => self.common_home(caller, kinds).await?,
        };
        for (nth, id) in &kinds.after {
            if let Some(other) = self.stores.store_of(*id)
                && let Some(own) = self.stores.name_of(&services.broker)
                && own != other
            {
                let problem = format!(
                    "names job {id}, which is in store {other}, and this job goes to store {own}: jobs wait only for \
                     jobs of their own store"
                );
                return Err(Error::invalid(format!("jobs[{nth}].after"), problem));
            }
        }
        Ok(services)
    }

    async fn common_home(&self, caller: &Caller, kinds: &Kinds) -> Result<Services, Error> {
        let mut names = Vec::new();
        for (nth, task_type) in &kinds.types {
            // The primary store rejects an invalid name.
            let Ok(name) = TaskTypeName::parse(task_type) else { return Ok(self.main()) };
            // Checked before the lookup, so that callers can neither cause lookups of other callers' types nor learn their stores.
            caller.check(Operation::Enqueue, &name)?;
            names.push((*nth, name));
        }
        let look_up = |(nth, name): (usize, TaskTypeName)| async move {
            let served = self.stores.home(&name).await;
            (nth, name, served)
        };
        let mut homes = pin!(stream::iter(names).map(look_up).buffered(LOOK_UPS));
        let mut home: Option<(&str, TaskTypeName)> = None;
        while let Some((nth, name, served)) = homes.next().await {
            let served = served?;
            match &home {
                Some((store, first)) if *store != served.name => {
                    let problem = format!(
                        "is at home in store {}, and task type {first} of this request in store {store}: a request is one \
                         transaction, so send one for each store, or name one of them in the metadata {}",
                        served.name,
                        super::STORE
                    );
                    return Err(Error::invalid(format!("jobs[{nth}].task_type"), problem));
                }
                Some(_) => {}
                None => home = Some((&served.name, name)),
            }
        }
        match home {
            Some((store, _)) => self.services_of(self.stores.named(store)?.served()?),
            None => Ok(self.main()),
        }
    }

    /// Groups ids by store. Ids without a store go to the primary store. Fails if a store is unreachable.
    pub(super) fn by_store(&self, ids: Vec<i64>) -> Result<Vec<(Services, Vec<i64>)>, Error> {
        let mut by_store = BTreeMap::<&str, Vec<i64>>::new();
        for id in ids {
            by_store.entry(self.stores.store_of(id).unwrap_or(self.stores.main_name())).or_default().push(id);
        }
        let of = |(name, ids)| Ok((self.services_of(self.stores.named(name)?.served()?)?, ids));
        by_store.into_iter().map(of).collect()
    }
}

/// Broker of the store for the jobs of an HTTP request.
pub(crate) async fn store_of_http(
    stores: &SharedStores,
    headers: &HeaderMap,
    caller: &Caller,
    jobs: &[v1::NewJob],
) -> Result<SharedBroker, Error> {
    if let Some(broker) = stores.only() {
        return Ok(broker.clone());
    }
    let service = RoutingService::new(stores.clone(), CancellationToken::new());
    Ok(service.store_of(&MetadataMap::from_headers(headers.clone()), caller, &kinds(jobs)).await?.broker)
}
