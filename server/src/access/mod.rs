//! Who calls, and what that caller may do: credentials (`token`), their scopes (`scope`), compiled (`rights`), the rule of
//! each call (`rules`), and the one place that decides (`caller`). Tokens of other issuers are in `jwt`.

mod caller;
mod create;
mod file;
pub(crate) mod jwt;
mod operation;
mod refusals;
mod rights;
mod rules;
mod scope;
mod token;
mod tokens;

use std::net::IpAddr;
use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};
use std::time::{Duration, Instant};

use prometheus_client::metrics::{counter::Counter, family::Family};
use tokio::sync::Mutex;

pub use caller::{Caller, Grant};
pub use create::{TokenQuery, create_token};
pub use file::read as read_token_file;
pub use operation::Operation;
pub use refusals::Refusal;
use refusals::Refusals;
pub use rights::Rights;
pub use rules::{Rule, rule};
pub use scope::{MAX_SCOPES, Pattern, Scope};
pub use token::{Token, TokenError, TokenId};

use crate::{
    config::{AuthModes, Config},
    error::Error,
    metrics::{ByReason, Metrics},
    quota::{Address, Addresses, Principals},
    store::{ActiveToken, Store, StoreError},
    tls::PeerIdentity,
};
use jwt::Jwt;
use tokens::Tokens;

/// How often unknown tokens may make a broker read the tokens again. A token is known everywhere within a second; this is
/// for those that are used sooner.
const RELOAD: Duration = Duration::from_millis(200);

/// The longest name of a principal, in bytes.
pub const PRINCIPAL_BYTES: usize = 200;
/// How the names of principals begin that have no token of Howdah: those of JSON Web Tokens, client certificates, and roles of
/// SQL in the audit.
const OTHERS: [&str; 3] = [jwt::PRINCIPAL_BEGIN, caller::CERTIFICATE, "sql:"];

/// Where a call comes from.
#[derive(Clone, Copy, Default)]
pub(crate) struct Peer<'a> {
    /// The address, if addresses are told apart.
    pub(crate) address: Option<&'a Address>,
    /// Who the client is, if it has shown a certificate.
    pub(crate) identity: Option<&'a PeerIdentity>,
}

/// The last read of the tokens.
struct LastRead {
    begun: Instant,
    /// Whether the tokens were read; `None`: it was cut short.
    succeeded: Option<bool>,
}

/// Authenticates callers.
pub struct Access {
    modes: AuthModes,
    store: Store,
    anyone: Caller,
    principals: Principals,
    addresses: Addresses,
    tokens: Tokens,
    jwt: Option<Jwt>,
    /// The tokens of the file, which hold as long as the broker runs.
    from_file: Vec<ActiveToken>,
    version: AtomicI64,
    last_read: Mutex<Option<LastRead>>,
    /// Notes what was refused.
    pub(crate) refusals: Refusals,
}

impl Access {
    /// Reads the files of tokens and of issuers, if there are any. Stored tokens are read by the first `refresh`.
    pub fn new(config: &Config, store: Store, metrics: &Metrics) -> Result<Self, String> {
        let issuers = config.auth_jwt_file.as_deref().filter(|_| config.auth.jwt);
        let from_file = config.auth_token_file.as_deref().map(file::read).transpose()?.unwrap_or_default();
        Ok(Self {
            modes: config.auth,
            store,
            anyone: Caller::anyone(),
            principals: Principals::new(&config.limits, &metrics.refusals),
            addresses: Addresses::new(&config.limits, &metrics.refusals),
            tokens: Tokens::default(),
            jwt: issuers.map(|path| Jwt::start(path, &metrics.jwt)).transpose()?,
            from_file,
            version: AtomicI64::new(i64::MIN),
            last_read: Mutex::default(),
            refusals: Refusals::default(),
        })
    }

    /// Counts what is refused in this metric.
    pub(crate) fn counting(self, refusals: Family<ByReason, Counter>) -> Self {
        Self { refusals: Refusals::counting(refusals), ..self }
    }

