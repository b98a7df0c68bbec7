//! A store that a pull call queries, with the ids of the requested task types in that store.

use std::{collections::HashMap, sync::Arc};

use futures::{StreamExt as _, stream::FuturesUnordered};
use howdah_core::{
    error::Error,
    job::{LeasedJob, TaskTypeName, TypeId},
};
use howdah_engine::{
    registry::Awaited,
    session::{Pulling, SessionContext, Unsent},
    store::StoreError,
};
use tokio::{
    sync::OwnedMutexGuard,
    time::{Instant, timeout_at},
};

use crate::stores::{
    pull::{GIVE_UP_AFTER, OVERLAP_AFTER, PullArgs, no_store_answered},
    stream::{Home, Serving},
};

/// Requested task types that a store has, with their ids.
pub(super) type Found = HashMap<TaskTypeName, TypeId>;

/// A store that a pull call queries.
pub(super) struct PulledStore {
    store_no: usize,
    context: Arc<SessionContext>,
    /// Ids of the requested task types that the store has. `None` until the store has been asked.
    ids: Option<Vec<TypeId>>,
    /// Counts this call as a waiting pull of these task types at the store's broker, until dropped.
    _pulling: Pulling,
    /// Reports when a requested task type that the store lacks is created there.
    awaited: Awaited,
}

impl PulledStore {
    /// Creates the state of a store that has not been asked yet which of the requested types it has.
    fn new(store_no: usize, context: Arc<SessionContext>) -> Self {
        let (awaited, pulling) = (context.registry.await_types(Vec::new()), context.sessions.pulls.begin(&[]));
        Self { store_no, context, ids: None, _pulling: pulling, awaited }
    }

    pub(super) fn context(&self) -> &Arc<SessionContext> {
        &self.context
    }

    /// Returns the ids of the requested types that the store has. Empty until the store has been asked.
    pub(super) fn ids(&self) -> &[TypeId] {
        self.ids.as_deref().unwrap_or_default()
    }

    /// Returns the arguments of the next query to this store.
    pub(super) fn query_args(&self) -> (Arc<SessionContext>, Option<Vec<TypeId>>) {
        (self.context.clone(), self.ids.clone())
    }

    /// Records which of the requested task types the store has.
    pub(super) fn has(&mut self, found: &Found, types: &[TaskTypeName]) {
        let ids: Vec<TypeId> = found.values().copied().collect();
        let awaited = self.context.registry.await_types(missing(found, types));
        let pulling = self.context.sessions.pulls.begin(&ids);
        *self =
            Self { store_no: self.store_no, context: self.context.clone(), ids: Some(ids), _pulling: pulling, awaited };
    }

    /// Forgets which task types the store has, so that the next query looks them up again.
    pub(super) fn clear_types(&mut self) {
        *self = Self::new(self.store_no, self.context.clone());
    }

    async fn look_up(&mut self, types: &[TaskTypeName]) -> Result<(), StoreError> {
        let found = self.context.registry.find_all(types).await?;
        self.has(&found, types);
        Ok(())
    }

    /// Waits until a requested task type that the store lacks is created there.
    pub(super) async fn appeared(&self) {
        self.awaited.appeared().await;
    }
}

fn missing(found: &Found, types: &[TaskTypeName]) -> Vec<TaskTypeName> {
    types.iter().filter(|name| !found.contains_key(*name)).cloned().collect()
}

/// Claims ready jobs of a store. If the ids of the task types are unknown, looks them up first and returns them as
/// `Found`.
pub(super) async fn query(
    nth: usize,
    (context, ids): (Arc<SessionContext>, Option<Vec<TypeId>>),
    args: &PullArgs,
) -> (usize, Option<Found>, Result<(Vec<LeasedJob>, Unsent), Error>) {
    let (ids, found) = match ids {
        Some(ids) => (ids, None),
        None => match context.registry.find_all(&args.types).await {
            Ok(found) => (found.values().copied().collect(), Some(found)),
            Err(error) => return (nth, None, Err(error.into())),
        },
    };
    (nth, found, context.pull_once(&ids, args.max_jobs, args.lease).await)
}

