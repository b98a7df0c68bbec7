//! Restricts the addresses that requests may connect to, and the redirects that they may follow. The user who configures the worker
//! chooses the URL, but foreign DNS chooses the address of its host, and a foreign server chooses the target of a redirect. Neither
//! may lead into the private network. The checked address is also the connected address, so a second DNS answer cannot bypass the
//! check.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use reqwest::{
    StatusCode, Url,
    dns::{Addrs, Name, Resolve, Resolving},
    header::{HeaderMap, LOCATION},
};

/// Maximum number of redirects of a request.
const MAX_REDIRECTS: usize = 5;

/// DNS resolver that omits forbidden addresses.
#[derive(Debug)]
pub(super) struct Resolver {
    pub(super) allow_private: bool,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let allow_private = self.allow_private;
        Box::pin(async move {
            // Port 0 is a placeholder: the caller sets the port.
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let allowed: Vec<SocketAddr> =
                found.iter().copied().filter(|address| allow_private || is_public(address.ip())).collect();
            match found.first() {
                Some(first) if allowed.is_empty() => Err(refused(name.as_str(), first.ip()).into()),
                _ => Ok(Box::new(allowed.into_iter()) as Addrs),
            }
        })
    }
}

/// Checks that a request may be sent to this URL. The resolver checks host names later.
pub(super) fn check(url: &Url, allow_private: bool) -> Result<(), String> {
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("the scheme \"{}\" is not supported; use http or https", url.scheme()));
    }
    // An IP address in a URL bypasses the resolver. The URL parser has normalised it.
    let host = url.host_str().unwrap_or_default();
    match host.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(address) if !allow_private && !is_public(address) => Err(refused(host, address).to_string()),
        _ => Ok(()),
    }
}

/// Returns the target of a redirect; `None` if the answer is final. The worker follows only redirects that repeat the same request
/// (307, 308), never from TLS to plain text, nor to a URL that is not allowed for a first request.
///
/// The redirecting server chooses the target. Another origin (scheme, host and port) gets the payload, because the redirect asks
/// for that. It does not get the headers of the command line, which may contain credentials, nor a signature, which would confirm
/// that the request was meant for that URL.
pub(super) fn redirect(
    from: &Url,
    status: StatusCode,
    headers: &HeaderMap,
    followed: usize,
    allow_private: bool,
) -> Result<Option<Url>, String> {
    // Other redirects would become a GET without the payload, whose success would count as success of the job.
    if !matches!(status, StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT) {
        return Ok(None);
    }
    let location = headers.get(LOCATION).and_then(|value| std::str::from_utf8(value.as_bytes()).ok());
    let Some(to) = location.and_then(|location| from.join(location).ok()) else { return Ok(None) };
    if followed == MAX_REDIRECTS {
        return Err(format!("more than {MAX_REDIRECTS} redirects"));
    }
    if from.scheme() == "https" && to.scheme() != "https" {
        return Err("redirected from https to plain text, which is not followed".into());
    }
    check(&to, allow_private).map_err(|problem| format!("the redirect was refused: {problem}"))?;
    Ok(Some(to))
}

/// Error for a forbidden address.
fn refused(host: &str, address: IpAddr) -> io::Error {
    let problem = format!(
        "{host} is at {address}, which is private, loopback, link-local or reserved; --allow-private allows such addresses"
    );
    io::Error::new(io::ErrorKind::PermissionDenied, problem)
}

/// Returns whether an address is public.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

/// Address of the host of Azure's virtual machines, which serves their credentials. It is the only such service with a public
/// address. Other clouds use link-local, private or carrier-grade NAT addresses (169.254.169.254, `fd00:ec2::254`,
/// 100.100.100.200, 192.0.0.192).
const AZURE: Ipv4Addr = Ipv4Addr::new(168, 63, 129, 16);

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    !(address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_broadcast()
        || address.is_multicast()
        || address.is_documentation()
        || a == 0 // this network
        || (a == 100 && b & 0xc0 == 64) // carrier-grade NAT, 100.64.0.0/10
        || (a == 192 && b == 0 && c == 0) // protocol assignments
        || (a == 198 && b & 0xfe == 18) // benchmarks
        || address == AZURE
        || a >= 240) // reserved
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    // An IPv6 address that embeds an IPv4 address is checked as the IPv4 address.
    let inner = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        is_public_v4(Ipv4Addr::new(a, b, c, d))
    };
    match segments {
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] if high != 0 => inner(high, low), // compatible, mapped
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => inner(high, low), // NAT64, 6to4
        [0x2001, 0 | 0xdb8, ..] => false,                                        // Teredo, documentation
        // All other public addresses are in 2000::/3, unlike ::1, unique local, link-local and multicast addresses.
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_outside_the_public_internet_are_refused() {
        for address in [
            "127.0.0.1",
            "127.9.9.9",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "169.254.170.2",
            "168.63.129.16",
            "::ffff:168.63.129.16",
            "64:ff9b::a83f:8110",
            "100.100.100.200",
            "192.0.0.192",
            "fd00:ec2::254",
            "fd20:ce::254",
            "100.64.0.1",
            "100.127.255.255",
            "0.0.0.0",
            "0.1.2.3",
            "192.0.0.8",
            "198.18.0.1",
            "198.19.255.255",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "192.0.2.1",
            "::",
            "::1",
            "fc00::1",
            "fd12::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::127.0.0.1",
            "64:ff9b::a00:1",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "::ffff:0:127.0.0.1",
            "2002:a9fe:a9fe::1",
            "2001:db8::1",
            "2001::1",
            "100::1",
        ] {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn public_addresses_are_allowed() {
        for address in [
            "1.1.1.1",
            "8.8.8.8",
            "172.15.0.1",
            "172.32.0.1",
            "100.63.0.1",
            "100.128.0.1",
            "198.17.0.1",
            "192.0.1.1",
            "223.255.255.255",
            "168.63.129.17",
            "2606:4700::1111",
            "2001:4860:4860::8888",
            "::ffff:8.8.8.8",
            "64:ff9b::808:808",
        ] {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
    }
}
