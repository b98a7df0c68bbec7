//! The services of a process with several stores. Each call goes to the services of one store's broker, or of several: by the ids
//! in it, by its task type, or because the caller names a store in the metadata `howdah-store`. What several answer is put
//! together here. Nothing is checked or decided here but where a call goes.

mod access;
mod attempts; // the most of all stores
mod bulks;
mod change; // of several stores
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
    stores::{Engine, Member, SharedFleet},
};

/// The metadata of a call that names its store.
pub(crate) const STORE: &str = "howdah-store";
/// The metadata of an answer that names stores which did not answer in time: what they have is missing in it.
pub(crate) const UNANSWERED: &str = "howdah-unanswered-stores";

/// How long each of several stores may take to answer: longer than a search looks, and counting jobs takes.
const PATIENCE: Duration = Duration::from_secs(5);

/// The services of all stores.
#[derive(Clone)]
pub(crate) struct FleetService {
    fleet: SharedFleet,
    /// Ends pipelines when cancelled.
    stopping: CancellationToken,
}

/// The services of one store.
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

/// All of a request but its message: who calls, from where.
struct Envelope {
    metadata: MetadataMap,
    extensions: Extensions,
}

impl Envelope {
    fn of<T>(request: Request<T>) -> (Self, T) {
        let (metadata, extensions, message) = request.into_parts();
        (Self { metadata, extensions }, message)
    }

    fn like<T>(request: &Request<T>) -> Self {
        Self { metadata: request.metadata().clone(), extensions: request.extensions().clone() }
    }

    /// The same call with this message.
    fn around<T>(&self, message: T) -> Request<T> {
        Request::from_parts(self.metadata.clone(), self.extensions.clone(), message)
    }
}

/// The store that a call names; `None`: the broker chooses.
pub(crate) fn named(metadata: &MetadataMap) -> Result<Option<&str>, Error> {
    let Some(value) = metadata.get(STORE) else { return Ok(None) };
    let name = value.to_str().map_err(|_| Error::invalid(STORE, "must be the name of a store"))?;
    Ok(Some(name).filter(|name| !name.is_empty()))
}

impl FleetService {
    pub(crate) fn new(fleet: SharedFleet, stopping: CancellationToken) -> Self {
        Self { fleet, stopping }
    }

    fn services(&self, broker: &SharedBroker) -> Services {
        Services { broker: broker.clone(), stopping: self.stopping.clone() }
    }

    /// Those of the store that keeps what is not of one store.
    fn main(&self) -> Services {
        self.services(self.fleet.main())
    }

    fn of_engine(&self, engine: &Engine) -> Result<Services, Error> {
        Ok(self.services(engine.reachable()?))
    }

    /// The store that the call names.
    fn asked(&self, metadata: &MetadataMap) -> Result<Option<&Member>, Error> {
        named(metadata)?.map(|name| self.fleet.named(name)).transpose()
    }

    /// The store that the call names.
    fn asked_services(&self, metadata: &MetadataMap) -> Result<Option<Services>, Error> {
        self.asked(metadata)?.map(|member| self.of_engine(member.engine()?)).transpose()
    }

    /// The store that the call names, or else the main one.
    fn asked_or_main(&self, metadata: &MetadataMap) -> Result<Services, Error> {
        Ok(self.asked_services(metadata)?.unwrap_or_else(|| self.main()))
    }

    /// The store that the call names, or else the home of this type. A name that is none is refused by the main store's services,
    /// as anywhere else.
    async fn asked_or_home(&self, metadata: &MetadataMap, task_type: &str) -> Result<Services, Error> {
        if let Some(services) = self.asked_services(metadata)? {
            return Ok(services);
        }
        match TaskTypeName::parse(task_type) {
            Ok(name) => self.of_engine(self.fleet.home(&name).await?),
            Err(_) => Ok(self.main()),
        }
    }

    /// The stores that a call is about: the one that it names; otherwise those that have the type; without a type, all. And the
    /// names of those that cannot say whether they have it.
    async fn concerned(&self, metadata: &MetadataMap, task_type: &str) -> Result<(Vec<&Member>, Vec<&str>), Error> {
        if let Some(member) = self.asked(metadata)? {
            return Ok((vec![member], Vec::new()));
        }
        let members = self.fleet.members();
        let Ok(name) = TaskTypeName::parse(task_type) else {
            // No type, or none that exists: then any store says so.
            return Ok((if task_type.is_empty() { members.iter().collect() } else { vec![&members[0]] }, Vec::new()));
        };
        let (having, away) = self.fleet.having(&name).await;
        let mut concerned: Vec<&Member> =
            members.iter().filter(|member| having.iter().any(|engine| engine.name == member.name())).collect();
        if concerned.is_empty() {
            concerned.extend(members.iter().find(|member| !away.contains(&member.name())));
        }
        Ok((concerned, away))
    }

    /// The same for a call that makes the type if it is new: then it is made at home.
    async fn concerned_or_home(
        &self,
        metadata: &MetadataMap,
        task_type: &str,
    ) -> Result<(Vec<&Member>, Vec<&str>), Error> {
        // At once: a store that is silent is waited for once.
        let home = async {
            match TaskTypeName::parse(task_type) {
                Ok(name) if named(metadata)?.is_none() => self.fleet.home(&name).await.map(Some),
                _ => Ok(None),
            }
        };
        let (concerned, home) = tokio::join!(self.concerned(metadata, task_type), home);
        let (mut stores, away) = concerned?;
        if let Some(engine) = home? {
            let home = self.fleet.named(&engine.name)?;
            if !stores.iter().any(|member| member.name() == home.name()) {
                stores = vec![home];
            }
        }
        Ok((stores, away))
    }

    /// The services of the store of an id. An id of no store is answered like a job that does not exist, by the main store.
    fn of_id(&self, id: i64) -> Result<Services, Error> {
        self.fleet.of_id(id)?.map_or_else(|| Ok(self.main()), |engine| self.of_engine(engine))
    }
}

/// Notes in an answer which stores did not answer.
fn note_unanswered<T>(response: &mut Response<T>, unanswered: &[&str]) {
    // Names of stores are ASCII, so this never fails.
    if let Ok(names) = MetadataValue::try_from(unanswered.join(","))
        && !unanswered.is_empty()
    {
        response.metadata_mut().insert(UNANSWERED, names);
    }
}

/// No store has answered.
fn nobody(unanswered: &[&str]) -> Status {
    Error::Unavailable(format!("no store has answered in time: {}", unanswered.join(", "))).into()
}

/// The answer of one of several stores; `None`: it did not answer in time. If no other one is asked, nobody waits for its sake:
/// its answer is that of the call, as with one store.
async fn answered<A>(
    call: impl Future<Output = Result<Response<A>, Status>>,
    is_alone: bool,
) -> Result<Option<Response<A>>, Status> {
    if is_alone {
        return call.await.map(Some);
    }
    match tokio::time::timeout(PATIENCE, call).await {
        Err(_) => Ok(None),
        Ok(Err(status)) if status.code() == tonic::Code::Unavailable => Ok(None),
        Ok(answer) => answer.map(Some),
    }
}

/// An answer of several, with the memory that each holds.
fn joined<A>(answer: A, parts: Vec<Extensions>) -> Response<A> {
    let mut response = Response::new(answer);
    answer::hold_all(response.extensions_mut(), parts);
    response
}
