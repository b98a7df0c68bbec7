//! Sessions of the page. A session is a cookie that contains the token, encrypted with a key that all brokers of the
//! database share. Brokers store no sessions: every broker can decrypt the cookie, and a session ends with its token.
//! Scripts in the browser cannot read the token. The database keeps the hashes of logged-out sessions, so that copies
//! of their cookies are invalid.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use axum::http::{HeaderMap, HeaderValue, header};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};

/// Maximum duration of a session. The session ends earlier if its token expires or is revoked.
pub(crate) const LASTS: Duration = Duration::from_hours(12);
/// Maximum length of a token in bytes. Browsers keep cookies of up to 4 KiB.
pub(crate) const TOKEN_BYTES: usize = 2_900;
/// Name of the session cookie. Because of the prefix `__Host-`, browsers accept it only over TLS (or from localhost),
/// for one host and all paths.
const NAME: &str = "__Host-howdah";
/// Name of the session cookie at brokers that allow plain-text connections.
const PLAIN_NAME: &str = "howdah-insecure";
/// Purpose of the encryption key, with the version of the cookie format. Authenticated with each cookie (AEAD).
const PURPOSE: &[u8] = b"howdah page session 1";

/// Creates and reads session cookies.
pub(super) struct Sessions {
    key: [u8; 32],
}

impl Sessions {
    /// Derives the encryption key of session cookies from the database's secret.
    pub(super) fn new(secret: &[u8]) -> Self {
        // `new_from_slice` never fails, because an HMAC key may have any length. With the random fallback, all cookies
        // would be invalid.
        let key =
            Hmac::<Sha256>::new_from_slice(secret).map(|mac| mac.chain_update(PURPOSE).finalize().into_bytes().into());
        Self { key: key.unwrap_or_else(|_| rand::random()) }
    }

    /// Encrypts a token and returns the value of its cookie.
    fn seal(&self, token: &str, now: SystemTime) -> Option<String> {
        let key = RandomizedNonceKey::new(&AES_256_GCM, &self.key).ok()?;
        let mut text = (seconds(now) + LASTS.as_secs()).to_be_bytes().to_vec();
        text.extend_from_slice(token.as_bytes());
        let nonce = key.seal_in_place_append_tag(Aad::from(PURPOSE), &mut text).ok()?;
        Some(BASE64_URL_SAFE_NO_PAD.encode([&nonce.as_ref()[..], &text].concat()))
    }

    /// Decrypts the value of a cookie. Returns the token if the session has not expired.
    fn open(&self, value: &str, now: SystemTime) -> Option<String> {
        let mut sealed = BASE64_URL_SAFE_NO_PAD.decode(value).ok()?;
        if sealed.len() < NONCE_LEN {
            return None;
        }
        let (nonce, text) = sealed.split_at_mut(NONCE_LEN);
        let key = RandomizedNonceKey::new(&AES_256_GCM, &self.key).ok()?;
        let text = key.open_in_place(Nonce::try_assume_unique_for_key(nonce).ok()?, Aad::from(PURPOSE), text).ok()?;
        let (ends, token) = text.split_first_chunk()?;
        (seconds(now) < u64::from_be_bytes(*ends)).then(|| String::from_utf8(token.to_vec()).ok()).flatten()
    }

    /// Returns the header that sets the session cookie. `is_private` is true if the browser treats the connection as
    /// secure.
    pub(super) fn begin(&self, token: &str, is_private: bool) -> Option<HeaderValue> {
        let value = self.seal(token, SystemTime::now())?;
        HeaderValue::try_from(cookie(&value, LASTS, is_private)).ok()
    }

    /// Returns the session of a request. `may_be_plain` is true if the broker allows plain-text connections.
    pub(super) fn find(&self, headers: &HeaderMap, may_be_plain: bool) -> Option<Session> {
        let value = cookie_of(headers, NAME).or_else(|| cookie_of(headers, PLAIN_NAME).filter(|_| may_be_plain))?;
        Some(Session { token: self.open(value, SystemTime::now())?, hash: Sha256::digest(value).into() })
    }
}

