//! Protection against cross-site request forgery. Another site can make a browser submit a form with the user's rights, but it
//! cannot forge the headers that name the form's origin.

use axum::http::{HeaderMap, Uri, header};
use howdah_core::error::Error;

const FETCH_SITE: &str = "sec-fetch-site";

/// Rejects a form that was not submitted from a page of the same origin. `hosts`: additional host names, for proxies that change
/// the `Host` header.
pub(super) fn check(headers: &HeaderMap, hosts: &[String]) -> Result<(), Error> {
    let refused = |why: &str| Err(Error::Denied(format!("this form was not sent by this page: {why}")));
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    // Browsers omit `Sec-Fetch-Site` on insecure connections, so it is checked only if it is present.
    if let Some(site) = text(FETCH_SITE)
        && site != "same-origin"
    {
        return refused("the header Sec-Fetch-Site names another site");
    }
    let origin = text(header::ORIGIN.as_str()).and_then(origin_host);
    let Some(origin) = origin else { return refused("the header Origin is missing, or names no host") };
    let known = text(header::HOST.as_str()).is_some_and(|host| host.eq_ignore_ascii_case(&origin))
        || Uri::try_from(&origin)
            .ok()
            .and_then(|uri| uri.host().map(str::to_ascii_lowercase))
            .is_some_and(|name| hosts.contains(&name));
    if known {
        Ok(())
    } else {
        refused(
            "the header Origin names another host; a proxy must pass on the Host, or give the broker its name with --http-host",
        )
    }
}

/// Whether the browser treats the connection as secure.
pub(super) fn is_private(headers: &HeaderMap) -> bool {
    let origin = headers.get(header::ORIGIN).and_then(|origin| origin.to_str().ok()).unwrap_or_default();
    let Some(plain) = origin.strip_prefix("http://") else { return true };
    let name = plain.rsplit_once(':').map_or(plain, |(name, _)| name);
    name == "localhost" || name.ends_with(".localhost") || name == "[::1]" || name.starts_with("127.")
}

/// Returns host and port of an `Origin` header.
fn origin_host(origin: &str) -> Option<String> {
    let host = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"))?;
    (!host.is_empty() && !host.contains(['/', '@', '?', '#'])).then(|| host.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(pairs: &[(&'static str, &'static str)]) -> bool {
        let headers = pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        check(&headers, &["jobs.example".to_owned()]).is_ok()
    }

    #[test]
    fn only_a_form_of_the_page_itself_is_taken() {
        let (host, origin, site) = ("host", "origin", "sec-fetch-site");
        for good in [
            &[(host, "localhost:7433"), (origin, "http://localhost:7433"), (site, "same-origin")][..],
            &[(host, "10.0.0.1:7433"), (origin, "http://10.0.0.1:7433")],
            &[(host, "backend:7433"), (origin, "https://jobs.example"), (site, "same-origin")],
            &[(host, "backend:7433"), (origin, "https://Jobs.Example:8443"), (site, "same-origin")],
        ] {
            assert!(checked(good), "{good:?}");
        }
        for bad in [
            &[][..],
            &[(host, "localhost")],
            &[(host, "localhost"), (site, "same-origin")],
            &[(host, "localhost"), (origin, "null"), (site, "same-origin")],
            &[(host, "localhost"), (origin, "http://evil.example"), (site, "same-origin")],
            &[(host, "localhost"), (origin, "http://localhost"), (site, "cross-site")],
            &[(host, "localhost"), (origin, "http://localhost"), (site, "same-site")],
            &[(host, "localhost"), (origin, "http://localhost"), (site, "none")],
            &[(host, "localhost:7433"), (origin, "http://localhost:7434")],
            &[(host, "backend"), (origin, "https://evil.jobs.example")],
            &[(host, "a@b"), (origin, "http://a@b")],
        ] {
            assert!(!checked(bad), "{bad:?}");
        }
    }

    #[test]
    fn a_plain_connection_is_private_only_on_this_machine() {
        let of = |origin: &str| is_private(&HeaderMap::from_iter([(header::ORIGIN, origin.parse().unwrap())]));
        assert!(of("https://a") && of("http://localhost:1") && of("http://127.0.0.1:7433") && of("http://[::1]:7433"));
        assert!(!of("http://10.0.0.1:7433") && !of("http://localhost.evil.example"));
    }
}
