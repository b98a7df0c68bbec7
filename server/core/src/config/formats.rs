//! Parses and formats values of settings in files, environment variables and flags. An error about a value out of
//! bounds names the bounds; `load` adds the source of the value.

use std::{fmt::Display, net::SocketAddr, ops::RangeInclusive, path::PathBuf, str::FromStr, time::Duration};

use http::Uri;

use super::{ArchivePayloads, AuthModes, Config, PageMode, WakeMode, url};
use crate::logging::Format;

/// A value of a setting in TOML format, as `howdah config` prints it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Shown {
    /// A value in quotes.
    Text(String),
    /// A number or a boolean.
    Bare(String),
    /// A value in quotes with hidden passwords. It is printed as a comment, because it cannot be parsed again.
    Redacted(String),
    /// A setting without a value, printed as a comment.
    Unset,
}

/// Parser and formatter for settings of the type `T`.
pub(super) trait Kind<T> {
    /// Parses the text of a value. The error is a phrase that completes "the value …", such as `must be a number`.
    fn parse(&self, text: &str) -> Result<T, String>;
    /// Formats the value. `parse` accepts the result.
    fn show(&self, value: &T) -> Shown;
    /// Describes the accepted values; empty if no description is needed.
    fn bounds(&self) -> String;
}

/// Formats a range as `a to b`.
fn range(least: impl Display, most: impl Display) -> String {
    format!("{least} to {most}")
}

/// A whole number in this range.
pub(super) struct Count<T>(pub(super) RangeInclusive<T>);

impl<T: FromStr + Display + PartialOrd> Kind<T> for Count<T> {
    fn parse(&self, text: &str) -> Result<T, String> {
        let number = text.replace('_', "").parse().ok();
        number
            .filter(|number| self.0.contains(number))
            .ok_or_else(|| format!("must be a whole number from {} to {}", self.0.start(), self.0.end()))
    }

    fn show(&self, value: &T) -> Shown {
        Shown::Bare(value.to_string())
    }

    fn bounds(&self) -> String {
        range(self.0.start(), self.0.end())
    }
}

/// A number in this range.
pub(super) struct Number(pub(super) RangeInclusive<f64>);

impl Kind<f64> for Number {
    fn parse(&self, text: &str) -> Result<f64, String> {
        let number = text.parse().ok().filter(|number| self.0.contains(number));
        number.ok_or_else(|| format!("must be a number from {} to {}", self.0.start(), self.0.end()))
    }

    fn show(&self, value: &f64) -> Shown {
        Shown::Bare(format!("{value:?}"))
    }

    fn bounds(&self) -> String {
        range(self.0.start(), self.0.end())
    }
}

/// A number of bytes in this range, with or without a unit.
pub(super) struct Size(pub(super) RangeInclusive<u64>);

const UNITS: [(&str, u64); 7] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

/// Parses a number of bytes: `65536`, `64 KiB`, `1 MB`.
pub fn bytes_of(text: &str) -> Option<u64> {
    let unit = UNITS.iter().find_map(|(unit, weight)| Some((text.strip_suffix(unit)?, *weight)));
    let (number, weight) = unit.unwrap_or((text, 1));
    let number: u64 = number.trim_end().replace('_', "").parse().ok()?;
    number.checked_mul(weight)
}

/// Formats a number of bytes in the largest unit without a fraction.
pub fn bytes_words(bytes: u64) -> String {
    let unit = UNITS[..3].iter().find(|(_, weight)| bytes >= *weight && bytes.is_multiple_of(*weight));
    unit.map_or_else(|| bytes.to_string(), |(unit, weight)| format!("{} {unit}", bytes / weight))
}

impl<T: TryFrom<u64> + TryInto<u64> + Copy> Kind<T> for Size {
    fn parse(&self, text: &str) -> Result<T, String> {
        let bytes = bytes_of(text).filter(|bytes| self.0.contains(bytes)).and_then(|bytes| T::try_from(bytes).ok());
        bytes.ok_or_else(|| {
            let (least, most) = (bytes_words(*self.0.start()), bytes_words(*self.0.end()));
            format!("must be a number of bytes, such as 65536 or 64 KiB, from {least} to {most}")
        })
    }

