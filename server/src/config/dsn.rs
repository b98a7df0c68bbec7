//! Connection strings as libpq takes them. tokio-postgres knows fewer options and refuses the others: options of TLS are
//! taken out here and handled by rustls, and options without effect are dropped.

use std::{path::PathBuf, str::FromStr, time::Duration};

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

/// How strictly to check the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// Encrypt without a check of the server (`sslmode=allow`, `prefer`, `require`).
    #[default]
    No,
    /// Also check that a known authority signed the server's certificate (`verify-ca`).
    Authority,
    /// Also check that the certificate is for this host (`verify-full`).
    Full,
}

/// A checked connection string.
#[derive(Clone)]
pub struct Dsn {
    /// Hosts, user, password and the other options.
    pub config: tokio_postgres::Config,
    /// How strictly to check the server.
    pub verify: Verify,
    /// Certificates of the trusted authorities, PEM; `None`: those of the system.
    pub root_cert: Option<PathBuf>,
    /// The broker's own certificate and key, PEM.
    pub client_cert: Option<(PathBuf, PathBuf)>,
}

/// Options of libpq that have no effect here.
const IGNORED: [&str; 8] = [
    "gssencmode",
    "sslcompression",
    "sslsni",
    "krbsrvname",
    "ssl_min_protocol_version",
    "passfile",
    "fallback_application_name",
    "sslnegotiation_hint",
];

#[derive(Default)]
struct TlsOptions {
    mode: Option<String>,
    root: Option<String>,
    cert: Option<String>,
    key: Option<String>,
}

impl TlsOptions {
    /// Takes the option if it is about TLS or must be ignored.
    fn takes(&mut self, key: &str, value: &str) -> bool {
        let slot = match key {
            "sslmode" => &mut self.mode,
            "sslrootcert" => &mut self.root,
            "sslcert" => &mut self.cert,
            "sslkey" => &mut self.key,
            other => return IGNORED.contains(&other),
        };
        *slot = Some(value.to_owned());
        true
    }
}

impl Dsn {
    /// Parses a `postgres://` URL or a `key=value` string. The error never holds the password.
    pub fn parse(text: &str) -> Result<Self, String> {
        // libpq would take the second one for a part of the first, and connect to something else.
        if text.contains(",postgres://") || text.contains(",postgresql://") {
            return Err(
                "it is a list of URLs; a broker serves one database: start one for each, or name several hosts of \
                        one database, as in postgres://a,b/app"
                    .to_owned(),
            );
        }
        let mut tls = TlsOptions::default();
        let rest = if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            without_url_options(text, &mut tls)
        } else {
            without_pairs(text, &mut tls)
        };
        let mut config = tokio_postgres::Config::from_str(&rest).map_err(|error| crate::error::describe(&error))?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            config.host("localhost");
        }
        if config.get_password().is_none()
            && let Ok(password) = std::env::var("PGPASSWORD")
        {
            config.password(password);
        }
        set_defaults(&mut config);
        // As libpq does: whoever trusts every authority that the system trusts must look at the name.
        let system = tls.root.as_deref() == Some("system");
        if let Some(weak) = tls.mode.as_deref().filter(|mode| system && *mode != "verify-full") {
            return Err(format!("sslmode {weak:?} may not be used with sslrootcert=system; use verify-full"));
        }
        let (mode, verify) = match tls.mode.as_deref() {
            None if system => (SslMode::Require, Verify::Full),
            None | Some("prefer" | "allow") => (SslMode::Prefer, Verify::No),
            Some("disable") => (SslMode::Disable, Verify::No),
            // As in libpq: with a root certificate, `require` checks the authority.
            Some("require") if tls.root.is_some() => (SslMode::Require, Verify::Authority),
            Some("require") => (SslMode::Require, Verify::No),
            Some("verify-ca") => (SslMode::Require, Verify::Authority),
            Some("verify-full") => (SslMode::Require, Verify::Full),
            Some(other) => {
                return Err(format!(
                    "sslmode {other:?} is unknown; use disable, prefer, require, verify-ca or verify-full"
                ));
            }
        };
        config.ssl_mode(mode);
        let client_cert = match (tls.cert, tls.key) {
            (Some(cert), Some(key)) => Some((cert.into(), key.into())),
            (None, None) => None,
            _ => return Err("sslcert and sslkey go together".into()),
        };
        let root_cert = tls.root.filter(|root| root != "system").map(PathBuf::from);
        Ok(Self { config, verify, root_cert, client_cert })
    }

    /// The same for those who only read: a standby will do, unless the string asks for something else.
    pub fn parse_for_reading(text: &str) -> Result<Self, String> {
        let mut dsn = Self::parse(text)?;
        if !text.contains("target_session_attrs") {
            dsn.config.target_session_attrs(TargetSessionAttrs::Any);
        }
        Ok(dsn)
    }

    /// A connection string for each of its servers, the same but for that.
    #[must_use]
    pub fn each_host(&self) -> Vec<Self> {
        let config = &self.config;
        let count = config.get_hosts().len().max(config.get_hostaddrs().len());
        if count == 1 {
            return vec![self.clone()];
        }
        let one = |n: usize| {
            let mut one = without_hosts(config);
            match config.get_hosts().get(n) {
                Some(Host::Tcp(host)) => drop(one.host(host)),
                #[cfg(unix)]
                Some(Host::Unix(path)) => drop(one.host_path(path)),
                None => {}
            }
            if let Some(address) = config.get_hostaddrs().get(n) {
                one.hostaddr(*address);
            }
            // A single port is that of all.
            if let Some(port) = config.get_ports().get(n).or(config.get_ports().first()) {
                one.port(*port);
            }
            Self { config: one, ..self.clone() }
        };
        (0..count).map(one).collect()
    }

    /// Where its first server is.
    #[must_use]
    pub fn server(&self) -> String {
        let port = self.config.get_ports().first().copied().unwrap_or(5432);
        match (self.config.get_hosts().first(), self.config.get_hostaddrs().first()) {
            (Some(Host::Tcp(host)), _) => format!("{host}:{port}"),
            #[cfg(unix)]
            (Some(Host::Unix(path)), _) => path.display().to_string(),
            (None, Some(address)) => format!("{address}:{port}"),
            (None, None) => String::new(),
        }
    }
}

