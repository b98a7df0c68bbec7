//! Quotas per principal and per address at one broker, so that no caller takes the capacity of the others.
//!
//! - `rate`: units per second
//! - `principal`: jobs, bytes, streams, connections and memory of one principal
//! - `address`: unauthenticated connections and failed authentications of one address
//! - this module: all principals with a quota in use

mod address;
mod principal;
mod rate;

use std::{collections::HashMap, sync::Arc};

use howdah_core::job::Limits;
use parking_lot::Mutex;

pub use address::{Address, Addresses, Cost};
pub use principal::{Exceeded, OpenGuard, Principal, Shares};

use crate::metrics::Refusals;

/// Minimum number of tracked principals at which idle ones are evicted.
const MAX_TRACKED: usize = 1_024;

/// Quotas of the principals that use a quota or have exceeded a rate recently.
#[derive(Debug)]
pub struct Principals {
    limits: Limits,
    refusals: Refusals,
    tracked: Mutex<Tracked>,
}

#[derive(Debug)]
struct Tracked {
    by_name: HashMap<Arc<str>, Arc<Principal>>,
    /// Number of tracked principals at which idle ones are evicted.
    most: usize,
}

impl Principals {
    pub fn new(limits: &Limits, refusals: &Refusals) -> Self {
        let tracked = Tracked { by_name: HashMap::new(), most: MAX_TRACKED };
        Self { limits: limits.clone(), refusals: refusals.clone(), tracked: Mutex::new(tracked) }
    }

    /// Returns the quotas of a principal. All calls get the same object until the principal uses none of its quotas.
    pub(crate) fn get(&self, name: &Arc<str>) -> Arc<Principal> {
        let mut tracked = self.tracked.lock();
        if let Some(principal) = tracked.by_name.get(name) {
            return principal.clone();
        }
        if tracked.by_name.len() >= tracked.most {
            tracked.by_name.retain(|_, principal| Arc::strong_count(principal) > 1 || !principal.is_at_rest());
            tracked.most = MAX_TRACKED.max(2 * tracked.by_name.len());
        }
        let principal = Arc::new(Principal::new(name, &self.limits, &self.refusals));
        tracked.by_name.insert(name.clone(), principal.clone());
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
        for n in 0..10 * MAX_TRACKED {
            principals.get(&n.to_string().into());
        }
        assert!(principals.tracked.lock().by_name.len() <= MAX_TRACKED + 1);
        assert!(principals.get(&"owes".into()).take(1, || 0).is_err());
        assert!(Arc::ptr_eq(&uses, &principals.get(&"uses".into())));
    }
}
