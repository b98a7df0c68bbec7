//! The options of a connection string, and libpq's environment variables, which supply missing options.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    path::PathBuf,
};

use percent_encoding::percent_decode_str;

use super::url::{SCHEMES, pairs};

/// Harmless values that an unsupported option may have, and the reason why its other values are refused.
type Rule = (&'static [&'static str], &'static str);

/// All libpq options: name, environment variable, and a rule if Howdah does not support the option.
const KNOWN: &[(&str, &str, Option<Rule>)] = &[
    ("host", "PGHOST", None),
    ("hostaddr", "PGHOSTADDR", None),
    ("port", "PGPORT", None),
    ("user", "PGUSER", None),
    ("password", "PGPASSWORD", None),
    ("passfile", "PGPASSFILE", None),
    ("dbname", "PGDATABASE", None),
    ("options", "PGOPTIONS", None),
    ("application_name", "PGAPPNAME", None),
    ("fallback_application_name", "", None),
    ("connect_timeout", "PGCONNECT_TIMEOUT", None),
    ("keepalives", "", None),
    ("keepalives_idle", "", None),
    ("keepalives_interval", "", None),
    ("keepalives_count", "", None),
    ("tcp_user_timeout", "", None),
    ("target_session_attrs", "PGTARGETSESSIONATTRS", None),
    ("load_balance_hosts", "PGLOADBALANCEHOSTS", None),
    ("channel_binding", "PGCHANNELBINDING", None),
    ("sslmode", "PGSSLMODE", None),
    ("sslnegotiation", "PGSSLNEGOTIATION", None),
    ("sslrootcert", "PGSSLROOTCERT", None),
    ("sslcert", "PGSSLCERT", None),
    ("sslkey", "PGSSLKEY", None),
    ("sslcertmode", "PGSSLCERTMODE", None),
    ("sslcrl", "PGSSLCRL", None),
    ("sslsni", "PGSSLSNI", None),
    ("ssl_min_protocol_version", "PGSSLMINPROTOCOLVERSION", None),
    ("ssl_max_protocol_version", "PGSSLMAXPROTOCOLVERSION", None),
    ("sslcompression", "PGSSLCOMPRESSION", Some((&["0"], "TLS compression is not supported"))),
    ("requiressl", "PGREQUIRESSL", Some((&["0"], "use sslmode=require"))),
    ("sslpassword", "", Some((&[], "encrypted keys are not supported"))),
    ("sslcrldir", "PGSSLCRLDIR", Some((&[], "name a file with sslcrl"))),
    ("sslkeylogfile", "", Some((&[], "TLS keys are not written"))),
    ("client_encoding", "PGCLIENTENCODING", Some((&["UTF8", "utf8", "UTF-8", "utf-8", "auto"], "sessions use UTF8"))),
    ("gssencmode", "PGGSSENCMODE", Some((&["disable", "prefer"], GSS))),
    ("gssdelegation", "PGGSSDELEGATION", Some((&["0"], GSS))),
    ("krbsrvname", "PGKRBSRVNAME", Some((&[], GSS))),
    ("gsslib", "PGGSSLIB", Some((&[], GSS))),
    ("replication", "", Some((&["false", "off", "no", "0"], "sessions run statements"))),
    (
        "requirepeer",
        "PGREQUIREPEER",
        Some((&[], "the owner of a socket cannot be checked; use a directory that only Postgres can write")),
    ),
    (
        "require_auth",
        "PGREQUIREAUTH",
        Some((&[], "authentication methods cannot be selected; use channel_binding=require or sslmode=verify-full")),
    ),
    ("min_protocol_version", "PGMINPROTOCOLVERSION", Some((&["3.0"], PROTOCOL))),
    ("max_protocol_version", "PGMAXPROTOCOLVERSION", Some((&["3.0"], PROTOCOL))),
    ("scram_client_key", "", Some((&[], "give the password"))),
    ("scram_server_key", "", Some((&[], "give the password"))),
    ("service", "PGSERVICE", Some((&[], SERVICE))),
    ("servicefile", "PGSERVICEFILE", Some((&[], SERVICE))),
];

const GSS: &str = "GSSAPI is not supported";
const PROTOCOL: &str = "sessions use version 3.0 of the protocol";
const SERVICE: &str = "service files are not read; write their options into the connection string";

/// Environment variables of libpq (`PGHOST`, …) and the home directory of this process.
#[derive(Default)]
pub(super) struct LibpqEnvironment(HashMap<String, String>);

impl LibpqEnvironment {
    pub(super) fn of_process() -> Self {
        let known = KNOWN.iter().map(|(_, variable, _)| *variable).chain(["HOME"]);
        let read = known.filter_map(|name| Some((name.to_owned(), std::env::var_os(name)?.into_string().ok()?)));
        Self(read.collect())
    }

    /// Returns the value of a variable. An empty variable counts as unset.
    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Returns the path of a file in the home directory, if the file exists.
    pub(super) fn file_at_home(&self, name: &str) -> Option<PathBuf> {
        self.get("HOME").map(|home| PathBuf::from(home).join(name)).filter(|path| path.is_file())
    }
}

