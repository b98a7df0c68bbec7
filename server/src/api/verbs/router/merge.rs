//! Calls that read from several stores, one after the other, and merge the responses. A page token names the store in which the
//! next page starts, and contains the page token that this store returned.

use std::mem::take;

use howdah_core::{error::Error, job::StoreNumber};

use super::{Concerned, Merged, answered, broker_of};
use crate::{
    api::verbs::{Answer, Call, Merge, page_token},
    stores::ConfiguredStore,
};

/// Number of entries after which a page is full, if the request has no page size.
const USUAL: usize = 100;

/// Parses a page token. Returns the index (in `stores`) of the store in which the page starts, and the page token of that
/// store.
fn begin(token: &str, stores: &[&ConfiguredStore]) -> Result<(usize, String), Error> {
    if token.is_empty() {
        return Ok((0, String::new()));
    }
    let parsed = token.split_once('.').and_then(|(number, rest)| {
        let number = number.parse().ok().and_then(StoreNumber::new)?;
        let is_it = |store: &&&ConfiguredStore| store.served().is_ok_and(|served| served.number == number);
        let (nth, _) = stores.iter().enumerate().find(|(_, store)| is_it(store))?;
        Some((nth, rest.to_owned()))
    });
    parsed.ok_or_else(page_token::bad)
}

/// Returns the number that stands for a store in page tokens.
fn number(store: &ConfiguredStore) -> u16 {
    store.served().map_or(0, |served| served.number.get())
}

impl Call {
    /// Calls each of these stores, one after the other, and merges the responses. Skips stores that do not answer in time, and
    /// names them in the metadata of the response.
    pub(in crate::api::verbs) async fn each<V: Merge>(
        &self,
        (stores, mut unanswered): Concerned<'_>,
        request: V::Request,
    ) -> Answer<V> {
        let is_alone = stores.len() == 1;
        let mut merged = Merged::<V>::new();
        for store in stores {
            let part = match broker_of(store) {
                Ok(broker) => answered(self.in_store::<V>(broker, request.clone()), is_alone).await?,
                Err(_) => None,
            };
            match part {
                Some(part) => merged.add(part, store.name()),
                None => unanswered.push(store.name()),
            }
        }
        merged.end(&unanswered)
    }

    /// Returns a page of a list that consists of the lists of these stores, one after the other. Skips stores that do not
    /// answer in time, and names them in the metadata of the response.
    pub(in crate::api::verbs) async fn pages<V: Merge>(
        &self,
        (stores, mut unanswered): Concerned<'_>,
        mut request: V::Request,
    ) -> Answer<V> {
        let (token, most) = match V::page(&mut request) {
            Some(page) => (take(page.token), page.size.map_or(0, |size| *size)),
            None => (String::new(), 0),
        };
        let (first, mut at) = begin(&token, &stores)?;
        let is_alone = stores.len() == 1;
        let (mut merged, mut count, mut next) = (Merged::<V>::new(), 0, String::new());
        for (nth, store) in stores.iter().enumerate().skip(first) {
            let Ok(broker) = broker_of(store) else {
                unanswered.push(store.name());
                continue;
            };
            let mut part = request.clone();
            if let Some(page) = V::page(&mut part) {
                *page.token = take(&mut at);
                if let Some(size) = page.size.filter(|_| most > 0) {
                    *size = most - count as i32;
                }
            }
            let Some(mut response) = answered(self.in_store::<V>(broker, part), is_alone).await? else {
                unanswered.push(store.name());
                continue;
            };
            let inner = V::next_page(response.get_mut()).map(take).unwrap_or_default();
            count += V::entries(response.get_ref());
            merged.add(response, store.name());
            if !inner.is_empty() {
                next = format!("{}.{inner}", number(store));
                break;
            }
            // Without a page size, each store uses its own default; the merged page is then full after `USUAL` entries.
            let is_full = count >= if most > 0 { most as usize } else { USUAL };
            if let Some(following) = stores.get(nth + 1).filter(|_| is_full) {
                next = format!("{}.", number(following));
                break;
            }
        }
        if let Some(token) = V::next_page(&mut merged.all) {
            *token = next;
        }
        merged.end(&unanswered)
    }
}
