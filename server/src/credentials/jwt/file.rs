//! The file of issuers (`auth_jwt_file`): TOML with one table `[[issuer]]` per issuer.

use std::{collections::HashSet, path::Path, time::Duration};

use howdah_engine::access::{MAX_SCOPES, Scope};
use jsonwebtoken::Algorithm;
use toml::{Table, Value};

use crate::credentials::{
    jwt::{
        issuer::{Issuer, SubjectGrant},
        source::Location,
    },
    read_text,
};

/// Maximum size of the file of issuers, in bytes.
const BYTES: u64 = 1 << 20;
/// Maximum value of `leeway`.
const LEEWAY: Duration = Duration::from_secs(30);
/// Maximum value of `max_lifetime`.
const LIFETIME: Duration = Duration::from_hours(366 * 24);
/// Default of `max_lifetime`. Most issuers issue tokens for an hour or less; tokens for a work shift last up to a day.
const USUAL_LIFETIME: Duration = Duration::from_hours(24);
/// Default of `leeway`.
const USUAL_LEEWAY: Duration = Duration::from_secs(10);

/// Supported signature algorithms, all with public keys. The file selects some of them per issuer.
pub(super) const ALGORITHMS: [Algorithm; 3] = [Algorithm::ES256, Algorithm::EdDSA, Algorithm::RS256];

/// Reads the file of issuers. Errors name the file, the table and the key.
pub(super) fn read(path: &Path) -> Result<Vec<(Issuer, Location)>, String> {
    let failed = |problem: String| format!("cannot use auth_jwt_file {}: {problem}", path.display());
    read_text(path, BYTES).and_then(|text| parse(&text)).map_err(failed)
}

pub(super) fn parse(text: &str) -> Result<Vec<(Issuer, Location)>, String> {
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        format!("line {}: {}", before.matches('\n').count() + 1, error.message().replace('\n', ", "))
    })?;
    let mut fields = Fields::new(table);
    let tables = fields.tables("issuer")?;
    fields.end()?;
    if tables.is_empty() {
        return Err("there is no table [[issuer]]".into());
    }
    let mut names = HashSet::new();
    let mut issuers = Vec::new();
    for (n, table) in tables.into_iter().enumerate() {
        let name = table.get("name").and_then(Value::as_str).map(|name| format!(" ({name})")).unwrap_or_default();
        let within = |problem: String| format!("[[issuer]] {}{name}: {problem}", n + 1);
        let (issuer, location) = issuer(Fields::new(table)).map_err(within)?;
        for (key, value) in [("name", &issuer.name), ("iss", &issuer.iss)] {
            if !names.insert((key, value.clone())) {
                return Err(within(format!("{key}: another issuer has {value:?} too")));
            }
        }
        issuers.push((issuer, location));
    }
    Ok(issuers)
}

fn issuer(mut fields: Fields) -> Result<(Issuer, Location), String> {
    let name = fields.text("name")?;
    if name.is_empty() || name.len() > 30 || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        return Err("name: must be 1 to 30 letters, digits and -".into());
    }
    let issuer = Issuer {
        name,
        iss: fields.text("iss")?,
        audience: fields.texts("audience")?.ok_or("audience is missing")?,
        algorithms: algorithms(&fields.texts("algorithms")?.ok_or("algorithms is missing")?)?,
        leeway: leeway(fields.optional_text("leeway")?)?,
        max_lifetime: max_lifetime(fields.optional_text("max_lifetime")?)?,
        principal: fields.optional_text("principal")?.unwrap_or_else(|| "sub".into()),
        scopes: fields.optional_text("scopes")?.unwrap_or_else(|| "scope".into()),
        scope_prefix: fields.optional_text("scope_prefix")?.unwrap_or_default(),
        max_scopes: fields.scopes("max_scopes")?,
        grants: grants(fields.tables("grant")?)?,
    };
    if issuer.audience.is_empty() || issuer.audience.iter().any(String::is_empty) {
        return Err("audience: must be a name, or a list of names".into());
    }
    let jwks = fields.text("jwks")?;
    let location = Location::parse(&jwks, fields.optional_text("jwks_ca")?)?;
    fields.end()?;
    Ok((issuer, location))
}

