//! Calls that name many jobs. The jobs are grouped by store, and the stores are called concurrently.

use std::collections::BTreeMap;

use futures::future::join_all;
use howdah_core::error::Error;
use howdah_engine::broker::SharedBroker;
use tonic::{Extensions, Response, Status};

use super::{answered, joined, no_answer, note_unanswered};
use crate::api::verbs::{Answer, Call, Merge, Verb};

/// Result of a split call: the merged response of the stores that answered, and for each other store its name and items.
type Split<V, M> = Result<(Option<Response<<V as Verb>::Response>>, Vec<(String, Vec<M>)>), Status>;

impl Call {
    /// Calls each store with the ids of its jobs. The response lacks the jobs of stores that do not answer; its metadata names
    /// these stores. `with` builds the request for a store.
    pub(in crate::api::verbs) async fn split<V: Merge>(
        &self,
        request: V::Request,
        ids: Vec<i64>,
        with: impl Fn(&V::Request, Vec<i64>) -> V::Request,
    ) -> Answer<V> {
        let (answer, unanswered) = self.split_items::<V, _, _>(request, ids, (|id| *id, |_| ()), with).await?;
        let names: Vec<&str> = unanswered.iter().map(|(name, _)| name.as_str()).collect();
        let Some(mut response) = answer else { return Err(no_answer(&names)) };
        note_unanswered(&mut response, &names);
        Ok(response)
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
            return Ok((Some(self.primary::<V>(request).await?), Vec::new()));
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
        let (mut all, mut held, mut unanswered) = (V::Response::default(), Vec::<Extensions>::new(), Vec::new());
        for (name, marks, answered) in join_all(calls).await {
            match answered? {
                Some(response) => {
                    let (_, part, extensions) = response.into_parts();
                    held.push(extensions);
                    V::merge(&mut all, part, &name);
                }
                None => unanswered.push((name, marks)),
            }
        }
        Ok(((!held.is_empty()).then(|| joined(all, held)), unanswered))
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
