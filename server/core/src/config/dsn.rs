//! Connection strings in libpq's formats. Each option is applied or refused by name; no option is ignored. rustls implements the
//! TLS options.

use std::{path::PathBuf, time::Duration};

use tokio_postgres::config::{ChannelBinding, Host, LoadBalanceHosts, SslMode, SslNegotiation, TargetSessionAttrs};

use super::{
    libpq::{LibpqEnvironment, Options},
    passfile::Passfile,
};

/// How a connection verifies the database server's certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// Encrypts without verifying the server (`sslmode=allow`, `prefer`, `require`).
    #[default]
    No,
    /// Verifies that a trusted authority signed the server's certificate (`verify-ca`).
    Authority,
    /// Verifies the authority and the host name (`verify-full`).
    Full,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    /// 1.2
    V12,
    /// 1.3
    V13,
}

/// A parsed and checked connection string.
#[derive(Clone)]
pub struct Dsn {
    /// Configuration of the driver: hosts, user, password and other options.
    pub config: tokio_postgres::Config,
    /// How the server's certificate is verified.
    pub verify: Verify,
    /// File with the certificates of the trusted authorities (PEM). `None` for the system's authorities.
    pub root_cert: Option<PathBuf>,
    /// Files with the broker's certificate and key (PEM).
    pub client_cert: Option<(PathBuf, PathBuf)>,
    /// File with a certificate revocation list (PEM).
    pub crl: Option<PathBuf>,
    /// Whether the TLS handshake sends the host name (SNI).
    pub sends_name: bool,
    /// Minimum and maximum TLS version.
    pub tls_versions: (TlsVersion, TlsVersion),
    /// Password file, used if the connection string has no password.
    passfile: Option<Passfile>,
}

