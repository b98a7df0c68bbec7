//! Signs requests, so that a receiver can verify that the worker sent them to its URL, and that they are unchanged.
//!
//! The signed text consists of lines with the version, the method, the URL, and each header about the job, then an empty line and
//! the body.

use std::fmt::{self, Write as _};

use hmac::{Hmac, KeyInit as _, Mac as _};
use reqwest::{Method, Request, Url, header::HeaderMap};
use sha2::Sha256;

/// Version of the signature scheme.
const VERSION: &str = "v1";
/// Header with the signature.
pub(super) const SIGNATURE: &str = "howdah-signature";

/// Shared key of worker and receiver. It is never shown.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Creates a secret from any bytes. Removes one line break at the end, which editors add to files. Returns `None` if it is
    /// empty.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Option<Self> {
        let mut bytes = bytes.into();
        if bytes.ends_with(b"\n") {
            bytes.pop();
        }
        if bytes.ends_with(b"\r") {
            bytes.pop();
        }
        (!bytes.is_empty()).then_some(Self(bytes))
    }

    /// Returns the value of the signature header: the version, `=`, and the HMAC-SHA256 in hex.
    pub(super) fn sign(&self, request: &Request, body: &[u8]) -> String {
        // Never fails, because a key may have any length.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.0) else { return String::new() };
        mac.update(head(request.method(), request.url(), request.headers()).as_bytes());
        mac.update(body);
        format!("{VERSION}={}", hex::encode(mac.finalize().into_bytes()))
    }
}

/// Returns the signed text before the body. Methods, URLs and headers cannot contain line breaks, so different requests have
/// different texts.
fn head(method: &Method, url: &Url, headers: &HeaderMap) -> String {
    let mut url = url.clone();
    // The URL is signed without user and password, which are not part of the request line. Never fails, because the URL has a
    // host.
    let _ = (url.set_username(""), url.set_password(None));
    url.set_fragment(None);
    let mut text = format!("{VERSION}\n{method}\n{url}\n");
    let mut signed: Vec<_> = headers.iter().filter(|(name, _)| is_signed(name.as_str())).collect();
    signed.sort_by_key(|(name, _)| name.as_str());
    for (name, value) in signed {
        // Receivers see the value without surrounding spaces.
        let _ = writeln!(text, "{name}:{}", String::from_utf8_lossy(value.as_bytes().trim_ascii()));
    }
    text.push('\n');
    text
}

/// Returns whether the signature covers this header.
fn is_signed(name: &str) -> bool {
    name == "content-type" || name.starts_with("howdah-") && name != SIGNATURE
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use reqwest::header::{HeaderName, HeaderValue};

    use super::*;

    fn request(method: &str, url: &str, headers: &[(&'static str, &'static str)]) -> Request {
        let mut request = Request::new(method.parse().unwrap(), url.parse().unwrap());
        for (name, value) in headers {
            request.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        request
    }

    const HEADERS: [(&str, &str); 4] =
        [("howdah-timestamp", "1700000000"), ("content-type", "text/plain"), ("x-key", "k"), ("howdah-job-id", "17")];

    #[test]
    fn a_signature_is_that_of_openssl() {
        // Source of the expected signature (one line):
        // printf 'v1\nPOST\nhttps://example.com/hook?a=b\ncontent-type:text/plain\nhowdah-job-id:17\n
        // howdah-timestamp:1700000000\n\nhello' | openssl dgst -sha256 -hmac key
        let request = request("POST", "https://me:pass@example.com:443/hook?a=b#c", &HEADERS);
        let signed = "v1\nPOST\nhttps://example.com/hook?a=b\ncontent-type:text/plain\nhowdah-job-id:17\n\
                      howdah-timestamp:1700000000\n\n";
        assert_eq!(head(request.method(), request.url(), request.headers()), signed);
        let expected = "v1=adc358d44eb4d6fa9bb53ccc96de88d3ac6a58bd4e95bd5ce6ad492920cc8372";
        assert_eq!(Secret::new("key\n").unwrap().sign(&request, b"hello"), expected);
    }

    #[test]
    fn a_change_of_method_url_signed_header_or_body_changes_the_signature() {
        let secret = Secret::new("key").unwrap();
        let sign = |method, url, headers: &[(&'static str, &'static str)], body: &str| {
            secret.sign(&request(method, url, headers), body.as_bytes())
        };
        let url = "https://a.example/hook";
        let original = sign("POST", url, &HEADERS, "hello");
        let other_job = [HEADERS[0], HEADERS[1], HEADERS[2], ("howdah-job-id", "18")];
        let other_time = [("howdah-timestamp", "1700000001"), HEADERS[1], HEADERS[2], HEADERS[3]];
        let other_type = [HEADERS[0], ("content-type", "text/html"), HEADERS[2], HEADERS[3]];
        let one_more = [&HEADERS[..], &[("howdah-header-tenant", "b")]].concat();
        for changed in [
            sign("PUT", url, &HEADERS, "hello"),
            sign("POST", "https://a.example/other", &HEADERS, "hello"),
            sign("POST", "https://b.example/hook", &HEADERS, "hello"),
            sign("POST", "http://a.example/hook", &HEADERS, "hello"),
            sign("POST", "https://a.example/hook?all=1", &HEADERS, "hello"),
            sign("POST", url, &other_job, "hello"),
            sign("POST", url, &other_time, "hello"),
            sign("POST", url, &other_type, "hello"),
            sign("POST", url, &one_more, "hello"),
            sign("POST", url, &HEADERS, "hello!"),
        ] {
            assert_ne!(changed, original);
        }
        let not_signed = [HEADERS[0], HEADERS[1], HEADERS[3]];
        assert_eq!(sign("POST", url, &not_signed, "hello"), original, "headers of the command line are not the job's");
    }

    #[test]
    fn a_secret_is_not_shown_and_not_empty() {
        let secret = Secret::new("password").unwrap();
        assert!(!format!("{secret:?}").contains("pass"));
        assert!(Secret::new("\r\n").is_none());
    }
}