/// Asks the stores which of the task types they have. Returns all stores once at least one has answered. If all have
/// answered, creates the types that no store has in their home stores.
pub(super) async fn pulled_stores(
    served: &[(usize, Serving)],
    stores: usize,
    home: &Home,
    types: &[TaskTypeName],
    by: &str,
) -> Result<Vec<PulledStore>, Error> {
    let mut pulled_stores: Vec<PulledStore> =
        served.iter().map(|(store_no, serving)| PulledStore::new(*store_no, serving.context.clone())).collect();
    // Unreachable stores are not asked, unless all are unreachable: then the call fails with an error of a store.
    let all_away = pulled_stores.iter().all(|part| part.context.store.is_unreachable());
    let mut contexts: Vec<(usize, Arc<SessionContext>)> =
        pulled_stores.iter().map(|part| part.context.clone()).enumerate().collect();
    contexts.retain(|(_, context)| all_away || !context.store.is_unreachable());
    let find =
        |(nth, context): (usize, Arc<SessionContext>)| async move { (nth, context.registry.find_all(types).await) };
    let mut answers: FuturesUnordered<_> = contexts.into_iter().map(find).collect();
    let (mut having, mut failure): (Vec<Found>, Option<Error>) = (Vec::new(), None);
    let begun = Instant::now();
    // A type may be created only if all stores have answered that they do not have it, so the call waits for all
    // answers. Once a store has one of the types, that store may have jobs, so the call waits only `OVERLAP_AFTER`.
    while let has_none = having.iter().all(HashMap::is_empty)
        && let max_wait = if has_none { GIVE_UP_AFTER } else { OVERLAP_AFTER }
        && let Ok(Some((nth, found))) = timeout_at(begun + max_wait, answers.next()).await
    {
        match (found, pulled_stores.get_mut(nth)) {
            (Ok(found), Some(part)) => {
                part.has(&found, types);
                having.push(found);
            }
            (Err(error), _) => failure = Some(error.into()),
            (Ok(_), None) => {}
        }
    }
    if having.is_empty() {
        return Err(failure.unwrap_or_else(no_store_answered));
    }
    if having.len() == stores {
        let is_nowhere = |name: &&TaskTypeName| having.iter().all(|found| !found.contains_key(*name));
        let new: Vec<TaskTypeName> = types.iter().filter(is_nowhere).cloned().collect();
        for part in &mut pulled_stores {
            let own: Vec<TaskTypeName> = new.iter().filter(|name| home(name) == part.store_no).cloned().collect();
            if !own.is_empty() {
                part.context.registry.resolve(&own, by).await?;
                part.look_up(types).await?;
            }
        }
    }
    drop(answers);
    Ok(pulled_stores)
}

/// Limits the late wait to one pull call per store, because waiting calls hold memory that calls for other stores need.
/// One call per store suffices to deliver the jobs of a slow store eventually.
pub(super) struct LateWait<'a> {
    contexts: &'a [Arc<SessionContext>],
    /// Late-wait permits that this call holds, by position of the store.
    permits: HashMap<usize, OwnedMutexGuard<()>>,
}

impl<'a> LateWait<'a> {
    pub(super) fn new(contexts: &'a [Arc<SessionContext>]) -> Self {
        Self { contexts, permits: HashMap::new() }
    }

    /// Whether this call waits late for the store. False if the store is unreachable, or if another call already waits
    /// for it.
    pub(super) fn waits_for(&mut self, nth: usize) -> bool {
        let Some(context) = self.contexts.get(nth).filter(|context| !context.store.is_unreachable()) else {
            return false;
        };
        if let Some(permit) = context.sessions.pulls.late_wait_permit() {
            self.permits.insert(nth, permit);
        }
        self.permits.contains_key(&nth)
    }
}