fn algorithms(names: &[String]) -> Result<Vec<Algorithm>, String> {
    let parse = |name: &String| {
        let algorithm = name.parse().ok().filter(|algorithm| ALGORITHMS.contains(algorithm));
        algorithm.ok_or_else(|| format!("algorithms: {name:?} is not one of ES256, EdDSA, RS256"))
    };
    let algorithms = names.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
    if algorithms.is_empty() {
        Err("algorithms: the list is empty; use ES256, EdDSA or RS256".into())
    } else {
        Ok(algorithms)
    }
}

fn leeway(text: Option<String>) -> Result<Duration, String> {
    let Some(text) = text else { return Ok(USUAL_LEEWAY) };
    let time = humantime::parse_duration(&text).ok().filter(|time| *time <= LEEWAY);
    time.ok_or_else(|| format!("leeway: {text:?} is not a duration from 0s to 30s, such as \"10s\""))
}

fn max_lifetime(text: Option<String>) -> Result<Duration, String> {
    let Some(text) = text else { return Ok(USUAL_LIFETIME) };
    let time = humantime::parse_duration(&text).ok().filter(|time| (Duration::from_secs(1)..=LIFETIME).contains(time));
    time.ok_or_else(|| format!("max_lifetime: {text:?} is not a duration from 1s to 366days, such as \"1h\""))
}

fn grants(tables: Vec<Table>) -> Result<Vec<SubjectGrant>, String> {
    let grant = |table| {
        let mut fields = Fields::new(table);
        let subjects = fields.text("principal")?;
        if subjects.trim_end_matches('*').contains('*') || subjects.ends_with("**") {
            return Err("principal: a * may only be the last character".to_owned());
        }
        let scopes = fields.scopes("scopes")?.ok_or("scopes is missing")?;
        fields.end().map(|()| SubjectGrant { subjects, scopes })
    };
    let numbered = tables.into_iter().enumerate();
    numbered.map(|(n, table)| grant(table).map_err(|p| format!("[[issuer.grant]] {}: {p}", n + 1))).collect()
}

/// Fields of a TOML table that were not read yet.
pub(super) struct Fields(Table);

impl Fields {
    pub(super) fn new(table: Table) -> Self {
        Self(table)
    }

    /// Reads a required string.
    pub(super) fn text(&mut self, key: &str) -> Result<String, String> {
        self.optional_text(key)?.ok_or_else(|| format!("{key} is missing"))
    }

    /// Reads an optional string.
    pub(super) fn optional_text(&mut self, key: &str) -> Result<Option<String>, String> {
        match self.0.remove(key) {
            None => Ok(None),
            Some(Value::String(text)) if !text.is_empty() => Ok(Some(text)),
            Some(_) => Err(format!("{key}: must be a string that is not empty")),
        }
    }

    /// Reads a string, or a list of strings.
    pub(super) fn texts(&mut self, key: &str) -> Result<Option<Vec<String>>, String> {
        let text = |value| match value {
            Value::String(text) => Ok(text),
            _ => Err(format!("{key}: must be a string, or a list of strings")),
        };
        match self.0.remove(key) {
            None => Ok(None),
            Some(Value::Array(values)) => values.into_iter().map(text).collect::<Result<_, _>>().map(Some),
            Some(value) => text(value).map(|text| Some(vec![text])),
        }
    }

    /// Reads a scope, or a list of scopes.
    pub(super) fn scopes(&mut self, key: &str) -> Result<Option<Vec<Scope>>, String> {
        let Some(texts) = self.texts(key)? else { return Ok(None) };
        if texts.len() > MAX_SCOPES {
            return Err(format!("{key}: has {} scopes; at most {MAX_SCOPES} are allowed", texts.len()));
        }
        let scopes: Result<_, String> = texts.iter().map(|text| Scope::parse(text)).collect();
        scopes.map(Some).map_err(|problem| format!("{key}: {problem}"))
    }

    /// Reads an array of tables, `[[name]]`.
    pub(super) fn tables(&mut self, key: &str) -> Result<Vec<Table>, String> {
        let table = |value| match value {
            Value::Table(table) => Ok(table),
            _ => Err(format!("{key}: must be a list of tables: write [[{key}]]")),
        };
        match self.0.remove(key) {
            None => Ok(Vec::new()),
            Some(Value::Array(values)) => values.into_iter().map(table).collect(),
            Some(_) => Err(format!("{key}: must be a list of tables: write [[{key}]]")),
        }
    }

