//! What the page shows that is no call of its own: numbers of jobs as they were counted last, who holds a key, settings without
//! counts. The rule of each is that of the call that tells the same.

use std::{sync::Arc, time::Duration};

use howdah_proto::{Rpc, v1};
use tonic::Status;

use super::{By, Local};
use crate::{
    access::{Operation, rule},
    api::{check, permit, render},
    error::Error,
    job::TaskTypeName,
    maintain::job_gauges::Counted,
    store::BrokerView,
};

/// The types that a caller may read, as they were counted last.
pub(crate) struct CountedTypes {
    /// By name.
    pub(crate) types: Vec<v1::TaskType>,
    /// How long ago; `None`: they were not counted yet.
    pub(crate) age: Option<Duration>,
    /// Whether there may be more types, which are not counted.
    pub(crate) cut: bool,
}

impl Local {
    /// Types and their numbers of jobs. No table is read for it, unless counting takes no time.
    pub(crate) async fn counted_types(&self, by: &By) -> Result<CountedTypes, Status> {
        self.check(Rpc::ListTaskTypes, by)?;
        let counted = self.broker.operator.counted_types().await;
        let seen = counted.types.iter().filter(|view| permit::may(&by.caller, Operation::Read, &view.name));
        let types = seen.map(|view| render::task_type(view.clone())).collect();
        Ok(CountedTypes { types, age: counted.age(), cut: counted.is_cut() })
    }

    /// One type: its settings as they are now, its numbers of jobs as they were counted last.
    pub(crate) async fn counted_type(&self, by: &By, name: &str) -> Result<(v1::TaskType, Option<Duration>), Status> {
        let name = self.readable(by, name)?;
        let counted: Arc<Counted> = self.broker.operator.counted_types().await;
        let settings = self.broker.operator.type_settings(&name).await?;
        let settings = settings.ok_or_else(|| Error::NotFound(format!("there is no task type {name}")))?;
        let counts = counted.types.iter().find(|view| view.name == name.as_str());
        let mut shown = counts.map(|view| render::task_type(view.clone())).unwrap_or_default();
        shown.name = name.to_string();
        shown.settings = Some(render::settings(&settings));
        Ok((shown, counted.age().filter(|_| counts.is_some())))
    }

    /// The job that holds a key.
    pub(crate) async fn key_holder(&self, by: &By, task_type: &str, key: &str) -> Result<Option<i64>, Status> {
        let name = self.readable(by, task_type)?;
        check::key(key, &self.broker.cluster())?;
        Ok(self.broker.operator.key_holder(&name, key).await?)
    }

    /// The health of the storage; `None`: Postgres does not show it.
    pub(crate) async fn storage_health(&self, by: &By) -> Result<Option<v1::StorageHealth>, Status> {
        self.check(Rpc::ListTaskTypes, by)?;
        permit::one_or_all(&by.caller, Operation::Read, None)?;
        Ok(self.broker.operator.storage_health().await.map(render::storage_health))
    }

    /// The brokers of the database.
    pub(crate) async fn brokers(&self, by: &By) -> Result<Vec<BrokerView>, Status> {
        self.check(Rpc::ListTaskTypes, by)?;
        permit::one_or_all(&by.caller, Operation::Read, None)?;
        Ok(self.broker.operator.list_brokers().await?)
    }

    /// A type that the caller may read, whether it exists or not.
    fn readable(&self, by: &By, name: &str) -> Result<TaskTypeName, Status> {
        self.check(Rpc::ListTaskTypes, by)?;
        let name = TaskTypeName::parse(name).map_err(|problem| Error::invalid("task_type", problem))?;
        let permitted = by.caller.check(Operation::Read, &name).map_err(Status::from);
        permitted.inspect_err(|status| self.note(Rpc::ListTaskTypes.name(), by, status))?;
        Ok(name)
    }

    fn check(&self, rpc: Rpc, by: &By) -> Result<(), Status> {
        let permitted = by.caller.check_rule(rule(rpc)).map_err(Status::from);
        permitted.inspect_err(|status| self.note(rpc.name(), by, status))
    }
}