    fn show(&self, value: &T) -> Shown {
        let bytes = (*value).try_into().unwrap_or(u64::MAX);
        let words = bytes_words(bytes);
        if words.contains(' ') { Shown::Text(words) } else { Shown::Bare(words) }
    }

    fn bounds(&self) -> String {
        range(bytes_words(*self.0.start()), bytes_words(*self.0.end()))
    }
}

/// A duration with a unit. The bounds are in ms.
pub(super) struct Time(pub(super) RangeInclusive<u64>);

impl Kind<Duration> for Time {
    fn parse(&self, text: &str) -> Result<Duration, String> {
        let (least, most) = (ms(*self.0.start()), ms(*self.0.end()));
        let time = humantime::parse_duration(text).ok();
        time.filter(|time| (least..=most).contains(time)).ok_or_else(|| {
            let [least, most] = [least, most].map(duration_text);
            format!("must be a duration with its unit, such as 500ms, 15s or 5m, from {least} to {most}")
        })
    }

    fn show(&self, value: &Duration) -> Shown {
        Shown::Text(duration_text(*value))
    }

    fn bounds(&self) -> String {
        range(duration_text(ms(*self.0.start())), duration_text(ms(*self.0.end())))
    }
}

/// Formats a duration for people, without months and years, which have no fixed length.
pub fn duration_text(time: Duration) -> String {
    let units = [("days", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
    let mut rest = time.as_millis() as u64;
    let mut words = Vec::new();
    for (unit, length) in units {
        if let count @ 1.. = rest / length {
            let unit = if (unit, count) == ("days", 1) { "day" } else { unit };
            words.push(format!("{count}{unit}"));
        }
        rest %= length;
    }
    if words.is_empty() { "0s".into() } else { words.join(" ") }
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// An address to listen on.
pub(super) struct Address;

impl Kind<SocketAddr> for Address {
    fn parse(&self, text: &str) -> Result<SocketAddr, String> {
        // localhost has two addresses and would need two sockets. Clients try IPv4 first.
        let spelled = text.replacen("localhost:", "127.0.0.1:", 1);
        spelled
            .parse()
            .map_err(|_| "must be an IP address and a port, such as 127.0.0.1:7432, [::1]:7432 or 0.0.0.0:0".into())
    }

    fn show(&self, value: &SocketAddr) -> Shown {
        Shown::Text(value.to_string())
    }

    fn bounds(&self) -> String {
        "an IP address and a port".into()
    }
}

/// Host names, separated by commas.
pub(super) struct HostNames;

impl Kind<Vec<String>> for HostNames {
    fn parse(&self, text: &str) -> Result<Vec<String>, String> {
        let names: Vec<String> = text.split(',').map(str::trim).map(str::to_owned).collect();
        let is_name = |name: &String| {
            (1..=253).contains(&name.len())
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'))
        };
        if text.is_empty() {
            return Ok(Vec::new());
        }
        if names.iter().all(is_name) {
            return Ok(names);
        }
        Err("must be names of hosts without ports, separated by commas, such as broker.example,howdah".into())
    }

    fn show(&self, value: &Vec<String>) -> Shown {
        if value.is_empty() { Shown::Unset } else { Shown::Text(value.join(",")) }
    }

    fn bounds(&self) -> String {
        "names, separated by commas".into()
    }
}

/// A boolean.
pub(super) struct Switch;

impl Kind<bool> for Switch {
    fn parse(&self, text: &str) -> Result<bool, String> {
        match text {
            "true" | "yes" | "on" | "1" => Ok(true),
            "false" | "no" | "off" | "0" => Ok(false),
            _ => Err("must be true or false".into()),
        }
    }

    fn show(&self, value: &bool) -> Shown {
        Shown::Bare(value.to_string())
    }

    fn bounds(&self) -> String {
        "true, false".into()
    }
}

/// A setting that must be one of a fixed list of words.
pub(super) struct Choice<T: 'static>(pub(super) &'static [(&'static str, T)]);

pub(super) const WAKE: Choice<WakeMode> = Choice(&[("listen", WakeMode::Listen), ("poll", WakeMode::Poll)]);

pub(super) const PAGE: Choice<PageMode> =
    Choice(&[("on", PageMode::On), ("read-only", PageMode::ReadOnly), ("off", PageMode::Off)]);

pub(super) const ARCHIVE_PAYLOADS: Choice<ArchivePayloads> =
    Choice(&[("full", ArchivePayloads::Full), ("hash", ArchivePayloads::Hash), ("none", ArchivePayloads::None)]);

pub(super) const FORMAT: Choice<Format> =
    Choice(&[("auto", Format::Auto), ("text", Format::Text), ("json", Format::Json)]);

impl<T: Copy + PartialEq> Kind<T> for Choice<T> {
    fn parse(&self, text: &str) -> Result<T, String> {
        let found = self.0.iter().find(|(word, _)| *word == text);
        found.map(|(_, value)| *value).ok_or_else(|| {
            let words: Vec<_> = self.0.iter().map(|(word, _)| *word).collect();
            format!("must be {}", words.join(" or "))
        })
    }

    fn show(&self, value: &T) -> Shown {
        let found = self.0.iter().find(|(_, known)| known == value);
        found.map_or(Shown::Unset, |(word, _)| Shown::Text((*word).into()))
    }

    fn bounds(&self) -> String {
        self.0.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ")
    }
}

/// The setting for accepted credentials: `none`, or kinds of credentials separated by commas.
pub(super) struct Auth;

impl Kind<AuthModes> for Auth {
    fn parse(&self, text: &str) -> Result<AuthModes, String> {
        let mut modes = AuthModes::default();
        if text == "none" {
            return Ok(modes);
        }
        for word in text.split(',') {
            match word.trim() {
                "token" => modes.token = true,
                "jwt" => modes.jwt = true,
                other => {
                    return Err(format!("must be none, token, jwt, or token,jwt, but has {other:?}"));
                }
            }
        }
        Ok(modes)
    }

    fn show(&self, value: &AuthModes) -> Shown {
        let words = [("token", value.token), ("jwt", value.jwt)];
        let words: Vec<&str> = words.into_iter().filter(|(_, on)| *on).map(|(word, _)| word).collect();
        Shown::Text(if words.is_empty() { "none".into() } else { words.join(",") })
    }

    fn bounds(&self) -> String {
        "none, token, jwt, token,jwt".into()
    }
}

/// A path.
pub(super) struct File;

impl Kind<PathBuf> for File {
    fn parse(&self, text: &str) -> Result<PathBuf, String> {
        if text.is_empty() { Err("must name a file".into()) } else { Ok(text.into()) }
    }

    fn show(&self, value: &PathBuf) -> Shown {
        Shown::Text(value.display().to_string())
    }

    fn bounds(&self) -> String {
        String::new()
    }
}

/// A setting with free text: a validation function, and a description of the accepted values.
pub(super) struct Text(pub(super) fn(&str) -> Result<(), String>, pub(super) &'static str);

impl Kind<String> for Text {
    fn parse(&self, text: &str) -> Result<String, String> {
        self.0(text).map(|()| text.to_owned())
    }

    fn show(&self, value: &String) -> Shown {
        Shown::Text(value.clone())
    }

    fn bounds(&self) -> String {
        self.1.into()
    }
}

/// The broker's name. The default is not shown, because it depends on the process.
pub(super) struct Name;

impl Kind<String> for Name {
    fn parse(&self, text: &str) -> Result<String, String> {
        if text.is_empty() || text.len() > 200 || text.chars().any(char::is_control) {
            return Err("must be 1 to 200 bytes without control characters".into());
        }
        Ok(text.to_owned())
    }

    fn show(&self, value: &String) -> Shown {
        if *value == Config::new("").name { Shown::Unset } else { Shown::Text(value.clone()) }
    }

    fn bounds(&self) -> String {
        "1 to 200 bytes".into()
    }
}

/// A setting with a Postgres connection string, shown without its password.
pub(super) struct Database;

impl Kind<String> for Database {
    fn parse(&self, text: &str) -> Result<String, String> {
        url::check(text).map(|()| text.to_owned())
    }

    fn show(&self, value: &String) -> Shown {
        let shown = url::redacted(value);
        match value {
            _ if value.is_empty() => Shown::Unset,
            _ if shown == *value => Shown::Text(shown),
            _ => Shown::Redacted(shown),
        }
    }

    fn bounds(&self) -> String {
        String::new()
    }
}

/// A setting that may have no value.
pub(super) struct Maybe<K>(pub(super) K);

impl<T, K: Kind<T>> Kind<Option<T>> for Maybe<K> {
    fn parse(&self, text: &str) -> Result<Option<T>, String> {
        self.0.parse(text).map(Some)
    }

    fn show(&self, value: &Option<T>) -> Shown {
        value.as_ref().map_or(Shown::Unset, |value| self.0.show(value))
    }

    fn bounds(&self) -> String {
        self.0.bounds()
    }
}

/// Checks the name of a schema. The rule allows operators to write the name unquoted in psql.
pub(super) fn schema_name(text: &str) -> Result<(), String> {
    let first = |c: char| c.is_ascii_lowercase() || c == '_';
    let allowed = |c: char| first(c) || c.is_ascii_digit();
    let fits = text.starts_with(first) && text.chars().all(allowed) && text.len() <= 63;
    if fits && !text.starts_with("pg_") {
        return Ok(());
    }
    Err("must be 1 to 63 characters of a-z 0-9 _, begin with a letter, and not begin with pg_".into())
}

/// Checks the name of a store, which appears unescaped in metrics, links and requests.
pub(super) fn store_name(text: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c);
    let fits = text.starts_with(|c: char| c.is_ascii_lowercase()) && text.chars().all(allowed) && text.len() <= 63;
    if fits { Ok(()) } else { Err("must be 1 to 63 characters of a-z 0-9 - _, and begin with a letter".into()) }
}

/// Checks the name of a store, or a pattern for such names with one `*`.
pub(super) fn store_name_or_pattern(text: &str) -> Result<(), String> {
    store_name(&text.replacen('*', "a", 1))
}

/// Checks the prefix of the page's links, which appears unescaped in pages and headers.
pub(super) fn page_prefix(text: &str) -> Result<(), String> {
    let part = |part: &str| {
        !part.is_empty()
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "-._~".contains(c))
            && !part.starts_with('.')
    };
    let fits = text.len() <= 200 && text.strip_prefix('/').is_some_and(|rest| rest.split('/').all(part));
    if fits { Ok(()) } else { Err("must be a path of letters, digits and - . _ ~, such as /howdah".into()) }
}

/// Checks the address of an OpenTelemetry collector. Errors do not repeat the text, because it may contain a password
/// by mistake.
pub(super) fn collector(text: &str) -> Result<(), String> {
    let uri = text.parse::<Uri>().ok().filter(|uri| {
        let is_known = matches!(uri.scheme_str(), Some("http" | "https"));
        is_known && uri.host().is_some() && !text.contains('@') && uri.path() == "/" && uri.query().is_none()
    });
    if text.is_empty() || uri.is_some() {
        return Ok(());
    }
    Err("must be http:// or https://, a host and a port, such as http://localhost:4317; \
         headers with credentials go into otlp_headers_file"
        .into())
}

/// Checks the directives of a log filter.
pub(super) fn log_filter(text: &str) -> Result<(), String> {
    crate::logging::parse_filter(text).map(drop)
}

/// Checks the URL of an archive.
#[cfg(feature = "archive")]
pub(super) fn archive_url(text: &str) -> Result<(), String> {
    howdah_archive::Location::check_url(text)
}

/// Refuses every archive URL, because the program was built without the feature `archive`.
#[cfg(not(feature = "archive"))]
pub(super) fn archive_url(_: &str) -> Result<(), String> {
    Err("cannot be set: this program was built without the archive; build it with `--features archive`".into())
}
