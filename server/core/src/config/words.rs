//! Validates the texts of settings: names, log filters, URLs, paths.

use http::Uri;

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
