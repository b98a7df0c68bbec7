//! Pagination over several stores: one store after the other, in the order of the configuration. A page token names the store in
//! which the next page starts, and contains that store's own token.

use howdah_proto::v1;
use tonic::{Extensions, Request, Response, Status};

use super::{Envelope, RoutingService, Services, answered, joined, no_answer, note_unanswered};
use crate::{
    api::{page_token, pages::Paged},
    job::StoreNumber,
    stores::ConfiguredStore,
};

/// Number of entries that fill a page if the request has no page size.
const USUAL: usize = 100;

/// A response with a page of a list.
pub(super) trait Listed: Default {
    /// Number of entries.
    fn len(&self) -> usize;

    /// Token of the next page.
    fn token(&mut self) -> &mut String;

    /// Appends the entries of another page.
    fn append(&mut self, other: Self);

    /// Sets the store of each entry. Jobs need none, because their ids identify the store.
    fn name_store(&mut self, _: &str) {}
}

macro_rules! listed {
    ($($answer:ident: $entries:ident $(, $named:ident)?;)*) => {
        $(impl Listed for v1::$answer {
            fn len(&self) -> usize {
                self.$entries.len()
            }

            fn token(&mut self) -> &mut String {
                &mut self.next_page_token
            }

            fn append(&mut self, other: Self) {
                self.$entries.extend(other.$entries);
            }

            $(fn name_store(&mut self, name: &str) {
                for entry in &mut self.$entries {
                    name.clone_into(&mut entry.$named);
                }
            })?
        })*
    };
}

listed! {
    ListJobsResponse: jobs;
    ListLimitKeysResponse: limit_keys, store;
    ListSchedulesResponse: schedules, store;
    ListWorkersResponse: workers, store;
    ListBulksResponse: bulks, store;
    ListAuditResponse: entries, store;
}

impl Listed for v1::ListTaskTypesResponse {
    fn len(&self) -> usize {
        self.task_types.len()
    }

    fn token(&mut self) -> &mut String {
        &mut self.next_page_token
    }

    fn append(&mut self, other: Self) {
        self.task_types.extend(other.task_types);
        // Keeps the age of the oldest count. Storage health is per store, so only a call that names a store returns it.
        let ages = [self.count_age.take(), other.count_age].into_iter().flatten();
        self.count_age = ages.max_by_key(|age| (age.seconds, age.nanos));
        self.storage = self.storage.take().or(other.storage);
    }

    fn name_store(&mut self, name: &str) {
        for entry in &mut self.task_types {
            name.clone_into(&mut entry.store);
        }
    }
}

impl Listed for v1::SearchJobsResponse {
    fn len(&self) -> usize {
        self.jobs.len()
    }

    fn token(&mut self) -> &mut String {
        &mut self.next_page_token
    }

    fn append(&mut self, other: Self) {
        self.jobs.extend(other.jobs);
        self.skipped_ids.extend(other.skipped_ids);
        self.scanned_count += other.scanned_count;
        self.estimated_count += other.estimated_count;
    }
}

/// Start of a page: the store, and the token within the store.
fn begin(token: &str, stores: &[&ConfiguredStore]) -> Result<(usize, String), Status> {
    if token.is_empty() {
        return Ok((0, String::new()));
    }
    let parsed = token.split_once('.').and_then(|(number, rest)| {
        let number = number.parse().ok().and_then(StoreNumber::new)?;
        let is_it = |store: &&&ConfiguredStore| store.served().is_ok_and(|served| served.number == number);
        let (nth, _) = stores.iter().enumerate().find(|(_, store)| is_it(store))?;
        Some((nth, rest.to_owned()))
    });
    Ok(parsed.ok_or_else(page_token::bad)?)
}

impl RoutingService {
    /// Returns a page of a list from these stores, in order. Skips stores that do not answer in time, and names them.
    pub(super) async fn one_by_one<T, A, F>(
        &self,
        request: Request<T>,
        (stores, mut unanswered): (Vec<&ConfiguredStore>, Vec<&str>),
        call: impl Fn(Services, Request<T>) -> F,
    ) -> Result<Response<A>, Status>
    where
        T: Paged + Clone,
        A: Listed,
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let (envelope, mut message) = Envelope::split(request);
        let (token, size) = message.page();
        let (first, mut at) = begin(&std::mem::take(token), &stores)?;
        let most = size.map_or(0, |size| *size);
        let is_alone = stores.len() == 1;
        let (mut answer, mut parts, mut heard) = (A::default(), Vec::<Extensions>::new(), false);
        for (nth, store) in stores.iter().enumerate().skip(first) {
            let Ok(services) = store.reachable().and_then(|served| self.services_of(served)) else {
                unanswered.push(store.name());
                continue;
            };
            let mut part = message.clone();
            let (token, size) = part.page();
            *token = std::mem::take(&mut at);
            if let Some(size) = size
                && most > 0
            {
                *size = most - answer.len() as i32;
            }
            let Some(response) = answered(call(services, envelope.around(part)), is_alone).await? else {
                unanswered.push(store.name());
                continue;
            };
            heard = true;
            let (_, mut found, extensions) = response.into_parts();
            parts.push(extensions);
            found.name_store(store.name());
            let inner = std::mem::take(found.token());
            answer.append(found);
            let number = |store: &ConfiguredStore| store.served().map_or(0, |served| served.number.get());
            if !inner.is_empty() {
                *answer.token() = format!("{}.{inner}", number(store));
                break;
            }
            // Without a page size, each store uses its default.
            let is_full = answer.len() >= if most > 0 { most as usize } else { USUAL };
            if let Some(next) = stores.get(nth + 1).filter(|_| is_full) {
                *answer.token() = format!("{}.", number(next));
                break;
            }
        }
        if !heard && !unanswered.is_empty() {
            return Err(no_answer(&unanswered));
        }
        let mut response = joined(answer, parts);
        note_unanswered(&mut response, &unanswered);
        Ok(response)
    }
}
