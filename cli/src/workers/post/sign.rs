//! Signs requests: an HMAC over the time and the body.

use std::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// A key that both sides know. It is never shown.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Any bytes. One line break at the end, which editors add to files, does not count. `None`: it is empty.
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

    /// `v1=` and the HMAC-SHA256, in hex, of the timestamp, a dot, and the body.
    pub(super) fn sign(&self, timestamp: u64, body: &[u8]) -> String {
        // A key may have any length, so this never fails.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.0) else { return String::new() };
        mac.update(timestamp.to_string().as_bytes());
        mac.update(b".");
        mac.update(body);
        format!("v1={}", hex::encode(mac.finalize().into_bytes()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_that_of_openssl() {
        // printf 1700000000.hello | openssl dgst -sha256 -hmac key
        let expected = "v1=4d583a269f4f276a3fa80ff31b5a01879a848096983222a17893d198418939aa";
        let signature = Secret::new("key\n").unwrap().sign(1_700_000_000, b"hello");
        assert_eq!(signature, expected);
    }

    #[test]
    fn a_secret_is_not_shown_and_not_empty() {
        let secret = Secret::new("password").unwrap();
        assert!(!format!("{secret:?}").contains("pass"));
        assert!(Secret::new("\r\n").is_none());
    }
}
