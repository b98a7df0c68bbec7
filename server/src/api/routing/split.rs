//! Calls that name many jobs. Splits the ids by store and calls the stores concurrently.

use std::collections::BTreeMap;

use futures::future::join_all;
use tonic::{Extensions, Request, Response, Status};

use super::{Envelope, RoutingService, Services, answered, joined, no_answer, note_unanswered};

/// A response that is merged from several stores.
pub(super) trait Joined: Default {
    /// Adds the response of another store.
    fn join(&mut self, other: Self);
}

/// Items of one store.
struct Part<I> {
    items: Vec<I>,
    /// Name of the store.
    name: String,
    /// `None` if the store is unreachable.
    services: Option<Services>,
}

impl RoutingService {
    /// Groups items by store. Ids without a store go to the primary store, which reports them as jobs that do not exist.
    fn parts<I>(&self, items: Vec<I>, id: impl Fn(&I) -> i64) -> Vec<Part<I>> {
        let main = self.stores.main_name();
        let mut by_store = BTreeMap::<String, Vec<I>>::new();
        for item in items {
            let name = self.stores.store_of(id(&item)).unwrap_or(main);
            match by_store.get_mut(name) {
                Some(of_store) => of_store.push(item),
                None => drop(by_store.insert(name.to_owned(), vec![item])),
            }
        }
        let of = |(name, items): (String, Vec<I>)| {
            let found = self.stores.named(&name).and_then(|store| self.services_of(store.served()?));
            Part { items, name, services: found.ok() }
        };
        by_store.into_iter().map(of).collect()
    }

    /// Calls each store with its items. Omits the items of stores that do not answer, and names those stores.
    pub(super) async fn split<T, I, A, F>(
        &self,
        request: Request<T>,
        items: Vec<I>,
        id: impl Fn(&I) -> i64,
        with: impl Fn(&T, Vec<I>) -> T,
        call: impl Fn(Services, Request<T>) -> F,
    ) -> Result<Response<A>, Status>
    where
        A: Joined,
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let (answer, unanswered) = self.split_items(request, items, (id, |_: &I| ()), with, call).await?;
        let names: Vec<&str> = unanswered.iter().map(|(name, _)| name.as_str()).collect();
        let Some(mut response) = answer else { return Err(no_answer(&names)) };
        note_unanswered(&mut response, &names);
        Ok(response)
    }

    /// Like `split`, but also returns the items without an answer, converted by `mark`, with the names of their stores.
    pub(super) async fn split_items<T, I, A, F, M>(
        &self,
        request: Request<T>,
        items: Vec<I>,
        (id, mark): (impl Fn(&I) -> i64, impl Fn(&I) -> M),
        with: impl Fn(&T, Vec<I>) -> T,
        call: impl Fn(Services, Request<T>) -> F,
    ) -> Result<(Option<Response<A>>, Vec<(String, Vec<M>)>), Status>
    where
        A: Joined,
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let parts = self.parts(items, id);
        let (envelope, message) = Envelope::split(request);
        if parts.is_empty() {
            // The primary store rejects the empty request.
            return Ok((Some(call(self.main(), envelope.around(message)).await?), Vec::new()));
        }
        let is_alone = parts.len() == 1;
        let calls = parts.into_iter().map(|Part { items, name, services }| {
            let marks: Vec<M> = items.iter().map(&mark).collect();
            let request = envelope.around(with(&message, items));
            let call = services.map(|services| call(services, request));
            async move {
                let answer = match call {
                    Some(call) => answered(call, is_alone).await,
                    None => Ok(None),
                };
                (name, marks, answer)
            }
        });
        let (mut answer, mut held, mut unanswered) = (None::<A>, Vec::<Extensions>::new(), Vec::new());
        for (name, marks, answered) in join_all(calls).await {
            match answered? {
                Some(response) => {
                    let (_, part, extensions) = response.into_parts();
                    held.push(extensions);
                    answer.get_or_insert_default().join(part);
                }
                None => unanswered.push((name, marks)),
            }
        }
        Ok((answer.map(|answer| joined(answer, held)), unanswered))
    }
}
