//! Where the jobs of a request go, and which stores have these ids.

use std::{collections::BTreeMap, pin::pin};

use futures::{StreamExt as _, stream};
use howdah_proto::v1;
use tokio_util::sync::CancellationToken;
use tonic::{codegen::http::HeaderMap, metadata::MetadataMap};

use super::{FleetService, Services};
use crate::{
    access::{Caller, Operation},
    broker::SharedBroker,
    error::Error,
    job::TaskTypeName,
    stores::SharedFleet,
};

/// How many types of a request are looked up at once: a store that is silent is waited for once for so many.
const LOOK_UPS: usize = 8;

/// What decides where the jobs of a request go.
pub(super) struct Kinds {
    /// The task types, each with the position of its first job.
    types: Vec<(usize, String)>,
    /// The jobs that others run after, each with the position of the first of those.
    after: Vec<(usize, i64)>,
}

/// That of these jobs.
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

impl FleetService {
    /// The store that a request's jobs go to: the one that the call names, or the home of their types. All of them go to one,
    /// since a request is one transaction.
    pub(super) async fn store_of(
        &self,
        metadata: &MetadataMap,
        caller: &Caller,
        kinds: &Kinds,
    ) -> Result<Services, Error> {
        let services = match self.asked_services(metadata)? {
            Some(services) => services,
            None => self.common_home(caller, kinds).await?,
        };
        for (nth, id) in &kinds.after {
            if let Some(other) = self.fleet.store_of(*id)
                && let Some(own) = self.fleet.name_of(&services.broker)
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
            // The main store says what is wrong with another name.
            let Ok(name) = TaskTypeName::parse(task_type) else { return Ok(self.main()) };
            // Nobody makes stores look for types that are not theirs, or learns where they are.
            caller.check(Operation::Enqueue, &name)?;
            names.push((*nth, name));
        }
        let look_up = |(nth, name): (usize, TaskTypeName)| async move {
            let engine = self.fleet.home(&name).await;
            (nth, name, engine)
        };
        let mut homes = pin!(stream::iter(names).map(look_up).buffered(LOOK_UPS));
        let mut home: Option<(&str, TaskTypeName)> = None;
        while let Some((nth, name, engine)) = homes.next().await {
            let engine = engine?;
            match &home {
                Some((store, first)) if *store != engine.name => {
                    let problem = format!(
                        "is at home in store {}, and task type {first} of this request in store {store}: a request is one \
                         transaction, so send one for each store, or name one of them in the metadata {}",
                        engine.name,
                        super::STORE
                    );
                    return Err(Error::invalid(format!("jobs[{nth}].task_type"), problem));
                }
                Some(_) => {}
                None => home = Some((&engine.name, name)),
            }
        }
        match home {
            Some((store, _)) => self.of_engine(self.fleet.named(store)?.engine()?),
            None => Ok(self.main()),
        }
    }

    /// The ids by store; those of no store are with the main one. A store that cannot be asked is an error.
    pub(super) fn by_store(&self, ids: Vec<i64>) -> Result<Vec<(Services, Vec<i64>)>, Error> {
        let mut by_store = BTreeMap::<&str, Vec<i64>>::new();
        for id in ids {
            by_store.entry(self.fleet.store_of(id).unwrap_or(self.fleet.main_name())).or_default().push(id);
        }
        let of = |(name, ids)| Ok((self.of_engine(self.fleet.named(name)?.engine()?)?, ids));
        by_store.into_iter().map(of).collect()
    }
}

/// The broker of the store that jobs of an HTTP request go to.
pub(crate) async fn store_of_http(
    fleet: &SharedFleet,
    headers: &HeaderMap,
    caller: &Caller,
    jobs: &[v1::NewJob],
) -> Result<SharedBroker, Error> {
    if let Some(broker) = fleet.only() {
        return Ok(broker.clone());
    }
    let service = FleetService::new(fleet.clone(), CancellationToken::new());
    Ok(service.store_of(&MetadataMap::from_headers(headers.clone()), caller, &kinds(jobs)).await?.broker)
}
