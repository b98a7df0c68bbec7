//! The token file, which the broker reads at startup. It holds the first token, which may create others, or all tokens of a
//! deployment.

use std::{collections::HashSet, path::Path};

use howdah_engine::{
    access::{Scope, Token, check_principal},
    store::ActiveToken,
};

use super::read_text;

/// Maximum size of the token file, in bytes.
const BYTES: u64 = 4 << 20;

/// Reads a token file: one `TOKEN PRINCIPAL SCOPE…` per line. Ignores empty lines and lines that begin with `#`. Errors name
/// the line number and never contain the token.
pub fn read(path: &Path) -> Result<Vec<ActiveToken>, String> {
    let failed = |problem: String| format!("cannot use the token file {}: {problem}", path.display());
    let text = read_text(path, BYTES).map_err(failed)?;
    let mut seen = HashSet::new();
    let mut tokens = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let token = one(line).map_err(|problem| failed(format!("line {}: {problem}", n + 1)))?;
        if !seen.insert(token.id.clone()) {
            return Err(failed(format!("line {}: the token {} occurs twice", n + 1, token.id)));
        }
        tokens.push(token);
    }
    Ok(tokens)
}

fn one(line: &str) -> Result<ActiveToken, String> {
    let mut words = line.split_whitespace();
    let token = Token::parse(words.next().unwrap_or_default())
        .map_err(|problem| format!("the first word is not a token: {problem} (`howdah token generate` makes one)"))?;
    let principal = words.next().ok_or("the name of the principal is missing")?;
    check_principal(principal).map_err(|problem| format!("the principal {problem}"))?;
    let scopes: Vec<String> =
        words.map(|word| Scope::parse(word).map(|scope| scope.to_string())).collect::<Result<_, _>>()?;
    if scopes.is_empty() {
        return Err("there is no scope; add one, such as enqueue:mail.*".into());
    }
    Ok(ActiveToken {
        id: token.id().clone(),
        hash: token.hash().to_vec(),
        principal: principal.to_owned(),
        scopes,
        ends_in: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Vec<ActiveToken>, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        read(file.path())
    }

    #[test]
    fn a_line_is_a_token_its_principal_and_its_scopes() {
        let token = Token::generate();
        let text = format!("# the first\n\n  {} ops  admin:* read:*\n", token.secret());
        let tokens = read_text(&text).unwrap();
        assert_eq!((tokens[0].id.as_str(), tokens[0].principal.as_str()), (token.id().as_str(), "ops"));
        assert_eq!(tokens[0].scopes, ["admin:*", "read:*"]);
    }

    #[test]
    fn a_bad_line_is_refused_by_its_number_and_no_error_has_a_token() {
        let token = Token::generate();
        let secret = token.secret();
        for (text, problem) in [
            (format!("{secret}x ops admin:*"), "line 1: the first word is not a token"),
            (format!("\n{secret}"), "line 2: the name of the principal is missing"),
            (format!("{secret} ops"), "line 1: there is no scope"),
            (format!("{secret} ops all"), "line 1: \"all\" is not a scope"),
            (format!("{secret} a\u{e9} admin:*"), "line 1: the principal has the character"),
            (format!("{secret} a admin:*\n{secret} b admin:*"), "line 2: the token"),
        ] {
            let error = read_text(&text).unwrap_err();
            assert!(error.contains(problem) && !error.contains(&secret[20..]), "{error}");
        }
        assert!(read(Path::new("/nowhere/tokens")).unwrap_err().contains("/nowhere/tokens"));
    }
}
