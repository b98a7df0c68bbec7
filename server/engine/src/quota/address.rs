//! Quotas of one client address for callers that are not authenticated yet: connections, and failed checks of
//! credentials. A call without a credential, or with a credential that is refused unchecked, does not count.
//!
//! After the first authenticated call, a connection counts for the principal and no longer for the address. So clients
//! behind a proxy or a shared address have the same quotas as other clients.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_core::{error::Error, job::Limits};
use parking_lot::Mutex;

use super::{
    principal::{Count, OpenGuard},
    rate::Rate,
};
use crate::metrics::{ByLimit, Refusals};

/// Maximum number of addresses with separate quotas. Further addresses share one quota, so that a flood from many addresses uses
/// little memory.
const MAX_TRACKED: usize = 20_000;
/// Minimum interval between two searches for idle addresses to evict while the maximum is reached.
const SEARCH: Duration = Duration::from_secs(1);

/// An IPv4 address, or the /64 network of an IPv6 address, because a client can use any address of its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Network(IpAddr);

impl From<IpAddr> for Network {
    fn from(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => Ipv6Addr::from(u128::from(address) >> 64 << 64).into(),
        })
    }
}

/// Quotas of the addresses with open connections or recent failures.
#[derive(Debug)]
pub struct Addresses {
    limits: Limits,
    refusals: Refusals,
    tracked: Mutex<Tracked>,
}

#[derive(Debug)]
struct Tracked {
    by_network: HashMap<Network, Arc<Address>>,
    /// Quota that all addresses beyond `MAX_TRACKED` share.
    others: Arc<Address>,
    /// Time of the last search for idle addresses to evict.
    searched: Option<Instant>,
}

/// Kinds of credential checks by cost. Each kind has its own budget of failures, so that guesses of unknown keys do not
/// block new tokens of known keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// The token or key is unknown, so the broker may have to read the tokens or the issuer's keys again.
    Read,
    /// The key is known, so the check only verifies a signature.
    Signature,
}

/// Quotas of one IPv4 address or IPv6 network.
#[derive(Debug)]
pub struct Address {
    connections: Count,
    /// Rates of failed checks, indexed by [`Cost`].
    failures: [Rate; 2],
    failures_per_second: u64,
    refusals: Refusals,
}

impl Addresses {
    pub fn new(limits: &Limits, refusals: &Refusals) -> Self {
        let tracked = Tracked { by_network: HashMap::new(), others: Address::new(limits, refusals), searched: None };
        Self { limits: limits.clone(), refusals: refusals.clone(), tracked: Mutex::new(tracked) }
    }

    /// Returns the quotas of an address. The same object is returned while the address uses a quota.
    pub fn get(&self, address: IpAddr) -> Arc<Address> {
        let network = Network::from(address);
        let mut tracked = self.tracked.lock();
        if let Some(address) = tracked.by_network.get(&network) {
            return address.clone();
        }
        if tracked.by_network.len() >= MAX_TRACKED
            && tracked.searched.is_none_or(|searched| searched.elapsed() >= SEARCH)
        {
            tracked
                .by_network
                .retain(|_, address| Arc::strong_count(address) > 1 || !address.failures.iter().all(Rate::is_at_rest));
            tracked.searched = Some(Instant::now());
        }
        if tracked.by_network.len() >= MAX_TRACKED {
            return tracked.others.clone();
        }
        let address = Address::new(&self.limits, &self.refusals);
        tracked.by_network.insert(network, address.clone());
        address
    }
}

impl Address {
    fn new(limits: &Limits, refusals: &Refusals) -> Arc<Self> {
        Arc::new(Self {
            connections: Count::new(limits.connections_of_address()),
            failures: [(); 2].map(|()| Rate::new(limits.address_failures_per_second)),
            failures_per_second: limits.address_failures_per_second,
            refusals: refusals.clone(),
        })
    }

    /// Counts a new unauthenticated connection until the guard is dropped. Returns `None` if the quota is exhausted.
    pub fn open_connection(&self) -> Option<OpenGuard> {
        let open = self.connections.open();
        if open.is_none() {
            self.refusals.get_or_create(&ByLimit { limit: "address_connections" }).inc();
        }
        open
    }

    /// Fails if the quota of failed checks is exhausted. The caller must call this before it checks a credential.
    pub fn may_fail(&self, cost: Cost) -> Result<(), Error> {
        self.failures[cost as usize].wait_time().map_or(Ok(()), |wait| Err(self.exhausted(wait)))
    }

    /// Counts a failed check of a credential. Fails if the quota is exhausted.
    pub fn failed(&self, cost: Cost) -> Result<(), Error> {
        self.failures[cost as usize].take(1).map_err(|wait| self.exhausted(wait))
    }

    fn exhausted(&self, retry_after: Duration) -> Error {
        let (most, limit) = (self.failures_per_second, "address_failures_per_second");
        self.refusals.get_or_create(&ByLimit { limit }).inc();
        let message = format!(
            "more than {most} invalid credentials per second came from this address \
             (limits.{limit})"
        );
        Error::Exhausted { reason: "ADDRESS_RATE", message, retry_after }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses() -> Addresses {
        let limits = Limits { address_connections: Some(2), address_failures_per_second: 10, ..Limits::default() };
        Addresses::new(&limits, &Refusals::default())
    }

    fn of(addresses: &Addresses, text: &str) -> Arc<Address> {
        addresses.get(text.parse().expect(text))
    }

    #[test]
    fn an_ipv4_address_and_an_ipv6_network_count_as_one() {
        let addresses = addresses();
        for (one, same, other) in [
            ("192.0.2.1", "::ffff:192.0.2.1", "192.0.2.2"),
            ("2001:db8:1:2::1", "2001:db8:1:2:ffff:ffff:ffff:ffff", "2001:db8:1:3::1"),
        ] {
            let _one = of(&addresses, one).open_connection().expect(one);
            let two = of(&addresses, same).open_connection().expect(same);
            assert!(of(&addresses, one).open_connection().is_none(), "{one}");
            of(&addresses, other).open_connection().expect(other);
            drop(two);
            of(&addresses, one).open_connection().expect("one was closed");
        }
    }

    #[test]
    fn failures_are_told_apart_by_address_and_refused_above_the_rate() {
        let addresses = addresses();
        let failed = (0..100).filter(|_| of(&addresses, "192.0.2.1").failed(Cost::Read).is_ok()).count();
        assert!((10..=11).contains(&failed), "{failed}");
        let refused = of(&addresses, "192.0.2.1").may_fail(Cost::Read).expect_err("too many");
        assert!(refused.retry_after().is_some() && refused.to_string().contains("address_failures_per_second"));
        of(&addresses, "192.0.2.1").may_fail(Cost::Signature).expect("a known key");
        of(&addresses, "192.0.2.2").may_fail(Cost::Read).expect("another address");
    }

    #[test]
    fn a_flood_from_more_addresses_than_are_told_apart_takes_no_memory() {
        let addresses = addresses();
        let flood = (0..2 * MAX_TRACKED as u32).map(|n| IpAddr::V4(n.into()));
        let kept: Vec<_> = flood.map(|address| addresses.get(address)).collect();
        assert!(addresses.tracked.lock().by_network.len() <= MAX_TRACKED);
        drop(kept);
        for n in 0..MAX_TRACKED as u32 {
            addresses.get(IpAddr::V4((1 << 30 | n).into()));
        }
        assert!(addresses.tracked.lock().by_network.len() <= MAX_TRACKED);
    }
}
