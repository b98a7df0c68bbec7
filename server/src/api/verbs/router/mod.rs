//! Routes calls in a process with several stores: selects the stores that a call concerns, and merges their responses. A call is
//! routed by the ids in it, by its task type, or by the store that the caller names in the metadata `howdah-store`. Each store
//! checks and executes its part of the call.

mod change; // changes in several stores, one after the other
mod enqueue; // the common store of the jobs of a request
mod ids; // calls with job ids: split by store; jobs that have moved
mod merge; // reads of several stores, and their pages

use std::{sync::Arc, time::Duration};

use howdah_core::{error::Error, job::TaskTypeName};
use howdah_engine::broker::SharedBroker;
use tonic::{
    Extensions, Response, Status,
    metadata::{MetadataMap, MetadataValue},
};

use super::{Answer, Call, Merge, Verb};
use crate::{
    api::answer,
    stores::{ConfiguredStore, ServedStore},
};
pub(crate) use enqueue::store_of_http;
pub(super) use enqueue::{common_store, kinds};

/// Call metadata that names a store.
pub(crate) const STORE: &str = "howdah-store";
/// Response metadata that names the stores that did not answer in time. The response lacks their data.
pub(crate) const UNANSWERED: &str = "howdah-unanswered-stores";

/// Time limit for each store to answer a call that concerns several. It is longer than a search or a count of jobs may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Stores that a call concerns, and the names of unreachable stores that may be concerned too.
pub(super) type Concerned<'a> = (Vec<&'a ConfiguredStore>, Vec<&'a str>);

/// Returns the store that the metadata of a call names. `None` if the broker chooses the store.
fn named(metadata: &MetadataMap) -> Result<Option<&str>, Error> {
    let Some(value) = metadata.get(STORE) else { return Ok(None) };
    let name = value.to_str().map_err(|_| Error::invalid(STORE, "must be the name of a store"))?;
    Ok(Some(name).filter(|name| !name.is_empty()))
}

impl Call {
    /// Runs the verb in the primary store, which has the tokens and other global data.
    pub(super) async fn primary<V: Verb>(&self, request: V::Request) -> Answer<V> {
        self.in_store::<V>(self.stores.main(), request).await
    }

    /// Runs the verb in the store of a broker.
    pub(super) async fn in_store<V: Verb>(&self, broker: &SharedBroker, request: V::Request) -> Answer<V> {
        // The future is boxed, because every route contains it and would grow by its size.
        Box::pin(self.at(broker).run::<V>(request)).await
    }

    /// Returns the store that the call names, if any.
    pub(super) fn named_store(&self) -> Result<Option<&ConfiguredStore>, Error> {
        named(&self.metadata)?.map(|name| self.stores.named(name)).transpose()
    }

    /// Returns the broker of the store that the call names, if any.
    pub(super) fn named_broker(&self) -> Result<Option<&SharedBroker>, Error> {
        self.named_store()?.map(|store| store.served()?.reachable()).transpose()
    }

    /// Returns the broker of the store that the call names, or else of the only store. `None` if there are several stores and
    /// the call names no store.
    pub(super) fn named_or_only(&self) -> Result<Option<&SharedBroker>, Error> {
        match self.stores.only() {
            Some(only) => Ok(Some(only)),
            None => self.named_broker(),
        }
    }

    /// Returns the broker of the store that the call names, or else of the primary store.
    pub(super) fn named_or_primary(&self) -> Result<&SharedBroker, Error> {
        Ok(self.named_broker()?.unwrap_or_else(|| self.stores.main()))
    }

    /// Returns the broker of the store that the call names, or else of the home store of this task type. An invalid type name
    /// goes to the primary store, which rejects it.
    pub(super) async fn named_or_home(&self, task_type: &str) -> Result<&SharedBroker, Error> {
        if let Some(broker) = self.named_broker()? {
            return Ok(broker);
        }
        match TaskTypeName::parse(task_type) {
            Ok(name) => self.stores.home(&name).await?.reachable(),
            Err(_) => Ok(self.stores.main()),
        }
    }

