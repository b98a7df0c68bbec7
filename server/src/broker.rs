//! A broker: what the gRPC services call. Assembled in `Broker::start`, taken apart in `Broker::stop`.

use std::{sync::Arc, time::Duration};

use crate::{
    config::Config,
    error::Error,
    job::{
        Enqueued, JobPage, JobState, JobView, Lease, LeasedJob, NewJob, PagePosition, SettleStatus, Settlement,
        TaskTypeName, TypeSettings, TypeView,
    },
};

/// Makes a repeat of an enqueue safe.
#[derive(Clone, Debug)]
pub struct RequestKey {
    /// The caller's key.
    pub key: String,
    /// SHA-256 of the jobs: the same key with other jobs is refused.
    pub body_hash: [u8; 32],
}

/// Which jobs to list.
#[derive(Clone, Debug)]
pub struct ListQuery {
    /// Of this type.
    pub task_type: TaskTypeName,
    /// Only of this state.
    pub state: Option<JobState>,
    /// Jobs at most.
    pub page_size: usize,
    /// Where to go on.
    pub from: Option<PagePosition>,
    /// With payload and result.
    pub payload: bool,
}

/// One broker; stateless but for the streams it holds.
pub struct Broker {
    config: Config,
}

impl Broker {
    /// What it was configured with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Stores the jobs, all or none; answers after the commit.
    pub async fn enqueue(&self, jobs: Vec<NewJob>, request: Option<RequestKey>) -> Result<Vec<Enqueued>, Error> {
        unimplemented!()
    }

    /// A job by id.
    pub async fn get_job(&self, id: i64) -> Result<Option<JobView>, Error> {
        unimplemented!()
    }

    /// A type's jobs, a page of them.
    pub async fn list_jobs(&self, query: ListQuery) -> Result<JobPage, Error> {
        unimplemented!()
    }

    /// Cancels what is not finished, and tells the workers; returns the ids cancelled.
    pub async fn cancel_jobs(&self, ids: Vec<i64>) -> Result<Vec<i64>, Error> {
        unimplemented!()
    }

    /// Task types by name after `after`, with counts.
    pub async fn list_task_types(&self, after: String, page_size: usize, only: Option<TaskTypeName>) -> Result<Vec<TypeView>, Error> {
        unimplemented!()
    }

    /// Replaces a type's settings.
    pub async fn update_task_type(&self, name: TaskTypeName, settings: TypeSettings) -> Result<(), Error> {
        unimplemented!()
    }

    /// Leases up to `max` ready jobs for `lease`, waiting up to `wait` for the first.
    pub async fn pull(&self, types: Vec<TaskTypeName>, max: usize, lease: Duration, wait: Duration) -> Result<Vec<LeasedJob>, Error> {
        unimplemented!()
    }

    /// Ends attempts; one status for each, in order.
    pub async fn settle(&self, settlements: Vec<Settlement>) -> Vec<SettleStatus> {
        unimplemented!()
    }

    /// Moves deadlines to so long from now; one status for each, in order.
    pub async fn extend(&self, extensions: Vec<(Lease, Duration)>) -> Vec<SettleStatus> {
        unimplemented!()
    }

    /// The name of a type that this broker has seen.
    pub fn type_name(&self, type_id: crate::job::TypeId) -> TaskTypeName {
        unimplemented!()
    }
}

/// Shared by every service.
pub type SharedBroker = Arc<Broker>;
