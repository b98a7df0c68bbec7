//! Finds free loopback addresses for servers that start later.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    process,
    sync::atomic::{AtomicU16, Ordering},
};

/// First port of the range from which tests take ports. The range is below the kernel's ephemeral ports, so no other process
/// takes a broker's port by chance while the broker is down.
const FIRST: u16 = 10_000;
const PORTS: u16 = 20_000;

static NEXT: AtomicU16 = AtomicU16::new(0);

/// Returns a loopback address where no process listens. Each call returns a different one.
pub fn unused_address() -> SocketAddr {
    // Concurrent test processes start at different ports of the range.
    let from = u16::try_from(process::id() * 101 % u32::from(PORTS)).unwrap_or_default();
    loop {
        let nth = NEXT.fetch_add(1, Ordering::Relaxed) % PORTS;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, FIRST + (from + nth) % PORTS));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}
