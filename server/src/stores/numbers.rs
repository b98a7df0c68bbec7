//! Decides which numbers new stores get.

use std::collections::{HashMap, HashSet};

use howdah_core::{config::StoreConfig, job::StoreNumber};
use howdah_engine::store::StoreFacts;

/// A store, with the facts from which its number is decided.
#[derive(Clone, Copy)]
pub(super) struct Found<'a> {
    name: &'a str,
    /// Configured number.
    wanted: Option<StoreNumber>,
    facts: &'a StoreFacts,
    /// Whether this process already serves the store, so that its number cannot change.
    is_served: bool,
    /// Whether the store matches a pattern and is not served yet.
    may_be_skipped: bool,
}

impl<'a> Found<'a> {
    pub(super) fn new(configured: &'a StoreConfig, facts: &'a StoreFacts) -> Self {
        let may_be_skipped = configured.is_matched;
        Self { name: &configured.name, wanted: configured.number, facts, is_served: false, may_be_skipped }
    }

    pub(super) fn served(configured: &'a StoreConfig, facts: &'a StoreFacts) -> Self {
        Self { is_served: true, may_be_skipped: false, ..Self::new(configured, facts) }
    }

    /// Returns the number that the store must have, or `None` if it may get any number. A configured number is fixed.
    /// So is the present number of a store that is served or has issued job ids.
    fn fixed(&self) -> Option<StoreNumber> {
        self.wanted.or_else(|| (self.is_served || self.facts.has_ids).then_some(self.facts.number))
    }
}