impl Dsn {
    /// Parses a `postgres://` URL or a `key=value` string. Missing options come from libpq's environment variables. Errors never
    /// contain the password.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::parse_in(text, &LibpqEnvironment::of_process(), false)
    }

    /// Parses the connection string of a read replica, which may lead to a standby, unless `target_session_attrs`
    /// excludes standbys.
    pub fn parse_for_reading(text: &str) -> Result<Self, String> {
        Self::parse_in(text, &LibpqEnvironment::of_process(), true)
    }

    pub(super) fn parse_in(text: &str, environment: &LibpqEnvironment, for_reading: bool) -> Result<Self, String> {
        // libpq would parse `postgres://a,postgres://b` as one URL and connect to a wrong server.
        if text.contains(",postgres://") || text.contains(",postgresql://") {
            return Err(
                "must not be a list of URLs; a connection string is for one database: configure several stores, or \
                 name several hosts of one database, as in postgres://a,b/app"
                    .to_owned(),
            );
        }
        let mut options = Options::read(text, environment)?;
        let mut config = tokio_postgres::Config::new();
        set_servers(&mut config, &mut options)?;
        for (name, set) in TEXTS {
            if let Some(value) = options.take(name) {
                set(&mut config, &value);
            }
        }
        if let Some(fallback) = options.take("fallback_application_name")
            && config.get_application_name().is_none()
        {
            config.application_name(fallback);
        }
        set_waits(&mut config, &mut options)?;
        config.target_session_attrs(target(&mut options, for_reading)?);
        options
            .choose(
                "channel_binding",
                &[
                    ("disable", ChannelBinding::Disable),
                    ("prefer", ChannelBinding::Prefer),
                    ("require", ChannelBinding::Require),
                ],
            )?
            .map(|binding| config.channel_binding(binding));
        options
            .choose(
                "load_balance_hosts",
                &[("disable", LoadBalanceHosts::Disable), ("random", LoadBalanceHosts::Random)],
            )?
            .map(|balance| config.load_balance_hosts(balance));
        let passfile = Passfile::find(&mut options, environment)?;
        let dsn = Self::with_tls(config, &mut options, environment)?;
        options.end()?;
        Ok(Self { passfile, ..dsn })
    }

    fn with_tls(
        mut config: tokio_postgres::Config,
        options: &mut Options,
        environment: &LibpqEnvironment,
    ) -> Result<Self, String> {
        let file = |options: &mut Options, name, default| {
            options.take(name).map(PathBuf::from).or_else(|| environment.file_at_home(default))
        };
        let mode = options.take("sslmode");
        let root = options.take("sslrootcert");
        // As in libpq, `sslrootcert=system` requires a check of the host name, because the system trusts many
        // authorities.
        let system = root.as_deref() == Some("system");
        if let Some(weak) = mode.as_deref().filter(|mode| system && *mode != "verify-full") {
            return Err(format!("sslmode {weak:?} may not be used with sslrootcert=system; use verify-full"));
        }
        let root_cert = match root {
            Some(_) if system => None,
            Some(root) => Some(PathBuf::from(root)),
            None => environment.file_at_home(".postgresql/root.crt"),
        };
        let (mode, verify) = match mode.as_deref() {
            None if system => (SslMode::Require, Verify::Full),
            None | Some("prefer" | "allow") => (SslMode::Prefer, Verify::No),
            Some("disable") => (SslMode::Disable, Verify::No),
            // As in libpq, `sslmode=require` with a root certificate verifies the authority of the server's
            // certificate.
            Some("require") if root_cert.is_some() => (SslMode::Require, Verify::Authority),
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
        let negotiations = [("postgres", SslNegotiation::Postgres), ("direct", SslNegotiation::Direct)];
        if let Some(negotiation) = options.choose("sslnegotiation", &negotiations)? {
            if negotiation == SslNegotiation::Direct && mode != SslMode::Require {
                return Err("sslnegotiation=direct needs sslmode=require, verify-ca or verify-full".into());
            }
            config.ssl_negotiation(negotiation);
        }
        let cert = file(options, "sslcert", ".postgresql/postgresql.crt");
        let key = file(options, "sslkey", ".postgresql/postgresql.key");
        let client_cert = match (cert, key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => return Err("sslcert and sslkey go together: set both".into()),
        };
        let sends_cert = options.choose("sslcertmode", &[("allow", true), ("disable", false)])?.unwrap_or(true);
        let versions = [
            ("TLSv1", TlsVersion::V12),
            ("TLSv1.1", TlsVersion::V12),
            ("TLSv1.2", TlsVersion::V12),
            ("TLSv1.3", TlsVersion::V13),
        ];
        let lowest = options.choose("ssl_min_protocol_version", &versions)?.unwrap_or(TlsVersion::V12);
        let highest = options.choose("ssl_max_protocol_version", &versions[2..])?.unwrap_or(TlsVersion::V13);
        if lowest > highest {
            return Err("ssl_min_protocol_version is higher than ssl_max_protocol_version".into());
        }
        Ok(Self {
            config,
            verify,
            root_cert,
            client_cert: client_cert.filter(|_| sends_cert),
            crl: options.take("sslcrl").map(PathBuf::from),
            sends_name: options.choose("sslsni", &[("1", true), ("0", false)])?.unwrap_or(true),
            tls_versions: (lowest, highest),
            passfile: None,
        })
    }

    /// Splits a connection string with several hosts into one connection string per host, each with the host's password
    /// from the password file. Errors name the password file.
    pub fn each_host(&self) -> Result<Vec<Self>, String> {
        let config = &self.config;
        let count = config.get_hosts().len().max(config.get_hostaddrs().len());
        let one = |n: usize| -> Result<Self, String> {
            let mut one = without_hosts(config);
            match config.get_hosts().get(n) {
                Some(Host::Tcp(host)) => drop(one.host(host)),
                #[cfg(unix)]
                Some(Host::Unix(path)) => {
                    // As in libpq, Unix sockets do not use TLS.
                    one.host_path(path).ssl_mode(SslMode::Disable);
                }
                None => {}
            }
            if let Some(address) = config.get_hostaddrs().get(n) {
                one.hostaddr(*address);
            }
            // If the connection string has only one port, the port applies to all hosts.
            if let Some(port) = config.get_ports().get(n).or(config.get_ports().first()) {
                one.port(*port);
            }
            let passfile = self.passfile.as_ref().filter(|_| one.get_password().is_none());
            if let Some(password) = passfile.map(|file| file.password(&one)).transpose()?.flatten() {
                one.password(password);
            }
            Ok(Self { config: one, ..self.clone() })
        };
        (0..count).map(one).collect()
    }

    /// Returns the first host and port of the connection string, such as `db.internal:5432`.
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

type SetText = fn(&mut tokio_postgres::Config, &str);

/// Options that are passed to tokio-postgres unchanged.
const TEXTS: [(&str, SetText); 5] = [
    ("user", |config, value| {
        config.user(value);
    }),
    ("password", |config, value| {
        config.password(value);
    }),
    ("dbname", |config, value| {
        config.dbname(value);
    }),
    ("options", |config, value| {
        config.options(value);
    }),
    ("application_name", |config, value| {
        config.application_name(value);
    }),
];

fn set_servers(config: &mut tokio_postgres::Config, options: &mut Options) -> Result<(), String> {
    let hosts = options.take("host").unwrap_or_default();
    let addresses = options.take("hostaddr").unwrap_or_default();
    let ports = options.take("port").unwrap_or_default();
    for address in addresses.split(',').filter(|address| !address.is_empty()) {
        let parsed = address.parse().map_err(|_| format!("hostaddr {address:?} is not an IP address"))?;
        config.hostaddr(parsed);
    }
    match hosts.as_str() {
        "" if config.get_hostaddrs().is_empty() => drop(config.host("localhost")),
        "" => {}
        hosts => {
            for host in hosts.split(',') {
                match host {
                    "" => drop(config.host("localhost")),
                    host if host.starts_with('@') => {
                        return Err("host names an abstract socket, which is not supported".into());
                    }
                    host => drop(config.host(host)),
                }
            }
        }
    }
    if !ports.is_empty() {
        for port in ports.split(',') {
            let number = if port.is_empty() { Ok(5432) } else { port.parse() };
            config.port(number.ok().filter(|port| *port > 0).ok_or_else(|| format!("port {port:?} is not a port"))?);
        }
    }
    let (hosts, addresses, ports) = (config.get_hosts().len(), config.get_hostaddrs().len(), config.get_ports().len());
    if hosts > 0 && addresses > 0 && hosts != addresses {
        return Err(format!("host has {hosts} values and hostaddr has {addresses}; give the same number"));
    }
    if ports > 1 && ports != hosts.max(addresses) {
        return Err(format!(
            "port has {ports} values for {} hosts; give one, or one for each host",
            hosts.max(addresses)
        ));
    }
    Ok(())
}

/// Sets the timeouts and TCP keepalives of the connection. The defaults detect a dead peer within seconds.
fn set_waits(config: &mut tokio_postgres::Config, options: &mut Options) -> Result<(), String> {
    let seconds = |n: u32| Duration::from_secs(u64::from(n));
    // As in libpq, 0 means the default.
    let mut number = |name, default: u32| Ok::<_, String>(options.number(name)?.filter(|n| *n > 0).unwrap_or(default));
    config.connect_timeout(seconds(number("connect_timeout", 5)?));
    config.keepalives_idle(seconds(number("keepalives_idle", 10)?));
    config.keepalives_interval(seconds(number("keepalives_interval", 3)?));
    config.keepalives_retries(number("keepalives_count", 3)?);
    config.tcp_user_timeout(Duration::from_millis(u64::from(number("tcp_user_timeout", 15_000)?)));
    if let Some(keepalives) = options.number("keepalives")? {
        config.keepalives(keepalives != 0);
    }
    if config.get_application_name().is_none() {
        config.application_name("howdah");
    }
    Ok(())
}

/// Returns the kind of server that `target_session_attrs` requires. A broker writes, so it must not use a former
/// primary.
fn target(options: &mut Options, for_reading: bool) -> Result<TargetSessionAttrs, String> {
    let Some(wanted) = options.take("target_session_attrs") else {
        return Ok(if for_reading { TargetSessionAttrs::Any } else { TargetSessionAttrs::ReadWrite });
    };
    match (wanted.as_str(), for_reading) {
        ("read-write" | "primary", _) | ("any", false) => Ok(TargetSessionAttrs::ReadWrite),
        ("any", true) => Ok(TargetSessionAttrs::Any),
        ("read-only" | "standby", true) => Ok(TargetSessionAttrs::ReadOnly),
        ("read-only" | "standby" | "prefer-standby", false) => {
            Err(format!("target_session_attrs={wanted} selects a server that refuses writes; use read-write"))
        }
        _ => Err(format!("target_session_attrs={wanted} is not supported; use any, read-write or read-only")),
    }
}

/// Copies a driver configuration except its hosts, because tokio-postgres cannot remove hosts from a configuration.
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
