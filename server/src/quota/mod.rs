//! What one principal, and one address, may use of a broker, so that none takes it from the others.
//!
//! - `rate`: units in a second
//! - `principal`: jobs, bytes, streams, connections and memory of one principal
//! - `address`: connections and failures of one address, before it is known who calls
//! - here: all principals that a broker knows

mod address;
mod principal;
mod rate;

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

pub(crate) use address::{Address, Addresses};
pub(crate) use principal::{Exceeded, Open, Principal, Shares};

use crate::{job::Limits, metrics::Refusals};

/// With this many principals, those that use nothing are dropped.
const MANY: usize = 1_024;

/// The principals that use something, or owe something to their rates.
#[derive(Debug)]
pub(crate) struct Principals {
    limits: Limits,
    refusals: Refusals,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    by_name: HashMap<Arc<str>, Arc<Principal>>,
    /// With this many, those at rest are dropped.
    most: usize,
}

impl Principals {
    pub(crate) fn new(limits: &Limits, refusals: &Refusals) -> Self {
        let known = Known { by_name: HashMap::new(), most: MANY };
        Self { limits: limits.clone(), refusals: refusals.clone(), known: Mutex::new(known) }
    }

    /// The principal of this name: the same one, as long as it uses something.
    pub(crate) fn get(&self, name: &Arc<str>) -> Arc<Principal> {
        let mut known = self.known.lock();
        if let Some(principal) = known.by_name.get(name) {
            return principal.clone();
        }
        if known.by_name.len() >= known.most {
            known.by_name.retain(|_, principal| Arc::strong_count(principal) > 1 || !principal.is_at_rest());
            known.most = MANY.max(2 * known.by_name.len());
        }
        let principal = Arc::new(Principal::new(name, &self.limits, &self.refusals));
        known.by_name.insert(name.clone(), principal.clone());
        principal
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn principals_that_use_nothing_are_forgotten_and_others_are_not() {
        let limits = Limits { principal_jobs_per_second: Some(1), ..Limits::default() };
        let principals = Principals::new(&limits, &Refusals::default());
        let (owes, uses) = (principals.get(&"owes".into()), principals.get(&"uses".into()));
        owes.take(1_000, || 0).expect("the first one passes");
        drop(owes);
        for n in 0..10 * MANY {
            principals.get(&n.to_string().into());
        }
        assert!(principals.known.lock().by_name.len() <= MANY + 1);
        assert!(principals.get(&"owes".into()).take(1, || 0).is_err());
        assert!(Arc::ptr_eq(&uses, &principals.get(&"uses".into())));
    }
}
