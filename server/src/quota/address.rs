//! What one address may do before it is known who calls: connections, and credentials that do not hold.
//!
//! Once a call was authenticated its connection counts for the principal, so a network behind one address, or a proxy, has no
//! less than others.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{
    principal::{Count, Open},
    rate::Rate,
};
use crate::{
    error::Error,
    job::Limits,
    metrics::{ByLimit, Refusals},
};

/// The most addresses that are told apart. More share one count, so that a flood from many takes no memory.
const MANY: usize = 20_000;
/// The shortest time between two searches for addresses at rest, while there are too many.
const SEARCH: Duration = Duration::from_secs(1);

/// An IPv4 address, or the network of an IPv6 address, of which a client has as many as it likes.
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

/// The addresses from which somebody is connected, or has failed to authenticate a short while ago.
#[derive(Debug)]
pub(crate) struct Addresses {
    limits: Limits,
    refusals: Refusals,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    by_network: HashMap<Network, Arc<Address>>,
    /// For those that are too many.
    others: Arc<Address>,
    /// When those at rest were dropped last.
    searched: Option<Instant>,
}

/// One address, or network.
#[derive(Debug)]
pub(crate) struct Address {
    connections: Count,
    failures: Rate,
    failures_per_second: u64,
    refusals: Refusals,
}

impl Addresses {
    pub(crate) fn new(limits: &Limits, refusals: &Refusals) -> Self {
        let known = Known { by_network: HashMap::new(), others: Address::new(limits, refusals), searched: None };
        Self { limits: limits.clone(), refusals: refusals.clone(), known: Mutex::new(known) }
    }

    /// The address; the same one while it uses something.
    pub(crate) fn get(&self, address: IpAddr) -> Arc<Address> {
        let network = Network::from(address);
        let mut known = self.known.lock();
        if let Some(address) = known.by_network.get(&network) {
            return address.clone();
        }
        if known.by_network.len() >= MANY && known.searched.is_none_or(|searched| searched.elapsed() >= SEARCH) {
            known.by_network.retain(|_, address| Arc::strong_count(address) > 1 || !address.failures.is_at_rest());
            known.searched = Some(Instant::now());
        }
        if known.by_network.len() >= MANY {
            return known.others.clone();
        }
        let address = Address::new(&self.limits, &self.refusals);
        known.by_network.insert(network, address.clone());
        address
    }
}

impl Address {
    fn new(limits: &Limits, refusals: &Refusals) -> Arc<Self> {
        Arc::new(Self {
            connections: Count::new(limits.connections_of_address()),
            failures: Rate::new(limits.address_failures_per_second),
            failures_per_second: limits.address_failures_per_second,
            refusals: refusals.clone(),
        })
    }

    /// Counts one more connection on which nobody has authenticated; `None`: there are too many.
    pub(crate) fn open_connection(&self) -> Option<Open> {
        let open = self.connections.open();
        if open.is_none() {
            self.refusals.get_or_create(&ByLimit { limit: "address_connections" }).inc();
        }
        open
    }

    /// Whether one more credential may be looked up that perhaps does not hold.
    pub(crate) fn may_fail(&self) -> Result<(), Error> {
        self.failures.is_used_up().map_or(Ok(()), |wait| Err(self.exhausted(wait)))
    }

    /// A credential did not hold.
    pub(crate) fn failed(&self) -> Result<(), Error> {
        self.failures.take(1).map_err(|wait| self.exhausted(wait))
    }

    fn exhausted(&self, retry_after: Duration) -> Error {
        let (most, limit) = (self.failures_per_second, "address_failures_per_second");
        self.refusals.get_or_create(&ByLimit { limit }).inc();
        let message = format!(
            "more than {most} calls in a second from this address had no credential that holds \
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
        let failed = (0..100).filter(|_| of(&addresses, "192.0.2.1").failed().is_ok()).count();
        assert!((10..=11).contains(&failed), "{failed}");
        let refused = of(&addresses, "192.0.2.1").may_fail().expect_err("too many");
        assert!(refused.retry_after().is_some() && refused.to_string().contains("address_failures_per_second"));
        of(&addresses, "192.0.2.2").may_fail().expect("another address");
    }

    #[test]
    fn a_flood_from_more_addresses_than_are_told_apart_takes_no_memory() {
        let addresses = addresses();
        let flood = (0..2 * MANY as u32).map(|n| IpAddr::V4(n.into()));
        let kept: Vec<_> = flood.map(|address| addresses.get(address)).collect();
        assert!(addresses.known.lock().by_network.len() <= MANY);
        drop(kept);
        for n in 0..MANY as u32 {
            addresses.get(IpAddr::V4((1 << 30 | n).into()));
        }
        assert!(addresses.known.lock().by_network.len() <= MANY);
    }
}