    /// Returns the stores that a call concerns: the store that the call names, or else the stores that have the task type.
    /// Without a store name and a task type, all stores are concerned.
    pub(super) async fn concerned(&self, task_type: &str) -> Result<Concerned<'_>, Error> {
        if let Some(store) = self.named_store()? {
            return Ok((vec![store], Vec::new()));
        }
        let stores = self.stores.all();
        let Ok(name) = TaskTypeName::parse(task_type) else {
            // Without a task type, the call is for all stores. An invalid name goes to one store, which rejects it.
            let all = stores.iter().map(Arc::as_ref);
            return Ok((if task_type.is_empty() { all.collect() } else { all.take(1).collect() }, Vec::new()));
        };
        let (having, unreachable) = self.stores.having(&name).await;
        let mut concerned: Vec<&ConfiguredStore> = stores
            .iter()
            .map(Arc::as_ref)
            .filter(|store| having.iter().any(|served| served.name == store.name()))
            .collect();
        if concerned.is_empty() {
            concerned.extend(stores.iter().map(Arc::as_ref).find(|store| !unreachable.contains(&store.name())));
        }
        Ok((concerned, unreachable))
    }

    /// Like [`Self::concerned`], for a call that creates a new type in its home store.
    pub(super) async fn concerned_or_home(&self, task_type: &str) -> Result<Concerned<'_>, Error> {
        // The two lookups run concurrently, so that an unresponsive store delays the call only once.
        let home = async {
            match TaskTypeName::parse(task_type) {
                Ok(name) if named(&self.metadata)?.is_none() => self.stores.home(&name).await.map(Some),
                _ => Ok(None),
            }
        };
        let (concerned, home) = tokio::join!(self.concerned(task_type), home);
        let (mut stores, unreachable) = concerned?;
        if let Some(served) = home? {
            let home = self.stores.named(&served.name)?;
            if !stores.iter().any(|store| store.name() == home.name()) {
                stores = vec![home];
            }
        }
        Ok((stores, unreachable))
    }

    /// Returns the broker of the store to which a job id belongs. An id that belongs to no store goes to the primary store,
    /// which reports that the job does not exist.
    pub(super) fn of_id(&self, id: i64) -> Result<&SharedBroker, Error> {
        self.stores.of_id(id)?.map_or_else(|| Ok(self.stores.main()), ServedStore::reachable)
    }

    /// Returns the broker of the only store in `found`, or of the primary store if `found` is empty. Fails if `found` has
    /// several stores; the caller must then name one.
    pub(super) fn only_found<'a>(
        &'a self,
        found: &[&'a ConfiguredStore],
        field: &'static str,
        what: &str,
    ) -> Result<&'a SharedBroker, Error> {
        match found {
            [] => Ok(self.stores.main()),
            [one] => one.served()?.reachable(),
            several => {
                let names: Vec<&str> = several.iter().map(|store| store.name()).collect();
                let problem =
                    format!("{what} in several stores ({}): select one with the metadata {STORE}", names.join(", "));
                Err(Error::invalid(field, problem))
            }
        }
    }
}

/// Returns the broker of a configured store. Fails if the store is unreachable.
fn broker_of(store: &ConfiguredStore) -> Result<&SharedBroker, Error> {
    store.reachable()?.reachable()
}

/// Adds the names of the stores that did not answer to the metadata of a response.
pub(super) fn note_unanswered<T>(response: &mut Response<T>, unanswered: &[&str]) {
    // Cannot fail, because store names are ASCII.
    if let Ok(names) = MetadataValue::try_from(unanswered.join(","))
        && !unanswered.is_empty()
    {
        response.metadata_mut().insert(UNANSWERED, names);
    }
}

/// Returns the error of a call that no store has answered.
fn no_answer(unanswered: &[&str]) -> Status {
    Error::Unavailable(format!("no store has answered in time: {}", unanswered.join(", "))).into()
}

/// Waits for the response of a store. Returns `None` if the store is unavailable or does not answer in time. If the call
/// concerns only this store (`is_alone`), there is no time limit, and every error is returned.
async fn answered<A>(
    call: impl Future<Output = Result<Response<A>, Status>>,
    is_alone: bool,
) -> Result<Option<Response<A>>, Status> {
    if is_alone {
        return call.await.map(Some);
    }
    match tokio::time::timeout(TIMEOUT, call).await {
        Err(_) => Ok(None),
        Ok(Err(status)) if status.code() == tonic::Code::Unavailable => Ok(None),
        Ok(answer) => answer.map(Some),
    }
}

/// Response that merges the responses of several stores, and keeps their memory reservations.
pub(in crate::api::verbs) struct Merged<V: Merge> {
    all: V::Response,
    held: Vec<Extensions>,
}

impl<V: Merge> Merged<V> {
    fn new() -> Self {
        Self { all: V::Response::default(), held: Vec::new() }
    }

    fn add(&mut self, response: Response<V::Response>, store: &str) {
        let (_, part, extensions) = response.into_parts();
        self.held.push(extensions);
        V::merge(&mut self.all, part, store);
    }

    /// Returns the merged response, whose metadata names the stores that did not answer. Fails if no store has answered.
    pub(in crate::api::verbs) fn end(self, unanswered: &[&str]) -> Answer<V> {
        if self.held.is_empty() && !unanswered.is_empty() {
            return Err(no_answer(unanswered));
        }
        let mut response = Response::new(self.all);
        answer::hold_all(response.extensions_mut(), self.held);
        note_unanswered(&mut response, unanswered);
        Ok(response)
    }
}
