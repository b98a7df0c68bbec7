//! Services of a process with several stores. Each call is routed to the services of one or several stores: by the ids in it, by
//! its task type, or by the store that the caller names in the metadata `howdah-store`. This module merges the responses of
//! several stores. It only routes; the services of the stores check and execute the calls.

mod access;
mod attempts; // merges the stores' pages
mod bulks;
mod change; // changes in several stores
mod jobs;
mod listing; // one store after the other
mod moved; // old ids of jobs that have moved
mod schedules;
mod settings;
mod split; // ids by store
mod streams;
mod task_types;
mod workers;

pub(crate) use streams::store_of_http;

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tonic::{
    Extensions, Request, Response, Status,
    metadata::{MetadataMap, MetadataValue},
};

use super::{
    access_service::AccessService, answer, bulk_service::BulkService, job_service::JobService,
    schedule_service::ScheduleService, settings_service::SettingsService, task_type_service::TaskTypeService,
    worker_service::WorkerService,
};
use crate::{
    broker::SharedBroker,
    error::Error,
    job::TaskTypeName,
    stores::{ConfiguredStore, ServedStore, SharedStores},
};

/// Call metadata that names a store.
pub(crate) const STORE: &str = "howdah-store";
/// Response metadata that names the stores that did not answer in time. Their data is missing in the response.
pub(crate) const UNANSWERED: &str = "howdah-unanswered-stores";

/// Time limit for each of several stores to answer. It is longer than a search or a count of jobs may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Services of all stores.
#[derive(Clone)]
pub(crate) struct RoutingService {
    stores: SharedStores,
    /// Ends pipelines when cancelled.
    stopping: CancellationToken,
}

/// Services of one store.
struct Services {
    broker: SharedBroker,
    stopping: CancellationToken,
}

impl Services {
    fn jobs(&self) -> JobService {
        JobService::new(self.broker.clone(), self.stopping.clone())
    }

    fn workers(&self) -> WorkerService {
        WorkerService::new(self.broker.clone())
    }

    fn task_types(&self) -> TaskTypeService {
        TaskTypeService::new(self.broker.clone())
    }

    fn schedules(&self) -> ScheduleService {
        ScheduleService::new(self.broker.clone())
    }

    fn settings(&self) -> SettingsService {
        SettingsService::new(self.broker.clone())
    }

    fn access(&self) -> AccessService {
        AccessService::new(self.broker.clone())
    }

    fn bulks(&self) -> BulkService {
        BulkService::new(self.broker.clone())
    }
}

/// Metadata and extensions of a request: the caller, its connection and its deadline.
struct Envelope {
    metadata: MetadataMap,
    extensions: Extensions,
}

impl Envelope {
    fn split<T>(request: Request<T>) -> (Self, T) {
        let (metadata, extensions, message) = request.into_parts();
        (Self { metadata, extensions }, message)
    }

    fn like<T>(request: &Request<T>) -> Self {
        Self { metadata: request.metadata().clone(), extensions: request.extensions().clone() }
    }

    /// Creates the same call with another message.
    fn around<T>(&self, message: T) -> Request<T> {
        Request::from_parts(self.metadata.clone(), self.extensions.clone(), message)
    }
}

/// Store that a call names; `None` if the broker chooses.
pub(crate) fn named(metadata: &MetadataMap) -> Result<Option<&str>, Error> {
    let Some(value) = metadata.get(STORE) else { return Ok(None) };
    let name = value.to_str().map_err(|_| Error::invalid(STORE, "must be the name of a store"))?;
    Ok(Some(name).filter(|name| !name.is_empty()))
}

impl RoutingService {
    pub(crate) fn new(stores: SharedStores, stopping: CancellationToken) -> Self {
        Self { stores, stopping }
    }

    fn services(&self, broker: &SharedBroker) -> Services {
        Services { broker: broker.clone(), stopping: self.stopping.clone() }
    }

    /// Services of the primary store, which holds global data such as tokens.
    fn main(&self) -> Services {
        self.services(self.stores.main())
    }

    fn services_of(&self, served: &ServedStore) -> Result<Services, Error> {
        Ok(self.services(served.reachable()?))
    }

    /// Store that the call names, if any.
    fn named_store(&self, metadata: &MetadataMap) -> Result<Option<&ConfiguredStore>, Error> {
        named(metadata)?.map(|name| self.stores.named(name)).transpose()
    }

