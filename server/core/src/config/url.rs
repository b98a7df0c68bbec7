//! Database URLs in libpq's formats: `postgres://…` and `key=value …`. Errors repeat no part of a URL, because any part may
//! contain a password. A file may contain a connection string, or one `NAME=URL` per line; the broker reads it again while
//! it runs.

use std::path::{Path, PathBuf};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::load::read;

pub(super) const SCHEMES: [&str; 2] = ["postgres://", "postgresql://"];
const HIDDEN: &str = "***";

/// Returns the URL with `***` for each password, on one line and with control characters escaped, so that it may be
/// logged. Parts that may be a password because the URL is ambiguous are hidden, too.
pub fn redacted(url: &str) -> String {
    let shown = match SCHEMES.iter().find_map(|scheme| Some((*scheme, url.strip_prefix(scheme)?))) {
        Some((scheme, rest)) => format!("{scheme}{}", redacted_url(rest)),
        None => redacted_pairs(url).unwrap_or_else(|| HIDDEN.into()),
    };
    crate::logging::escaped(&shown).into_owned()
}

fn redacted_url(rest: &str) -> String {
    let (credentials, address) = split_credentials(rest);
    // A `?` before the `@` may be part of the password or begin the parameters, so everything after the scheme is
    // hidden. `check` refuses such a URL.
    if credentials.is_some_and(|text| text.contains('?')) {
        return HIDDEN.into();
    }
    let credentials = credentials.map_or_else(String::new, |credentials| {
        let user = credentials.split_once(':').map(|(user, _)| user);
        user.map_or_else(|| format!("{credentials}@"), |user| format!("{user}:{HIDDEN}@"))
    });
    let (address, query) = address.split_once('?').map_or((address, None), |(a, q)| (a, Some(q)));
    let query = query.map_or_else(String::new, |query| {
        let shown: Vec<_> = query.split('&').map(redacted_parameter).collect();
        format!("?{}", shown.join("&"))
    });
    format!("{credentials}{address}{query}")
}

/// Splits the URL at the `@` that ends the credentials. A password may contain an `@` that should have been encoded, so
/// the last `@` counts, except in a part that is certainly a query.
fn split_credentials(rest: &str) -> (Option<&str>, &str) {
    let is_query = |query: &str| query.split('&').all(|pair| pair.split_once('=').is_some_and(|(k, _)| is_word(k)));
    // Whether the text cannot contain `user:password@`: no `:` stands before its last `@`.
    let has_none = |text: &str| !text.rsplit_once('@').is_some_and(|(before, _)| before.contains(':'));
    let end = match rest.split_once('?') {
        Some((before, query))
            if is_query(query) && (before.contains('@') || !before.contains(':') && has_none(query)) =>
        {
            before.len()
        }
        _ => rest.len(),
    };
    match rest[..end].rfind('@') {
        Some(at) => (Some(&rest[..at]), &rest[at + 1..]),
        None => (None, rest),
    }
}

/// Hides the value of a parameter that may contain a secret. After an `@`, the driver treats a later `?` as the start
/// of the parameters.
fn redacted_parameter(pair: &str) -> String {
    let mut begins = std::iter::once(0).chain(pair.match_indices('?').map(|(at, _)| at + 1));
    let secret = begins.find_map(|at| {
        let (key, _) = pair[at..].split_once('=')?;
        is_secret(key).then_some(at + key.len())
    });
    secret.map_or_else(|| pair.into(), |end| format!("{}={HIDDEN}", &pair[..end]))
}

/// Hides passwords and other secrets in a list of key=value pairs. `None` if the text is not such a list.
fn redacted_pairs(text: &str) -> Option<String> {
    let shown: Vec<_> = pairs(text)?
        .into_iter()
        .map(
            |(key, value)| {
                if is_secret(&key) { format!("{key}={HIDDEN}") } else { format!("{key}={}", requoted(&value)) }
            },
        )
        .collect();
    Some(shown.join(" ")).filter(|text| !text.is_empty())
}

fn requoted(value: &str) -> String {
    if !value.is_empty() && !value.contains([' ', '\'', '\\']) {
        return value.into();
    }
    format!("'{}'", value.replace('\\', "\\\\").replace('\'', "\\'"))
}

/// Whether the option with this key may contain a secret. Unknown keys count, too, if they contain a word such as
/// `token`.
fn is_secret(key: &str) -> bool {
    let key = percent_encoding::percent_decode_str(key).decode_utf8_lossy().to_ascii_lowercase();
    ["password", "passphrase", "secret", "token"].iter().any(|word| key.contains(word))
}

fn is_word(key: &str) -> bool {
    !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || "_%.".contains(c))
}

/// Parses pairs such as `key = 'value with spaces'` as libpq does.
pub(super) fn pairs(text: &str) -> Option<Vec<(String, String)>> {
    let mut rest = text.trim_start();
    let mut pairs = Vec::new();
    while !rest.is_empty() {
        let (key, after) = rest.split_once('=')?;
        let key = key.trim_end();
        if !is_word(key) {
            return None;
        }
        let (value, after) = value(after.trim_start())?;
        pairs.push((key.to_owned(), value));
        rest = after.trim_start();
    }
    Some(pairs)
}