/// A session that has not expired.
pub(super) struct Session {
    pub(super) token: String,
    /// SHA-256 hash of the cookie, by which logged-out sessions are recognized.
    pub(super) hash: [u8; 32],
}

/// Returns the headers that delete the session cookies.
pub(super) fn end() -> [HeaderValue; 2] {
    [true, false].map(|is_private| {
        HeaderValue::try_from(cookie("", Duration::ZERO, is_private)).unwrap_or(HeaderValue::from_static(""))
    })
}

fn cookie(value: &str, lasts: Duration, is_private: bool) -> String {
    let (name, secure) = if is_private { (NAME, "; Secure") } else { (PLAIN_NAME, "") };
    let seconds = lasts.as_secs();
    format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}")
}

/// Returns the value of the request's cookie with this name.
pub(super) fn cookie_of<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let all = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    all.flat_map(|line| line.split(';')).find_map(|pair| {
        let (known, value) = pair.trim().split_once('=')?;
        (known == name).then_some(value)
    })
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(cookie: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::COOKIE, cookie.parse().unwrap())])
    }

    fn token(sessions: &Sessions, cookie: &str, may_be_plain: bool) -> Option<String> {
        sessions.find(&with(cookie), may_be_plain).map(|session| session.token)
    }

    fn pair(header: &HeaderValue) -> String {
        header.to_str().unwrap().split(';').next().unwrap().to_owned()
    }

    #[test]
    fn a_session_is_read_by_every_broker_of_the_database_and_by_no_other() {
        let (one, two, other) = (Sessions::new(b"a"), Sessions::new(b"a"), Sessions::new(b"b"));
        let cookie = pair(&one.begin("hwd_1", true).unwrap());
        assert_eq!(token(&two, &format!("x=1; {cookie}; y"), false).as_deref(), Some("hwd_1"));
        assert_eq!(token(&other, &cookie, false), None);
        assert!(!cookie.contains("hwd_1") && !cookie.contains(&BASE64_URL_SAFE_NO_PAD.encode("hwd_1")));
        assert_ne!(cookie, pair(&one.begin("hwd_1", true).unwrap()), "each cookie has a different nonce");
    }

    #[test]
    fn a_changed_cookie_is_refused() {
        let sessions = Sessions::new(b"a");
        let value = sessions.seal("token", UNIX_EPOCH).unwrap();
        assert!(sessions.open(&value, UNIX_EPOCH).is_some());
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(&value).unwrap();
        for at in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            assert_eq!(sessions.open(&BASE64_URL_SAFE_NO_PAD.encode(bytes), UNIX_EPOCH), None, "{at}");
        }
        for junk in ["", "a", "!!!", &value[..10], &value[..value.len() - 4]] {
            assert_eq!(sessions.open(junk, UNIX_EPOCH), None, "{junk}");
        }
    }

    #[test]
    fn a_session_ends_after_its_time() {
        let sessions = Sessions::new(b"a");
        let value = sessions.seal("token", UNIX_EPOCH).unwrap();
        let last = UNIX_EPOCH + LASTS;
        assert!(sessions.open(&value, last - Duration::from_secs(1)).is_some());
        assert!(sessions.open(&value, last).is_none());
    }

    #[test]
    fn a_cookie_in_plain_text_is_taken_only_where_that_is_allowed() {
        let sessions = Sessions::new(b"a");
        let header = sessions.begin("token", false).unwrap();
        assert!(!header.to_str().unwrap().contains("Secure"));
        assert!(
            sessions.begin("token", true).unwrap().to_str().unwrap().ends_with("; HttpOnly; SameSite=Strict; Secure")
        );
        assert!(token(&sessions, &pair(&header), false).is_none());
        assert!(token(&sessions, &pair(&header), true).is_some());
    }

    #[test]
    fn the_longest_token_fits_into_a_cookie() {
        let header = Sessions::new(b"a").begin(&"x".repeat(TOKEN_BYTES), true).unwrap();
        assert!(header.len() <= 4_096, "{}", header.len());
    }
}
