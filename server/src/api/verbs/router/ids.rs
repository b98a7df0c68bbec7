//! Calls with job ids: the jobs are grouped by store, and the stores are called concurrently. Finds jobs that have moved to
//! another store, so that calls with their old ids still work.

use std::collections::{BTreeMap, HashMap};

use futures::future::join_all;
use howdah_core::error::Error;
use howdah_engine::broker::SharedBroker;
use howdah_proto::v1;
use tonic::Status;

use crate::api::verbs::{
    Answer, Call, Merge, Verb,
    router::{Merged, answered},
};

/// Result of a split call: the merged response of the stores that answered, and for each other store its name and items.
type Split<V, M> = Result<(Merged<V>, Vec<(String, Vec<M>)>), Status>;

impl Call {
    /// Calls each store with the ids of its jobs. The response lacks the jobs of stores that do not answer; its metadata names
    /// these stores. `with` builds the request for a store.
    pub(in crate::api::verbs) async fn split<V: Merge>(
        &self,
        request: V::Request,
        ids: Vec<i64>,
        with: impl Fn(&V::Request, Vec<i64>) -> V::Request,
    ) -> Answer<V> {
        let (merged, unanswered) = self.split_items::<V, _, _>(request, ids, (|id| *id, |_| ()), with).await?;
        merged.end(&unanswered.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>())
    }

    /// Like [`Self::split`], for items with an id. Also returns the items of stores that do not answer, converted by `mark`,
    /// with the names of the stores.
    pub(in crate::api::verbs) async fn split_items<V: Merge, I, M>(
        &self,
        request: V::Request,
        items: Vec<I>,
        (id, mark): (impl Fn(&I) -> i64, impl Fn(&I) -> M),
        with: impl Fn(&V::Request, Vec<I>) -> V::Request,
    ) -> Split<V, M> {
        if items.is_empty() {
            // There are no items. The primary store rejects the request.
            let mut merged = Merged::new();
            merged.add(self.primary::<V>(request).await?, self.stores.main_name());
            return Ok((merged, Vec::new()));
        }
        let parts = self.by_store(items, id);
        let is_alone = parts.len() == 1;
        let calls = parts.into_iter().map(|(name, items)| {
            let marks: Vec<M> = items.iter().map(&mark).collect();
            let part = with(&request, items);
            async move {
                let answer = match self.broker_named(&name) {
                    Ok(broker) => answered(self.in_store::<V>(broker, part), is_alone).await,
                    Err(_) => Ok(None),
                };
                (name, marks, answer)
            }
        });
        let (mut merged, mut unanswered) = (Merged::new(), Vec::new());
        for (name, marks, answered) in join_all(calls).await {
            match answered? {
                Some(response) => merged.add(response, &name),
                None => unanswered.push((name, marks)),
            }
        }
        Ok((merged, unanswered))
    }

    /// Calls the stores that have the jobs of a filter: each store with the ids of its jobs, or all stores with the task type
    /// of the filter. `filter` returns the filter of a request.
    pub(in crate::api::verbs) async fn filtered<V: Merge>(
        &self,
        mut request: V::Request,
        filter: impl Fn(&mut V::Request) -> &mut Option<v1::JobFilter>,
    ) -> Answer<V> {
        let v1::JobFilter { ids, task_type, .. } = filter(&mut request).clone().unwrap_or_default();
        if !task_type.is_empty() {
            return self.pages::<V>(self.concerned(&task_type).await?, request).await;
        }
        let with = |request: &V::Request, ids| {
            let mut part = request.clone();
            filter(&mut part).get_or_insert_default().ids = ids;
            part
        };
        self.split::<V>(request, ids, with).await
    }

    /// Groups items by store. Items whose id belongs to no store go to the primary store, which reports them as jobs that do
    /// not exist.
    pub(in crate::api::verbs) fn by_store<I>(&self, items: Vec<I>, id: impl Fn(&I) -> i64) -> BTreeMap<String, Vec<I>> {
        let mut by_store = BTreeMap::<String, Vec<I>>::new();
        for item in items {
            let name = self.stores.store_of(id(&item)).unwrap_or(self.stores.main_name());
            match by_store.get_mut(name) {
                Some(of_store) => of_store.push(item),
                None => drop(by_store.insert(name.to_owned(), vec![item])),
            }
        }
        by_store
    }

    /// Returns the broker of the store with this name. Fails if the store is unreachable.
    pub(in crate::api::verbs) fn broker_named(&self, name: &str) -> Result<&SharedBroker, Error> {
        self.stores.named(name)?.served()?.reachable()
    }
}

/// Maximum number of successive moves of one job between stores that a call follows.
const MOVES: usize = 8;

impl Call {
    /// Runs a verb in the store of a job. If the job has moved to another store, runs it there with the new id. `with` builds
    /// the request for a job id.
    pub(in crate::api::verbs) async fn follow<V: Verb>(&self, id: i64, with: impl Fn(i64) -> V::Request) -> Answer<V> {
        let found = self.in_store::<V>(self.of_id(id)?, with(id)).await;
        match &found {
            Err(status) if status.code() == tonic::Code::NotFound => {}
            _ => return found,
        }
        let Some(id) = self.moved_one(id).await? else { return found };
        self.in_store::<V>(self.of_id(id)?, with(id)).await
    }

    /// Returns a map from the old to the current ids of the jobs that have moved. Skips stores from which no job has moved.
    /// Also skips unreachable stores, which the call reports itself.
    pub(in crate::api::verbs) async fn moved(&self, ids: &[i64]) -> Result<HashMap<i64, i64>, Error> {
        let mut now: HashMap<i64, i64> = HashMap::new();
        let mut at: Vec<(i64, i64)> = ids.iter().map(|id| (*id, *id)).collect();
        for _ in 0..MOVES {
            let mut next = Vec::new();
            for served in self.stores.served() {
                let own: Vec<(i64, i64)> = at
                    .iter()
                    .filter(|(_, id)| self.stores.store_of(*id) == Some(served.name.as_str()))
                    .copied()
                    .collect();
                let Ok(broker) = served.reachable() else { continue };
                let ids: Vec<i64> = own.iter().map(|(_, id)| *id).collect();
                let moved: HashMap<i64, i64> = broker.operator.moved_jobs(&ids).await?.into_iter().collect();
                next.extend(own.iter().filter_map(|(old, id)| Some((*old, *moved.get(id)?))));
            }
            if next.is_empty() {
                break;
            }
            now.extend(next.iter().copied());
            at = next;
        }
        Ok(now)
    }

    /// Returns the current id of a job if it has moved. Fails if its move is in progress.
    pub(super) async fn moved_one(&self, id: i64) -> Result<Option<i64>, Error> {
        if let Some(now) = self.moved(&[id]).await?.remove(&id) {
            return Ok(Some(now));
        }
        let Ok(Some(served)) = self.stores.of_id(id) else { return Ok(None) };
        match served.reachable()?.operator.on_its_way(id).await? {
            Some(error) => Err(error),
            // The job may have arrived in its new store since the first lookup.
            None => Ok(self.moved(&[id]).await?.remove(&id)),
        }
    }
}
