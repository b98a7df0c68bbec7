//! Lists of several stores: one store after the other, in the order of the configuration. A page token says in which store the
//! next page begins, and where there; that part is the store's own token, which no other store takes.

use howdah_proto::v1;
use tonic::{Extensions, Request, Response, Status};

use super::{Envelope, FleetService, Services, answered, joined, nobody, note_unanswered};
use crate::{
    api::{page_token, pages::Paged},
    job::StoreNumber,
    stores::Member,
};

/// Entries after which a page ends whose size is not given.
const USUAL: usize = 100;

/// An answer with a part of a list.
pub(super) trait Listed: Default {
    /// How many entries it has.
    fn len(&self) -> usize;

    /// Where the next page begins.
    fn token(&mut self) -> &mut String;

    /// Adds the entries of another one.
    fn append(&mut self, other: Self);

    /// Says in each entry which store it is of. Jobs need not: their ids do.
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
        // The oldest count, and the storage of the store that the caller names: several have no health in common.
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
        self.looked_at_count += other.looked_at_count;
        self.estimated_count += other.estimated_count;
    }
}

/// Where a page begins: in which store, and at which token of it.
fn begin(token: &str, members: &[&Member]) -> Result<(usize, String), Status> {
    if token.is_empty() {
        return Ok((0, String::new()));
    }
    let parsed = token.split_once('.').and_then(|(number, rest)| {
        let number = number.parse().ok().and_then(StoreNumber::new)?;
        let is_it = |member: &&&Member| member.engine().is_ok_and(|engine| engine.number == number);
        let (nth, _) = members.iter().enumerate().find(|(_, member)| is_it(member))?;
        Some((nth, rest.to_owned()))
    });
    Ok(parsed.ok_or_else(page_token::bad)?)
}

impl FleetService {
    /// A page of a list, from these stores in turn. A store that does not answer in time is left out, and named.
    pub(super) async fn in_turn<T, A, F>(
        &self,
        request: Request<T>,
        (members, mut unanswered): (Vec<&Member>, Vec<&str>),
        call: impl Fn(Services, Request<T>) -> F,
    ) -> Result<Response<A>, Status>
    where
        T: Paged + Clone,
        A: Listed,
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let (envelope, mut message) = Envelope::of(request);
        let (token, size) = message.page();
        let (first, mut at) = begin(&std::mem::take(token), &members)?;
        let most = size.map_or(0, |size| *size);
        let is_alone = members.len() == 1;
        let (mut answer, mut parts, mut heard) = (A::default(), Vec::<Extensions>::new(), false);
        for (nth, member) in members.iter().enumerate().skip(first) {
            let Ok(services) = member.reachable().and_then(|engine| self.of_engine(engine)) else {
                unanswered.push(member.name());
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
                unanswered.push(member.name());
                continue;
            };
            heard = true;
            let (_, mut found, extensions) = response.into_parts();
            parts.push(extensions);
            found.name_store(member.name());
            let inner = std::mem::take(found.token());
            answer.append(found);
            let number = |member: &Member| member.engine().map_or(0, |engine| engine.number.get());
            if !inner.is_empty() {
                *answer.token() = format!("{}.{inner}", number(member));
                break;
            }
            // Without a size, each store has its own.
            let is_full = answer.len() >= if most > 0 { most as usize } else { USUAL };
            if let Some(next) = members.get(nth + 1).filter(|_| is_full) {
                *answer.token() = format!("{}.", number(next));
                break;
            }
        }
        if !heard && !unanswered.is_empty() {
            return Err(nobody(&unanswered));
        }
        let mut response = joined(answer, parts);
        note_unanswered(&mut response, &unanswered);
        Ok(response)
    }
}
