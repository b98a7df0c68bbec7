//! A store that a call for jobs may ask, and which of the types it has.

use std::{collections::HashMap, sync::Arc};

use futures::{StreamExt as _, stream::FuturesUnordered};
use tokio::time::{Instant, timeout_at};

use super::{LONGEST, PATIENCE, PullArgs, silence};
use crate::{
    error::Error,
    job::{LeasedJob, TaskTypeName, TypeId},
    registry::Awaited,
    session::{Pulling, SessionContext, Unsent},
    store::StoreError,
    stores::stream::{Home, Serving},
};

/// Those of the types that a store has.
pub(super) type Found = HashMap<TaskTypeName, TypeId>;

/// A store that can be asked.
pub(super) struct Part {
    engine: usize,
    context: Arc<SessionContext>,
    /// Of the types that it has; `None`: it has not said so yet.
    ids: Option<Vec<TypeId>>,
    /// Notes that these types are pulled, for as long as the call goes on.
    _pulling: Pulling,
    /// The types that it does not have yet.
    awaited: Awaited,
}

impl Part {
    /// One that has not said which types it has.
    fn new(engine: usize, context: Arc<SessionContext>) -> Self {
        let (awaited, pulling) = (context.registry.await_types(Vec::new()), context.sessions.pulls.begin(&[]));
        Self { engine, context, ids: None, _pulling: pulling, awaited }
    }

    pub(super) fn context(&self) -> &Arc<SessionContext> {
        &self.context
    }

    /// Ids of the types that it has, as far as it has said so.
    pub(super) fn ids(&self) -> &[TypeId] {
        self.ids.as_deref().unwrap_or_default()
    }

    /// What it is asked.
    pub(super) fn question(&self) -> (Arc<SessionContext>, Option<Vec<TypeId>>) {
        (self.context.clone(), self.ids.clone())
    }

    /// It has said which of the types it has.
    pub(super) fn has(&mut self, found: &Found, types: &[TaskTypeName]) {
        let ids: Vec<TypeId> = found.values().copied().collect();
        let awaited = self.context.registry.await_types(missing(found, types));
        let pulling = self.context.sessions.pulls.begin(&ids);
        *self = Self { engine: self.engine, context: self.context.clone(), ids: Some(ids), _pulling: pulling, awaited };
    }

    /// It has to say again which of the types it has.
    pub(super) fn forget(&mut self) {
        *self = Self::new(self.engine, self.context.clone());
    }

    async fn look_up(&mut self, types: &[TaskTypeName]) -> Result<(), StoreError> {
        let found = self.context.registry.find_all(types).await?;
        self.has(&found, types);
        Ok(())
    }

    /// Ends when it has one more of the types.
    pub(super) async fn appeared(&self) {
        self.awaited.appeared().await;
    }
}

fn missing(found: &Found, types: &[TaskTypeName]) -> Vec<TaskTypeName> {
    types.iter().filter(|name| !found.contains_key(*name)).cloned().collect()
}

/// Asks a store for jobs, and first for its types if it has not said yet which it has.
pub(super) async fn look(
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

/// The stores, of which one at least has said which of the types it has. The others have had some time for it. Types that none
/// has are created at home.
pub(super) async fn parts(
    served: &[(usize, Serving)],
    engines: usize,
    home: &Home,
    types: &[TaskTypeName],
    by: &str,
) -> Result<Vec<Part>, Error> {
    let mut parts: Vec<Part> =
        served.iter().map(|(engine, serving)| Part::new(*engine, serving.context.clone())).collect();
    // Nobody waits for those that are known to be away, unless all are.
    let all_away = parts.iter().all(|part| part.context.store.is_away());
    let mut contexts: Vec<(usize, Arc<SessionContext>)> =
        parts.iter().map(|part| part.context.clone()).enumerate().collect();
    contexts.retain(|(_, context)| all_away || !context.store.is_away());
    let find =
        |(nth, context): (usize, Arc<SessionContext>)| async move { (nth, context.registry.find_all(types).await) };
    let mut answers: FuturesUnordered<_> = contexts.into_iter().map(find).collect();
    let (mut having, mut failure): (Vec<Found>, Option<Error>) = (Vec::new(), None);
    let begun = Instant::now();
    // A type is not made as long as a store may have it. So a call waits for that, unless there may be jobs for it elsewhere.
    while let has_none = having.iter().all(HashMap::is_empty)
        && let patience = if has_none { LONGEST } else { PATIENCE }
        && let Ok(Some((nth, found))) = timeout_at(begun + patience, answers.next()).await
    {
        match (found, parts.get_mut(nth)) {
            (Ok(found), Some(part)) => {
                part.has(&found, types);
                having.push(found);
            }
            (Err(error), _) => failure = Some(error.into()),
            (Ok(_), None) => {}
        }
    }
    if having.is_empty() {
        return Err(failure.unwrap_or_else(silence));
    }
    if having.len() == engines {
        let is_nowhere = |name: &&TaskTypeName| having.iter().all(|found| !found.contains_key(*name));
        let new: Vec<TaskTypeName> = types.iter().filter(is_nowhere).cloned().collect();
        for part in &mut parts {
            let own: Vec<TaskTypeName> = new.iter().filter(|name| home(name) == part.engine).cloned().collect();
            if !own.is_empty() {
                part.context.registry.resolve(&own, by).await?;
                part.look_up(types).await?;
            }
        }
    }
    drop(answers);
    Ok(parts)
}