/// The same, but for where the servers are. tokio-postgres can only add to those.
fn without_hosts(all: &tokio_postgres::Config) -> tokio_postgres::Config {
    let mut config = tokio_postgres::Config::new();
    all.get_user().map(|user| config.user(user));
    all.get_password().map(|password| config.password(password));
    all.get_dbname().map(|dbname| config.dbname(dbname));
    all.get_options().map(|options| config.options(options));
    all.get_application_name().map(|name| config.application_name(name));
    all.get_connect_timeout().map(|timeout| config.connect_timeout(*timeout));
    all.get_tcp_user_timeout().map(|timeout| config.tcp_user_timeout(*timeout));
    all.get_keepalives_interval().map(|interval| config.keepalives_interval(interval));
    all.get_keepalives_retries().map(|retries| config.keepalives_retries(retries));
    config.ssl_mode(all.get_ssl_mode()).ssl_negotiation(all.get_ssl_negotiation());
    config.keepalives(all.get_keepalives()).keepalives_idle(all.get_keepalives_idle());
    config.target_session_attrs(all.get_target_session_attrs()).channel_binding(all.get_channel_binding());
    config.load_balance_hosts(all.get_load_balance_hosts());
    config
}

/// Sets options so that a dead peer is noticed within seconds, and a former primary is not used for writes.
fn set_defaults(config: &mut tokio_postgres::Config) {
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(Duration::from_secs(5));
    }
    if config.get_application_name().is_none() {
        config.application_name("howdah");
    }
    if config.get_target_session_attrs() == TargetSessionAttrs::Any {
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    }
    config.keepalives_idle(Duration::from_secs(10));
    config.keepalives_interval(Duration::from_secs(3));
    config.keepalives_retries(3);
    config.tcp_user_timeout(Duration::from_secs(15));
}

fn without_url_options(url: &str, tls: &mut TlsOptions) -> String {
    let Some((base, query)) = url.split_once('?') else { return url.to_owned() };
    let mut kept = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let decoded = percent_decode_str(value).decode_utf8_lossy();
        if tls.takes(key, &decoded) {
            continue;
        }
        if key == "host" {
            // libpq takes several in one option; tokio-postgres takes one.
            let hosts = decoded.split(',').map(|host| utf8_percent_encode(host, NON_ALPHANUMERIC));
            kept.extend(hosts.map(|host| format!("host={host}")));
        } else {
            kept.push(pair.to_owned());
        }
    }
    if kept.is_empty() { base.to_owned() } else { format!("{base}?{}", kept.join("&")) }
}

/// Reads `key = 'value'` pairs; a value in quotes may have spaces and `\'`.
fn without_pairs(text: &str, tls: &mut TlsOptions) -> String {
    let mut kept = Vec::new();
    for pair in split_pairs(text) {
        let (key, value) = pair.split_once('=').unwrap_or((&pair, ""));
        let bare = value.trim().trim_matches('\'').replace("\\'", "'");
        if !tls.takes(key.trim(), &bare) {
            kept.push(pair);
        }
    }
    kept.join(" ")
}

fn split_pairs(text: &str) -> Vec<String> {
    let (mut pairs, mut pair, mut quoted, mut escaped) = (Vec::new(), String::new(), false, false);
    for c in text.chars() {
        if c.is_whitespace() && !quoted {
            // Spaces may stand around the equals sign.
            if !pair.is_empty() && !pair.ends_with('=') {
                pairs.push(std::mem::take(&mut pair));
            }
            continue;
        }
        if c == '=' && pair.is_empty() && !pairs.is_empty() {
            pair = pairs.pop().unwrap_or_default();
        }
        if c == '\'' && !escaped {
            quoted = !quoted;
        }
        escaped = c == '\\' && !escaped;
        pair.push(c);
    }
    if !pair.is_empty() {
        pairs.push(pair);
    }
    pairs
}

