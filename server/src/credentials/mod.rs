//! Authentication of callers. `tokens` has the valid tokens, `file` reads the token file, and `jwt` handles JSON Web
//! Tokens of other issuers.

mod file;
pub(crate) mod jwt;
mod refusals;
mod tokens;

use std::{
    net::IpAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use howdah_core::{
    config::{AuthModes, Config},
    error::Error,
};
use howdah_engine::{
    access::{Caller, Token},
    metrics::Metrics,
    quota::{Address, Addresses, Cost, Principals},
    store::{ActiveToken, Store, StoreError},
};
use tokio::sync::Mutex;

pub use file::read as read_token_file;
pub use refusals::Refusal;
use refusals::Refusals;

use crate::tls::PeerIdentity;
use jwt::Jwt;
use tokens::Tokens;

/// Minimum interval between reads of the stored tokens that unknown tokens trigger. Brokers learn of new tokens within a
/// second; such a read makes a token usable earlier.
const RELOAD: Duration = Duration::from_millis(200);

/// Address and certificate of the client that makes a call.
#[derive(Clone, Copy, Default)]
pub(crate) struct Peer<'a> {
    /// Quota of the client's address, if quotas per address apply.
    pub(crate) address: Option<&'a Address>,
    /// Identity from the client certificate, if the client presented one.
    pub(crate) identity: Option<&'a PeerIdentity>,
}

/// The latest read of the stored tokens that an unknown token has triggered.
struct LastRead {
    begun: Instant,
    /// Whether the read of the tokens succeeded. `None` while the read runs, or if the call that ran it was cancelled.
    succeeded: Option<bool>,
}

/// Authenticates callers.
pub struct Authenticator {
    modes: AuthModes,
    store: Store,
    unauthenticated: Caller,
    principals: Principals,
    addresses: Addresses,
    tokens: Tokens,
    jwt: Option<Jwt>,
    /// Tokens of the token file, which stay valid until the broker stops.
    from_file: Vec<ActiveToken>,
    version: AtomicI64,
    last_read: Mutex<Option<LastRead>>,
    /// Counts and logs refused calls.
    pub(crate) refusals: Refusals,
}

impl Authenticator {
    /// Reads the configured token file and file of issuers. The first `refresh` then reads the stored tokens.
    pub fn new(config: &Config, store: Store, metrics: &Metrics) -> Result<Self, String> {
        let issuers = config.auth_jwt_file.as_deref().filter(|_| config.auth.jwt);
        let from_file = config.auth_token_file.as_deref().map(file::read).transpose()?.unwrap_or_default();
        Ok(Self {
            modes: config.auth,
            store,
            unauthenticated: Caller::unauthenticated(),
            principals: Principals::new(&config.limits, &metrics.refusals),
            addresses: Addresses::new(&config.limits, &metrics.refusals),
            tokens: Tokens::default(),
            jwt: issuers.map(|path| Jwt::start(path, &metrics.jwt)).transpose()?,
            from_file,
            version: AtomicI64::new(i64::MIN),
            last_read: Mutex::default(),
            refusals: Refusals::counting(metrics.refused_calls.clone()),
        })
    }

    /// Identifies the caller by the `authorization` header. When authentication is off, the client certificate identifies it,
    /// if there is one.
    async fn authenticate(&self, authorization: Option<&[u8]>, peer: Peer<'_>) -> Result<Caller, Error> {
        if self.modes.is_none() {
            return Ok(peer
                .identity
                .map_or_else(|| self.unauthenticated.clone(), |identity| Caller::with_certificate(&identity.name)));
        }
        let credential = bearer(authorization)?;
        if let Some(jwt) = self.jwt.as_ref().filter(|_| !self.modes.token || !Token::looks_like(credential)) {
            return jwt.authenticate(credential, peer.address).await;
        }
        let token = Token::parse(credential).map_err(|problem| {
            Error::Unauthenticated(format!("the header authorization has no valid Howdah token: {problem}"))
        })?;
        if let Some(caller) = self.tokens.caller(&token) {
            return Ok(caller);
        }
        // The address's quota of failed authentications applies only to unknown tokens.
        peer.address.map_or(Ok(()), |address| address.may_fail(Cost::Read))?;
        self.reload_after(Instant::now()).await?;
        if let Some(caller) = self.tokens.caller(&token) {
            return Ok(caller);
        }
        peer.address.map_or(Ok(()), |address| address.failed(Cost::Read))?;
        let id = token.id();
        Err(Error::Unauthenticated(format!("the token {id} is unknown, was revoked, or has expired")))
    }