impl<'a> FromIterator<(&'a str, &'a str)> for LibpqEnvironment {
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a str)>>(variables: I) -> Self {
        Self(variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

/// Options by name, each with its value and source. Options are removed when they are applied.
pub(super) struct Options(BTreeMap<String, (String, String)>);

impl Options {
    /// Reads options from a URL or from key=value pairs, and missing options from environment variables.
    pub(super) fn read(text: &str, environment: &LibpqEnvironment) -> Result<Self, String> {
        let given = match SCHEMES.iter().find_map(|scheme| text.strip_prefix(scheme)) {
            Some(rest) => of_url(rest)?,
            None => pairs(text).ok_or("must be a postgres:// URL or a list of key=value pairs")?,
        };
        let mut options = BTreeMap::new();
        for (name, value) in given {
            // `keepalives_retries` is the name in tokio-postgres, `keepalives_count` the name in libpq.
            let name = if name == "keepalives_retries" { "keepalives_count".to_owned() } else { name };
            if !KNOWN.iter().any(|(known, ..)| *known == name) {
                let is_word = name.len() <= 40 && name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
                let named =
                    if is_word { format!("option {name}") } else { "an option of the connection string".into() };
                return Err(format!("{named} is unknown to libpq"));
            }
            // As in libpq, an empty value means the default.
            if value.is_empty() {
                options.remove(&name);
            } else {
                options.insert(name.clone(), (value, name));
            }
        }
        for (name, variable, _) in KNOWN.iter().filter(|(_, variable, _)| !variable.is_empty()) {
            if let Some(value) = environment.get(variable) {
                options.entry((*name).to_owned()).or_insert_with(|| (value.to_owned(), (*variable).to_owned()));
            }
        }
        Ok(Self(options))
    }

    pub(super) fn take(&mut self, name: &str) -> Option<String> {
        self.0.remove(name).map(|(value, _)| value)
    }

    /// Removes and returns an option whose value must be a whole number.
    pub(super) fn number(&mut self, name: &str) -> Result<Option<u32>, String> {
        let Some((value, place)) = self.0.remove(name) else { return Ok(None) };
        value.trim().parse().map(Some).map_err(|_| format!("{place} is {value:?}, which is not a whole number"))
    }

    /// Removes and returns an option whose value must be one of `values`.
    pub(super) fn choose<T: Copy>(&mut self, name: &str, values: &[(&str, T)]) -> Result<Option<T>, String> {
        let Some((value, place)) = self.0.remove(name) else { return Ok(None) };
        if let Some((_, meaning)) = values.iter().find(|(known, _)| *known == value) {
            return Ok(Some(*meaning));
        }
        let known: Vec<&str> = values.iter().map(|(known, _)| *known).collect();
        Err(format!("{place}={value} is not supported; use {}", known.join(", ")))
    }

    /// Fails if a remaining option is unsupported and has a refused value.
    pub(super) fn end(self) -> Result<(), String> {
        for (name, _, rule) in KNOWN {
            let (Some((value, place)), Some((values, why))) = (self.0.get(*name), rule) else { continue };
            if !values.contains(&value.as_str()) {
                return Err(format!("{place} is not supported: {why}"));
            }
        }
        Ok(())
    }
}

fn decoded(text: &str) -> Result<String, String> {
    let text = percent_decode_str(text).decode_utf8();
    text.map(Cow::into_owned).map_err(|_| "the URL is not UTF-8 after its % signs are decoded".into())
}

/// Parses `user:password@host:port,host:port/dbname?option=value`.
fn of_url(rest: &str) -> Result<Vec<(String, String)>, String> {
    let mut options = Vec::new();
    let (before, query) = rest.split_once('?').map_or((rest, ""), |(before, query)| (before, query));
    let (address, dbname) = before.split_once('/').map_or((before, ""), |(address, dbname)| (address, dbname));
    let hosts = match address.rsplit_once('@') {
        None => address,
        Some((credentials, hosts)) => {
            let (user, password) =
                credentials.split_once(':').map_or((credentials, ""), |(user, password)| (user, password));
            options.push(("user".to_owned(), decoded(user)?));
            options.push(("password".to_owned(), decoded(password)?));
            hosts
        }
    };
    let (mut names, mut ports) = (Vec::new(), Vec::new());
    for host in hosts.split(',').filter(|_| !hosts.is_empty()) {
        let (name, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, port)) => (address, port.strip_prefix(':').unwrap_or(port)),
            None => host.split_once(':').unwrap_or((host, "")),
        };
        names.push(decoded(name)?);
        ports.push(decoded(port)?);
    }
    options.push(("host".to_owned(), names.join(",")));
    if ports.iter().any(|port| !port.is_empty()) {
        options.push(("port".to_owned(), ports.join(",")));
    }
    options.push(("dbname".to_owned(), decoded(dbname)?));
    options.retain(|(_, value)| !value.is_empty());
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').ok_or("a parameter of the URL has no value: write option=value")?;
        options.push(match (decoded(name)?, decoded(value)?) {
            (name, value) if name == "ssl" && value == "true" => ("sslmode".to_owned(), "require".to_owned()),
            option => option,
        });
    }
    Ok(options)
}
