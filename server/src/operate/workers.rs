//! Workers of this broker, in their current state, and workers of other brokers, in the last reported state.

use std::time::Duration;

use super::Operator;
use crate::{
    dispatch::Recipient as _,
    error::Error,
    job::{ListedWorker, WorkerPosition},
};

impl Operator {
    /// Returns up to `at_most` workers after a position. If `task_type` is set, returns only workers with a window for that
    /// type.
    pub async fn list_workers(
        &self,
        after: WorkerPosition,
        task_type: Option<&str>,
        at_most: usize,
    ) -> Result<Vec<ListedWorker>, Error> {
        let context = &self.context;
        let but_own = context.dispatch.broker_ids();
        let mut workers = context.store.list_workers(after, &but_own, task_type, at_most as i32).await?;
        workers.extend(self.own_workers(after, task_type, at_most));
        workers.sort_unstable_by_key(|worker| worker.position);
        workers.truncate(at_most);
        Ok(workers)
    }

    fn own_workers(&self, after: WorkerPosition, task_type: Option<&str>, at_most: usize) -> Vec<ListedWorker> {
        let context = &self.context;
        let broker_id = context.dispatch.broker_id();
        let mut sessions = context.sessions.all();
        sessions.retain(|session| WorkerPosition { broker_id, number: session.key() as i64 } > after);
        sessions.sort_unstable_by_key(|session| session.key());
        let listed = sessions.into_iter().map(|session| ListedWorker {
            position: WorkerPosition { broker_id, number: session.key() as i64 },
            broker: context.config.name.clone(),
            view: session.view(&context.dispatch, &context.registry),
            age: Duration::ZERO,
        });
        listed.filter(|worker| task_type.is_none_or(|name| worker.has_type(name))).take(at_most).collect()
    }

    /// Returns the public id of the worker that holds a job, if known.
    pub(super) async fn holder_of(&self, id: i64) -> Result<Option<String>, Error> {
        let own = self.context.sessions.all().into_iter().find(|session| session.holds_job(id));
        match own {
            Some(session) => Ok(Some(session.public_id().to_owned())),
            None => Ok(self.context.store.worker_of_job(id).await?),
        }
    }
}
