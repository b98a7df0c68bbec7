//! Addresses at which nobody listens yet.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    process,
    sync::atomic::{AtomicU16, Ordering},
};

/// The ports from which they are taken: below those that the kernel gives to whoever asks for any, and to connections. So nobody
/// has one by chance, also while its broker is away.
const FIRST: u16 = 10_000;
const PORTS: u16 = 20_000;

static NEXT: AtomicU16 = AtomicU16::new(0);

/// One of loopback, another one each time. Nobody listens there until the test does.
pub fn unused_address() -> SocketAddr {
    // Processes that run at the same time begin at different ones.
    let from = u16::try_from(process::id() * 101 % u32::from(PORTS)).unwrap_or_default();
    loop {
        let nth = NEXT.fetch_add(1, Ordering::Relaxed) % PORTS;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, FIRST + (from + nth) % PORTS));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}