    /// Whose call it is, by the value of its header `authorization`.
    async fn authenticate(&self, authorization: Option<&[u8]>, peer: Peer<'_>) -> Result<Caller, Error> {
        if self.modes.is_none() {
            return Ok(peer.identity.map_or_else(|| self.anyone.clone(), Caller::with_certificate));
        }
        let credential = bearer(authorization)?;
        if let Some(jwt) = self.jwt.as_ref().filter(|_| !self.modes.token || !Token::looks_like(credential)) {
            return jwt.authenticate(credential, peer.address).await;
        }
        let token = Token::parse(credential).map_err(|problem| {
            Error::Unauthenticated(format!("the header authorization has no token of Howdah: {problem}"))
        })?;
        if let Some(caller) = self.tokens.caller(&token) {
            return Ok(caller);
        }
        // Of who holds a token nothing is asked, whatever comes from the same address.
        peer.address.map_or(Ok(()), Address::may_fail)?;
        self.reload_after(Instant::now()).await?;
        self.tokens.caller(&token).ok_or_else(|| {
            let id = token.id();
            Error::Unauthenticated(format!("the token {id} is unknown, was revoked, or has expired"))
        })
    }

    /// Whose call it is, with what that principal may use of this broker.
    pub(crate) async fn caller(&self, authorization: Option<&[u8]>, peer: Peer<'_>) -> Result<Caller, Error> {
        let caller = self.authenticate(authorization, peer).await;
        if let (Err(Error::Unauthenticated(_)), Some(address)) = (&caller, peer.address) {
            address.failed()?;
        }
        let caller = caller?;
        if !caller.principal().is_empty() {
            caller.grant.quota.get_or_init(|| self.principals.get(caller.principal()));
        }
        Ok(caller)
    }

    /// What an address may do before it is known who calls; `None`: nobody is asked.
    pub(crate) fn address(&self, address: IpAddr) -> Option<Arc<Address>> {
        (!self.modes.is_none()).then(|| self.addresses.get(address))
    }

    /// Reads the tokens, and which JSON Web Tokens are revoked, if the settings have another version; ends the streams of those that have expired.
    pub(crate) async fn refresh(&self, version: i64) -> Result<(), StoreError> {
        if !self.modes.is_none() && self.version.load(Ordering::Acquire) != version {
            self.reload().await?;
            self.version.store(version, Ordering::Release);
        }
        self.tokens.end_expired();
        Ok(())
    }

    /// Reads the tokens again.
    pub(crate) async fn reload(&self) -> Result<(), StoreError> {
        self.read_as(&mut *self.last_read.lock().await).await
    }

    /// Returns when the tokens were read after this time. Callers share a read, also one that fails, and reads are rare: a
    /// flood of unknown tokens costs Postgres a few statements a second.
    async fn reload_after(&self, asked: Instant) -> Result<(), Error> {
        let mut last_read = self.last_read.lock().await;
        if let Some(last) = &*last_read {
            match last.succeeded.filter(|_| last.begun > asked) {
                Some(true) => return Ok(()),
                Some(false) => {
                    return Err(Error::Unavailable("Postgres cannot be asked for this token now; try again".into()));
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

    /// How long JSON Web Tokens may still hold of whose name or principal this is; `None`: its issuer is not known here.
    pub(crate) fn jwt_lifetime(&self, name: &str) -> Option<Duration> {
        self.jwt.as_ref()?.longest_lifetime(name)
    }
}

/// The credential in `Bearer CREDENTIAL`.
fn bearer(authorization: Option<&[u8]>) -> Result<&str, Error> {
    let how = "send the header `authorization: Bearer TOKEN` (howdah: --token-file)";
    let Some(value) = authorization else {
        return Err(Error::Unauthenticated(format!("this broker asks for a credential; {how}")));
    };
    let (scheme, credential) =
        std::str::from_utf8(value).ok().and_then(|value| value.split_once(' ')).unwrap_or_default();
    if !scheme.eq_ignore_ascii_case("bearer") || credential.trim().is_empty() {
        return Err(Error::Unauthenticated(format!("the header authorization has another form; {how}")));
    }
    Ok(credential.trim())
}

/// Checks the name of a principal.
pub fn check_principal(name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > PRINCIPAL_BYTES {
        return Err(format!("has {} bytes; 1 to {PRINCIPAL_BYTES} are allowed", name.len()));
    }
    if let Some(taken) = OTHERS.into_iter().find(|taken| name.starts_with(taken)) {
        return Err(format!("begins with {taken:?}, which stands for who is known in another way"));
    }
    match name.chars().find(|c| !c.is_ascii_graphic()) {
        Some(bad) => {
            Err(format!("has the character {bad:?}; allowed are ASCII letters, digits and signs, without spaces"))
        }
        None => Ok(()),
    }
}
