//! Calls that name many jobs: each store gets those of its own, at the same time.

use std::collections::BTreeMap;

use futures::future::join_all;
use tonic::{Extensions, Request, Response, Status};

use super::{Envelope, FleetService, Services, answered, joined, nobody, note_unanswered};

/// An answer that is put together from those of several stores.
pub(super) trait Joined: Default {
    /// Adds what another store has answered.
    fn join(&mut self, other: Self);
}

/// Items of one store.
struct Part<I> {
    items: Vec<I>,
    /// The name of the store.
    name: String,
    /// `None`: it cannot be asked.
    services: Option<Services>,
}

impl FleetService {
    /// The items by store. Those of no store go to the main one, which answers them like jobs that do not exist.
    fn parts<I>(&self, items: Vec<I>, id: impl Fn(&I) -> i64) -> Vec<Part<I>> {
        let main = self.fleet.main_name();
        let mut by_store = BTreeMap::<String, Vec<I>>::new();
        for item in items {
            let name = self.fleet.store_of(id(&item)).unwrap_or(main);
            match by_store.get_mut(name) {
                Some(of_store) => of_store.push(item),
                None => drop(by_store.insert(name.to_owned(), vec![item])),
            }
        }
        let of = |(name, items): (String, Vec<I>)| {
            let found = self.fleet.named(&name).and_then(|member| self.of_engine(member.engine()?));
            Part { items, name, services: found.ok() }
        };
        by_store.into_iter().map(of).collect()
    }

    /// Makes a call with the items of each store. Items of stores that do not answer are left out, and the stores are named.
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
        let Some(mut response) = answer else { return Err(nobody(&names)) };
        note_unanswered(&mut response, &names);
        Ok(response)
    }

    /// The same; of items without an answer, what `mark` makes of them is returned, with the name of their store.
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
        let (envelope, message) = Envelope::of(request);
        if parts.is_empty() {
            // The call says what is wrong with it.
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
