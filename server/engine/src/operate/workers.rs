//! Workers of this broker, in their current state, and workers of other brokers, in the last reported state.

use std::{
    collections::HashSet,
    time::{Duration, SystemTime},
};

use howdah_core::{
    error::Error,
    job::{JobConditions, ListedWorker, TypeId, TypeView, WorkerPosition},
};

use super::Operator;
use crate::{dispatch::Recipient as _, store::Holder};

/// Programs that have called `PullJobs` for a task type within this time are expected to pull again.
pub(super) const PULLS_AGAIN: Duration = Duration::from_secs(3_600);

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

    /// Returns the names of those task types whose ready jobs no worker takes: no worker subscribes to the type at any broker, and
    /// no program has pulled its jobs lately. Paused types are left out.
    pub async fn types_without_workers(&self, types: &[TypeView]) -> Result<HashSet<String>, Error> {
        let context = &self.context;
        let pulls_again = |last: SystemTime| last.elapsed().unwrap_or_default() <= PULLS_AGAIN;
        let wait = types.iter().filter(|view| view.counts[0] > 0 && !view.settings.paused);
        let mut names: HashSet<String> =
            wait.filter(|view| !view.last_pull.is_some_and(pulls_again)).map(|view| view.name.clone()).collect();
        for (type_id, _) in context.dispatch.workers().into_iter().filter(|(_, workers)| *workers > 0) {
            if let Some(name) = context.registry.name(type_id) {
                names.remove(name.as_str());
            }
        }
        if !names.is_empty() {
            let asked: Vec<&str> = names.iter().map(String::as_str).collect();
            for name in context.store.types_with_workers(&asked, &context.dispatch.broker_ids()).await? {
                names.remove(&name);
            }
        }
        Ok(names)
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

    /// Returns the worker that holds a job, if known.
    pub(super) async fn holder_of(&self, id: i64) -> Result<Option<Holder>, Error> {
        let own = self.context.sessions.all().into_iter().find(|session| session.holds_job(id));
        match own {
            Some(session) => {
                let worker_id = session.public_id().to_owned();
                Ok(Some(Holder { worker_id, is_connected: session.is_connected() }))
            }
            None => Ok(self.context.store.worker_of_job(id).await?),
        }
    }

    /// Returns the jobs of a task type that the worker with this public id holds, as far as they are known. Empty if there is no
    /// such worker.
    pub(super) async fn held_by(&self, worker_id: &str, type_id: Option<TypeId>) -> Result<Vec<i64>, Error> {
        let own = self.context.sessions.all().into_iter().find(|session| session.public_id() == worker_id);
        match own {
            Some(session) => Ok(session.held_jobs_of(type_id)),
            None => Ok(self.context.store.jobs_of_worker(worker_id, type_id).await?),
        }
    }

    /// Returns the jobs of a task type, or of all types, that the worker of the conditions holds; `None` if they name no
    /// worker.
    pub(super) async fn held_by_worker_of(
        &self,
        conditions: &JobConditions,
        type_id: Option<TypeId>,
    ) -> Result<Option<Vec<i64>>, Error> {
        match &conditions.worker_id {
            Some(worker_id) => Ok(Some(self.held_by(worker_id, type_id).await?)),
            None => Ok(None),
        }
    }
}