    /// Identifies the caller and attaches the quotas of its principal.
    pub(crate) async fn caller(&self, authorization: Option<&[u8]>, peer: Peer<'_>) -> Result<Caller, Error> {
        let caller = self.authenticate(authorization, peer).await?;
        caller.attach_quota(&self.principals);
        Ok(caller)
    }

    /// Returns the quota of a client address, which applies to calls that are not authenticated yet. `None` if authentication
    /// is off.
    pub(crate) fn address(&self, address: IpAddr) -> Option<Arc<Address>> {
        (!self.modes.is_none()).then(|| self.addresses.get(address))
    }

    /// Reads the tokens and the revoked JSON Web Tokens if the version of the settings has changed. Ends the streams of expired
    /// tokens.
    pub(crate) async fn refresh(&self, version: i64) -> Result<(), StoreError> {
        if !self.modes.is_none() && self.version.load(Ordering::Acquire) != version {
            self.reload().await?;
            self.version.store(version, Ordering::Release);
        }
        self.tokens.end_expired();
        Ok(())
    }

    /// Ends a session of the page at every broker, by the hash of its cookie.
    pub(crate) async fn end_session(&self, hash: &[u8], lasts: Duration) -> Result<(), StoreError> {
        self.store.end_session(hash, lasts).await
    }

    /// Whether a session of the page has been logged out, by the hash of its cookie.
    pub(crate) async fn session_has_ended(&self, hash: &[u8]) -> Result<bool, StoreError> {
        self.store.has_ended(hash).await
    }

    pub(crate) async fn reload(&self) -> Result<(), StoreError> {
        self.read_as(&mut *self.last_read.lock().await).await
    }

    /// Returns after a read of the tokens that began after `asked`. Calls share a read, even a failed one. Throttling limits a
    /// flood of unknown tokens to a few statements per second.
    async fn reload_after(&self, asked: Instant) -> Result<(), Error> {
        let mut last_read = self.last_read.lock().await;
        if let Some(last) = &*last_read {
            match last.succeeded.filter(|_| last.begun > asked) {
                Some(true) => return Ok(()),
                Some(false) => {
                    return Err(Error::Unavailable("cannot look up this token in Postgres now; try again".into()));
                }
                None => tokio::time::sleep_until((last.begun + RELOAD).into()).await,
            }
        }
        Ok(self.read_as(&mut last_read).await?)
    }

    async fn read_as(&self, last_read: &mut Option<LastRead>) -> Result<(), StoreError> {
        let last = last_read.insert(LastRead { begun: Instant::now(), succeeded: None });
        let result = self.read().await;
        last.succeeded = Some(result.is_ok());
        result
    }

    async fn read(&self) -> Result<(), StoreError> {
        if let Some(jwt) = &self.jwt {
            jwt.revoke(self.store.revoked_jwts().await?);
        }
        if self.modes.token {
            let mut active = self.store.active_tokens().await?;
            active.extend(self.from_file.iter().cloned());
            self.tokens.replace(active);
        }
        Ok(())
    }

    /// Returns the maximum remaining validity of JSON Web Tokens with this name or principal. `None` if their issuer is
    /// unknown.
    pub(crate) fn jwt_lifetime(&self, name: &str) -> Option<Duration> {
        self.jwt.as_ref()?.longest_lifetime(name)
    }
}

/// Returns the credential in `Bearer CREDENTIAL`.
fn bearer(authorization: Option<&[u8]>) -> Result<&str, Error> {
    let how = "send the header `authorization: Bearer TOKEN` (howdah: --token-file)";
    let Some(value) = authorization else {
        return Err(Error::Unauthenticated(format!("this broker requires a credential; {how}")));
    };
    let (scheme, credential) =
        std::str::from_utf8(value).ok().and_then(|value| value.split_once(' ')).unwrap_or_default();
    if !scheme.eq_ignore_ascii_case("bearer") || credential.trim().is_empty() {
        return Err(Error::Unauthenticated(format!("the header authorization is malformed; {how}")));
    }
    Ok(credential.trim())
}

/// Reads a text file that has at most `most` bytes.
fn read_text(path: &Path, most: u64) -> Result<String, String> {
    let size = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    if size > most {
        return Err(format!("it has {size} bytes; at most {most} are read"));
    }
    std::fs::read_to_string(path).map_err(|error| error.to_string())
}
