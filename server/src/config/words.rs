//! Texts that are checked: names, filters, paths.

use axum::http::Uri;

/// Checks the name of a schema. Howdah always quotes it, but people write it unquoted in psql.
pub(super) fn schema_name(text: &str) -> Result<(), String> {
    let first = |c: char| c.is_ascii_lowercase() || c == '_';
    let allowed = |c: char| first(c) || c.is_ascii_digit();
    let fits = text.starts_with(first) && text.chars().all(allowed) && text.len() <= 63;
    if fits && !text.starts_with("pg_") {
        return Ok(());
    }
    Err("must be 1 to 63 of a-z 0-9 _, begin with a letter, and not with pg_".into())
}

/// Checks the name of a store: it is written into metrics, links and requests as it is.
pub(super) fn store_name(text: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c);
    let fits = text.starts_with(|c: char| c.is_ascii_lowercase()) && text.chars().all(allowed) && text.len() <= 63;
    if fits { Ok(()) } else { Err("must be 1 to 63 of a-z 0-9 - _, and begin with a letter".into()) }
}

/// A path that links begin with: it is written into pages and headers as it is.
pub(super) fn page_prefix(text: &str) -> Result<(), String> {
    let part = |part: &str| {
        !part.is_empty()
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "-._~".contains(c))
            && !part.starts_with('.')
    };
    let fits = text.len() <= 200 && text.strip_prefix('/').is_some_and(|rest| rest.split('/').all(part));
    if fits { Ok(()) } else { Err("must be a path of letters, digits and - . _ ~, such as /howdah".into()) }
}

/// The address of a collector. Its errors do not repeat the text: somebody may have put a password into it.
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

/// Directives of a log filter.
pub(super) fn log_filter(text: &str) -> Result<(), String> {
    crate::logging::parse_filter(text).map(drop)
}

/// Where an archive is.
#[cfg(feature = "archive")]
pub(super) fn archive_url(text: &str) -> Result<(), String> {
    howdah_archive::Place::check_url(text)
}

/// Without the feature nobody could write it.
#[cfg(not(feature = "archive"))]
pub(super) fn archive_url(_: &str) -> Result<(), String> {
    Err("cannot be set: this program was built without the archive; build it with `--features archive`".into())
}