    /// Fails if a field of the table was not read.
    pub(super) fn end(self) -> Result<(), String> {
        match self.0.keys().next() {
            None => Ok(()),
            Some(key) => Err(format!("{key}: unknown key")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: &str = "[[issuer]]\nname = 'corp'\niss = 'https://i'\naudience = 'howdah'\nalgorithms = ['ES256']\n";

    #[test]
    fn an_issuer_has_what_the_file_says_and_defaults() {
        let (issuer, location) = parse(&format!("{LEAST}jwks = 'https://i/keys'")).unwrap().remove(0);
        assert_eq!((issuer.name.as_str(), issuer.iss.as_str()), ("corp", "https://i"));
        assert_eq!((issuer.principal.as_str(), issuer.scopes.as_str(), issuer.leeway), ("sub", "scope", USUAL_LEEWAY));
        assert_eq!(issuer.max_lifetime, USUAL_LIFETIME);
        assert!(issuer.max_scopes.is_none() && issuer.grants.is_empty());
        assert!(matches!(location, Location::Url { .. }));
        let all = "jwks = 'keys.json'\nleeway = '0s'\nmax_lifetime = '1h'\nprincipal = 'azp'\nscopes = 'scp'\nscope_prefix = 'howdah:'\n\
                   max_scopes = ['read:*']\n[[issuer.grant]]\nprincipal = 'ci-*'\nscopes = 'enqueue:ci.*'";
        let (issuer, location) = parse(&format!("{LEAST}{all}")).unwrap().remove(0);
        assert_eq!((issuer.principal.as_str(), issuer.leeway.as_secs()), ("azp", 0));
        assert_eq!(issuer.max_lifetime.as_secs(), 3_600);
        assert_eq!(issuer.grants[0].scopes[0].to_string(), "enqueue:ci.*");
        assert!(matches!(location, Location::File(_)));
    }

    #[test]
    fn an_error_names_the_table_and_the_key() {
        let good = format!("{LEAST}jwks = '/k'\n");
        let replaced = |what: &str, by: &str| good.replace(what, by);
        let second = |more: &str| format!("{good}{}{more}", replaced("corp", "two"));
        for (text, problem) in [
            (String::new(), "there is no table [[issuer]]"),
            ("issuer = 1".into(), "issuer: must be a list of tables"),
            ("[[issuer]]\nname = ".into(), "line 2: "),
            (format!("x = 1\n{good}"), "x: unknown key"),
            (LEAST.into(), "[[issuer]] 1 (corp): jwks is missing"),
            (replaced("name = 'corp'\n", ""), "[[issuer]] 1: name is missing"),
            (replaced("corp", "a:b"), "(a:b): name: must be"),
            (replaced("iss = 'https://i'", "iss = 1"), "iss: must be a string"),
            (replaced("'howdah'", "[]"), "audience: must be a name"),
            (replaced("'ES256'", "'HS256'"), "algorithms: \"HS256\" is not one of ES256, EdDSA, RS256"),
            (replaced("['ES256']", "[]"), "algorithms: the list is empty; use ES256, EdDSA or RS256"),
            (replaced("/k", "http://i/k"), "jwks: must be https"),
            (replaced("/k", "https://u:p@i/k"), "jwks: "),
            (format!("{good}leeway = '31s'"), "leeway: \"31s\""),
            (format!("{good}max_lifetime = '0s'"), "max_lifetime: \"0s\""),
            (format!("{good}max_lifetime = '2years'"), "max_lifetime: \"2years\""),
            (format!("{good}jwks_ca = '/ca'"), "jwks_ca: "),
            (format!("{good}max_scopes = 'all'"), "max_scopes: \"all\" is not a scope"),
            (format!("{good}audiences = 'x'"), "audiences: unknown key"),
            (format!("{good}[[issuer.grant]]\nscopes = []"), "[[issuer.grant]] 1: principal is missing"),
            (format!("{good}[[issuer.grant]]\nprincipal = 'a'"), "[[issuer.grant]] 1: scopes is missing"),
            (format!("{good}[[issuer.grant]]\nprincipal = 'a*b'\nscopes = []"), "principal: a *"),
            (second(""), "[[issuer]] 2 (two): iss: another issuer has \"https://i\" too"),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(problem), "{problem}: {error}");
        }
        let error = read(Path::new("/nowhere/jwt.toml")).unwrap_err();
        assert!(error.starts_with("cannot use auth_jwt_file /nowhere/jwt.toml: "), "{error}");
    }
}