    /// Services of the store that the call names, if any.
    fn named_services(&self, metadata: &MetadataMap) -> Result<Option<Services>, Error> {
        self.named_store(metadata)?.map(|store| self.services_of(store.served()?)).transpose()
    }

    /// Services of the store that the call names, or else of the primary store.
    fn named_or_main(&self, metadata: &MetadataMap) -> Result<Services, Error> {
        Ok(self.named_services(metadata)?.unwrap_or_else(|| self.main()))
    }

    /// Services of the store that the call names, or else of the home of this type. For an invalid name, returns the services of
    /// the primary store, which reject it.
    async fn named_or_home(&self, metadata: &MetadataMap, task_type: &str) -> Result<Services, Error> {
        if let Some(services) = self.named_services(metadata)? {
            return Ok(services);
        }
        match TaskTypeName::parse(task_type) {
            Ok(name) => self.services_of(self.stores.home(&name).await?),
            Err(_) => Ok(self.main()),
        }
    }

    /// Stores that a call applies to: the store it names, or the stores that have the type, or all stores without a type. Also
    /// returns the stores for which it is unknown whether they have the type.
    async fn concerned(
        &self,
        metadata: &MetadataMap,
        task_type: &str,
    ) -> Result<(Vec<&ConfiguredStore>, Vec<&str>), Error> {
        if let Some(store) = self.named_store(metadata)? {
            return Ok((vec![store], Vec::new()));
        }
        let stores = self.stores.all();
        let Ok(name) = TaskTypeName::parse(task_type) else {
            // Without a type, the call is for all stores. An invalid name goes to one store, which rejects it.
            return Ok((if task_type.is_empty() { stores.iter().collect() } else { vec![&stores[0]] }, Vec::new()));
        };
        let (having, unreachable) = self.stores.having(&name).await;
        let mut concerned: Vec<&ConfiguredStore> =
            stores.iter().filter(|store| having.iter().any(|served| served.name == store.name())).collect();
        if concerned.is_empty() {
            concerned.extend(stores.iter().find(|store| !unreachable.contains(&store.name())));
        }
        Ok((concerned, unreachable))
    }

    /// Like [`Self::concerned`], for a call that creates a new type in its home store.
    async fn concerned_or_home(
        &self,
        metadata: &MetadataMap,
        task_type: &str,
    ) -> Result<(Vec<&ConfiguredStore>, Vec<&str>), Error> {
        // Both run concurrently, so that an unresponsive store is waited for only once.
        let home = async {
            match TaskTypeName::parse(task_type) {
                Ok(name) if named(metadata)?.is_none() => self.stores.home(&name).await.map(Some),
                _ => Ok(None),
            }
        };
        let (concerned, home) = tokio::join!(self.concerned(metadata, task_type), home);
        let (mut stores, unreachable) = concerned?;
        if let Some(served) = home? {
            let home = self.stores.named(&served.name)?;
            if !stores.iter().any(|store| store.name() == home.name()) {
                stores = vec![home];
            }
        }
        Ok((stores, unreachable))
    }

    /// Services of the store of an id. An id that belongs to no store goes to the primary store, which has no such job.
    fn of_id(&self, id: i64) -> Result<Services, Error> {
        self.stores.of_id(id)?.map_or_else(|| Ok(self.main()), |served| self.services_of(served))
    }
}

/// Names the stores that did not answer in the metadata of a response.
fn note_unanswered<T>(response: &mut Response<T>, unanswered: &[&str]) {
    // Store names are ASCII, so this cannot fail.
    if let Ok(names) = MetadataValue::try_from(unanswered.join(","))
        && !unanswered.is_empty()
    {
        response.metadata_mut().insert(UNANSWERED, names);
    }
}

/// Error if no store has answered.
fn no_answer(unanswered: &[&str]) -> Status {
    Error::Unavailable(format!("no store has answered in time: {}", unanswered.join(", "))).into()
}

/// Response of one of several stores; `None` if it did not answer in time. A single store has no separate time limit, and its
/// error is returned.
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

/// Merged response, with the memory of all of its parts.
fn joined<A>(answer: A, parts: Vec<Extensions>) -> Response<A> {
    let mut response = Response::new(answer);
    answer::hold_all(response.extensions_mut(), parts);
    response
}