#[cfg(test)]
mod tests {
    use tokio_postgres::config::Host;

    use super::*;

    fn parsed(text: &str) -> Dsn {
        Dsn::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn several_hosts_may_stand_in_the_options_of_a_url() {
        let dsn = parsed("postgres://u@/app?host=%2Frun%2Fa,/run/b,c.example&port=5432,5433,5434");
        let unix = |path: &str| Host::Unix(path.into());
        assert_eq!(dsn.config.get_hosts(), [unix("/run/a"), unix("/run/b"), Host::Tcp("c.example".into())]);
        assert_eq!(dsn.config.get_ports(), [5432, 5433, 5434]);
    }

    #[test]
    fn each_server_of_several_has_a_connection_string_that_differs_in_nothing_else() {
        let options = "user=u password=p dbname=d options='-c a=b' application_name=n connect_timeout=7 \
                       channel_binding=require sslmode=verify-full";
        let each = parsed(&format!("host=a,/run/b port=1,2 {options}")).each_host();
        let [a, b] = &each[..] else { panic!("{}", each.len()) };
        for (one, text) in [(a, format!("host=a port=1 {options}")), (b, format!("host=/run/b port=2 {options}"))] {
            assert_eq!((&one.config, one.verify), (&parsed(&text).config, Verify::Full));
        }
        assert_eq!((a.server(), b.server()), ("a:1".into(), "/run/b".into()));
        let of = |text: &str| parsed(text).each_host().iter().map(Dsn::server).collect::<Vec<_>>();
        assert_eq!(of("postgres://a,b:7/d"), ["a:5432", "b:7"]);
        assert_eq!(of("host=a,b port=9"), ["a:9", "b:9"]);
        assert_eq!(of("hostaddr=10.0.0.1,10.0.0.2"), ["10.0.0.1:5432", "10.0.0.2:5432"]);
        assert_eq!(of("postgres://h/d"), ["h:5432"]);
    }

    #[test]
    fn a_list_of_urls_is_refused() {
        for text in ["postgres://a/x,postgres://b/y", "postgres://a,postgresql://b/y"] {
            assert!(Dsn::parse(text).is_err_and(|error| error.contains("one database")), "{text}");
        }
        assert_eq!(parsed("postgres://a,b/x").config.get_hosts().len(), 2);
    }

    #[test]
    fn libpq_tls_options_are_understood_in_a_url() {
        let dsn = parsed(
            "postgres://u:p%40@db.example:5433/app?sslmode=verify-full&sslrootcert=%2Fca.pem&gssencmode=disable",
        );
        assert_eq!(dsn.verify, Verify::Full);
        assert_eq!(dsn.root_cert, Some("/ca.pem".into()));
        assert_eq!(dsn.config.get_ssl_mode(), SslMode::Require);
        assert_eq!(dsn.config.get_password(), Some("p@".as_bytes()));
        assert_eq!(dsn.config.get_hosts(), [Host::Tcp("db.example".into())]);
    }

    #[test]
    fn libpq_tls_options_are_understood_in_pairs() {
        let dsn = parsed("host = h dbname=a sslmode = 'verify-ca' password='a b' sslrootcert=/x");
        assert_eq!(dsn.verify, Verify::Authority);
        assert_eq!(dsn.config.get_password(), Some("a b".as_bytes()));
        assert_eq!(dsn.config.get_dbname(), Some("a"));
    }

    #[test]
    fn the_systems_authorities_are_trusted_for_the_name_of_the_host_only() {
        for text in ["postgres://h/d?sslrootcert=system", "host=h sslmode=verify-full sslrootcert=system"] {
            let dsn = parsed(text);
            assert_eq!((dsn.verify, dsn.config.get_ssl_mode()), (Verify::Full, SslMode::Require), "{text}");
            assert_eq!(dsn.root_cert, None);
        }
        for mode in ["disable", "allow", "prefer", "require", "verify-ca"] {
            let error = Dsn::parse(&format!("postgres://u:s3cret@h/d?sslmode={mode}&sslrootcert=system")).err();
            let error = error.unwrap_or_default();
            assert!(
                error.contains(mode) && error.contains("verify-full") && !error.contains("s3cret"),
                "{mode}: {error}"
            );
        }
    }

    #[test]
    fn an_unknown_mode_or_option_is_refused_without_the_password() {
        for text in ["postgres://u:s3cret@h/d?sslmode=maybe", "postgres://u:s3cret@h/d?nonsense=1"] {
            let error = Dsn::parse(text).err().unwrap_or_default();
            assert!(!error.is_empty() && !error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn a_socket_directory_can_be_given() {
        let dsn = parsed("postgres://howdah@/db?host=%2Ftmp%2Fx");
        assert_eq!(dsn.config.get_hosts(), [Host::Unix("/tmp/x".into())]);
    }
}