/// Parses a value, quoted or not. Returns the value and the text after it.
fn value(text: &str) -> Option<(String, &str)> {
    let quoted = text.starts_with('\'');
    let mut value = String::new();
    let mut letters = text.char_indices().skip(usize::from(quoted));
    while let Some((at, letter)) = letters.next() {
        match letter {
            '\\' => value.push(letters.next()?.1),
            '\'' if quoted => return Some((value, &text[at + 1..])),
            c if c.is_whitespace() && !quoted => return Some((value, &text[at..])),
            c => value.push(c),
        }
    }
    (!quoted).then_some((value, ""))
}

/// Returns the URL with another database. The URL must have passed [`check`].
pub(super) fn with_database(url: &str, database: &str) -> String {
    let Some((scheme, rest)) = SCHEMES.iter().find_map(|scheme| Some((*scheme, url.strip_prefix(scheme)?))) else {
        let others = pairs(url).unwrap_or_default().into_iter().filter(|(key, _)| key != "dbname");
        let pairs = others.chain([("dbname".to_owned(), database.to_owned())]);
        return pairs.map(|(key, value)| format!("{key}={}", requoted(&value))).collect::<Vec<_>>().join(" ");
    };
    let (credentials, address) = split_credentials(rest);
    let credentials = credentials.map(|credentials| format!("{credentials}@")).unwrap_or_default();
    let (address, query) = address.split_once('?').unwrap_or((address, ""));
    let hosts = address.split('/').next().unwrap_or_default();
    let database = utf8_percent_encode(database, NON_ALPHANUMERIC);
    let query: Vec<&str> = query.split('&').filter(|pair| !pair.is_empty() && !pair.starts_with("dbname=")).collect();
    let query = if query.is_empty() { String::new() } else { format!("?{}", query.join("&")) };
    format!("{scheme}{credentials}{hosts}/{database}{query}")
}

/// Validates a database URL without connecting.
pub(super) fn check(url: &str) -> Result<(), String> {
    if url.chars().any(char::is_control) {
        return Err("must not contain control characters or line breaks".into());
    }
    match SCHEMES.iter().find_map(|scheme| url.strip_prefix(scheme)) {
        Some(rest) => check_credentials(rest)?,
        None if url.contains("://") => return Err("must begin with postgres:// or postgresql://".into()),
        None if pairs(url).is_none_or(|pairs| pairs.is_empty()) => {
            return Err("must be a URL, postgres://user:password@host:port/database, or pairs, \
                        host=... port=... user=... password=... dbname=..."
                .into());
        }
        None => {}
    }
    super::Dsn::parse(url).map(drop)
}

/// Refuses unencoded special characters in the credentials. The driver would end the password at an `@` in it, and use
/// the rest of the password as the host.
fn check_credentials(rest: &str) -> Result<(), String> {
    let (credentials, _) = split_credentials(rest);
    if credentials.is_some_and(|text| text.contains(['@', '/', '?', '#', ' '])) {
        return Err("has a user or password with one of @ / ? # or a space in it: \
                    write %40, %2F, %3F, %23 or %20"
            .into());
    }
    Ok(())
}

/// A file that contains a connection string, and the string as it was when the configuration was loaded.
#[derive(Clone, PartialEq, Eq)]
pub struct UrlFile {
    path: PathBuf,
    /// Name of the store whose line `NAME=URL` counts. `None` if the file contains only one connection string.
    store: Option<String>,
    /// Database that replaces the one of the file's connection string.
    database: Option<String>,
    text: String,
}

impl UrlFile {
    pub(super) fn new(path: &str, store: Option<&str>, text: &str) -> Self {
        Self { path: path.into(), store: store.map(str::to_owned), database: None, text: text.trim().to_owned() }
    }

    /// Describes a file that contains only the connection string `text`.
    #[must_use]
    pub fn without_store(path: &Path, text: &str) -> Self {
        Self { path: path.to_owned(), store: None, database: None, text: text.trim().to_owned() }
    }

    /// Returns the file as the source of the connection string of another database on the same server.
    pub(super) fn of_database(&self, database: &str) -> Self {
        let text = with_database(&self.text, database);
        Self { database: Some(database.to_owned()), text, ..self.clone() }
    }

    /// Whether this connection string was read from the file when the configuration was loaded.
    pub(super) fn held(&self, text: &str) -> bool {
        self.text == text
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the connection string that the file contains now. Errors contain no part of it.
    pub fn read(&self) -> Result<String, String> {
        let text = read(&self.path)?;
        let found = match &self.store {
            None => Some(text.trim()),
            Some(name) => text.lines().find_map(|line| {
                let (store, url) = line.split_once('=')?;
                (store.trim() == name).then(|| url.trim())
            }),
        };
        let found =
            found.ok_or_else(|| format!("{}: there is no line NAME=URL for this store", self.path.display()))?;
        check(found).map_err(|problem| format!("{}: {problem}", self.path.display()))?;
        Ok(self.database.as_ref().map_or_else(|| found.to_owned(), |database| with_database(found, database)))
    }
}