/// Returns the stores whose number must change, as positions in `found` with the new number. A store without job ids
/// and without a configured number gets a number that no other store has. Fails if two stores need the same number, or
/// one database is configured twice.
pub(super) fn decide(found: &[Found<'_>]) -> Result<Vec<(usize, StoreNumber)>, String> {
    let mut identities = HashMap::new();
    for store in found {
        let (name, number) = (store.name, store.facts.number);
        if let Some(other) = identities.insert(&store.facts.identity, name) {
            return Err(format!(
                "stores {other} and {name} are one database and schema, or one is a copy of the other: leave one of them \
                 out, or give the copy a new identity with howdah migrate --new-identity"
            ));
        }
        if let Some(wanted) = store.wanted.filter(|wanted| store.facts.has_ids && *wanted != number) {
            return Err(format!(
                "store {name} cannot have the number {wanted}: its jobs have ids of number {number}; set number = {number}"
            ));
        }
    }
    let mut taken: HashMap<StoreNumber, &str> = HashMap::new();
    for store in found {
        let Some(number) = store.fixed() else { continue };
        if let Some(other) = taken.insert(number, store.name) {
            return Err(format!(
                "stores {other} and {} both have the number {number}, so the ids of their jobs would be the same: \
                 a store that has had jobs keeps its number, so one broker cannot serve both; remove one of them",
                store.name
            ));
        }
    }
    let mut taken: HashSet<StoreNumber> = taken.into_keys().collect();
    let mut changes = Vec::new();
    for (nth, store) in found.iter().enumerate() {
        let number = store.fixed().unwrap_or_else(|| free(&taken, store.facts.number));
        taken.insert(number);
        if number != store.facts.number {
            changes.push((nth, number));
        }
    }
    Ok(changes)
}

/// Finds stores that match a pattern and contradict an earlier store or a store without a pattern. Returns their
/// positions in `found`, each with the problem.
pub(super) fn contradicting(found: &[Found<'_>]) -> Vec<(usize, String)> {
    let (mut kept, mut contradicting): (Vec<Found<'_>>, _) = (Vec::new(), Vec::new());
    kept.extend(found.iter().filter(|store| !store.may_be_skipped).copied());
    for (nth, store) in found.iter().enumerate().filter(|(_, store)| store.may_be_skipped) {
        kept.push(*store);
        if let Err(problem) = decide(&kept) {
            kept.pop();
            contradicting.push((nth, problem));
        }
    }
    contradicting
}

/// Returns the store's present number `own` if no other store has it, else the lowest free number. A free number always
/// exists, because a broker has fewer stores than there are numbers.
fn free(taken: &HashSet<StoreNumber>, own: StoreNumber) -> StoreNumber {
    let lowest = || (0..=StoreNumber::MOST).filter_map(StoreNumber::new).find(|number| !taken.contains(number));
    if taken.contains(&own) { lowest().unwrap_or(own) } else { own }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(identity: &str, number: u16, has_ids: bool) -> StoreFacts {
        StoreFacts { number: StoreNumber::new(number).unwrap(), identity: identity.into(), has_ids }
    }

    /// Calls `decide` for stores named a, b and c, each given as configured number and facts from its database.
    fn decided(stores: &[(Option<u16>, StoreFacts)]) -> Result<Vec<(usize, u16)>, String> {
        let names = ["a", "b", "c"].into_iter();
        let found = names.zip(stores).map(|(name, (wanted, facts))| Found {
            name,
            wanted: wanted.and_then(StoreNumber::new),
            facts,
            is_served: false,
            may_be_skipped: false,
        });
        let changes = decide(&found.collect::<Vec<_>>())?;
        Ok(changes.into_iter().map(|(nth, number)| (nth, number.get())).collect())
    }

    #[test]
    fn new_stores_get_the_numbers_that_are_free() {
        let new = |identity| (None, facts(identity, 0, false));
        assert_eq!(decided(&[new("x")]), Ok(vec![]));
        assert_eq!(decided(&[new("x"), new("y"), new("z")]), Ok(vec![(1, 1), (2, 2)]));
        // A store with jobs keeps its number, regardless of its position.
        assert_eq!(decided(&[new("x"), (None, facts("y", 0, true)), new("z")]), Ok(vec![(0, 1), (2, 2)]));
        assert_eq!(decided(&[(Some(7), facts("x", 0, false)), new("y")]), Ok(vec![(0, 7)]));
        assert_eq!(decided(&[(None, facts("x", 4, false)), (Some(4), facts("y", 4, true))]), Ok(vec![(0, 0)]));
    }

    #[test]
    fn a_store_that_comes_late_gives_way_to_those_that_are_served() {
        let (late, served) = (facts("x", 0, false), facts("y", 0, false));
        let found = [
            Found { name: "late", wanted: None, facts: &late, is_served: false, may_be_skipped: false },
            Found { name: "served", wanted: None, facts: &served, is_served: true, may_be_skipped: false },
        ];
        let changes: Vec<_> = decide(&found).unwrap().into_iter().map(|(nth, number)| (nth, number.get())).collect();
        assert_eq!(changes, [(0, 1)]);
    }

    #[test]
    fn of_the_stores_that_match_a_pattern_a_copy_and_a_second_one_with_a_number_are_left_out() {
        let all = [
            facts("x", 0, true),
            facts("y", 1, true),
            facts("x", 0, true),
            facts("z", 1, true),
            facts("new", 0, false),
        ];
        let found = |(nth, facts)| Found { name: "db", wanted: None, facts, is_served: false, may_be_skipped: nth > 0 };
        let found: Vec<Found<'_>> = all.iter().enumerate().map(found).collect();
        let left_out = contradicting(&found);
        assert_eq!(left_out.iter().map(|(nth, _)| *nth).collect::<Vec<_>>(), [2, 3]);
        assert!(
            left_out[0].1.contains("--new-identity") && left_out[1].1.contains("both have the number 1"),
            "{left_out:?}"
        );
    }

    #[test]
    fn two_stores_with_one_number_are_refused() {
        let error = decided(&[(None, facts("x", 3, true)), (None, facts("y", 3, true))]).unwrap_err();
        assert!(error.contains("stores a and b both have the number 3"), "{error}");
        let error = decided(&[(Some(3), facts("x", 0, false)), (None, facts("y", 3, true))]).unwrap_err();
        assert!(error.contains("both have the number 3"), "{error}");
    }

    #[test]
    fn one_store_under_two_names_or_numbers_is_refused() {
        let error = decided(&[(Some(0), facts("x", 0, true)), (Some(1), facts("x", 0, true))]).unwrap_err();
        assert!(error.contains("stores a and b are one database") && error.contains("--new-identity"), "{error}");
        let error = decided(&[(Some(2), facts("x", 0, true))]).unwrap_err();
        assert!(error.contains("store a cannot have the number 2") && error.contains("set number = 0"), "{error}");
    }
}
