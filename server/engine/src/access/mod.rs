//! Callers and their permissions. `token` parses credentials, `scope` their scopes, `rights` compiles scopes, `rules` has the
//! kinds of rules, and `caller` decides.

mod caller;
mod rights;
mod rules;
mod scope;
mod token;

pub use caller::{CERTIFICATE, Caller, Grant};
pub use rights::Rights;
pub use rules::Rule;
pub use scope::{MAX_SCOPES, Operation, Pattern, Scope};
pub use token::{Token, TokenError, TokenId, TokenQuery, create_token};

/// Maximum length of a principal's name, in bytes.
pub const PRINCIPAL_BYTES: usize = 200;
/// Beginning of the principals that JSON Web Tokens authenticate.
pub const JWT_PRINCIPAL: &str = "jwt:";
/// Reserved name prefixes, for principals with JSON Web Tokens or client certificates, and for SQL roles in the audit log.
const RESERVED_PREFIXES: [&str; 3] = [JWT_PRINCIPAL, CERTIFICATE, "sql:"];

/// Checks the name of a principal.
pub fn check_principal(name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > PRINCIPAL_BYTES {
        return Err(format!("has {} bytes; 1 to {PRINCIPAL_BYTES} are allowed", name.len()));
    }
    if let Some(taken) = RESERVED_PREFIXES.into_iter().find(|taken| name.starts_with(taken)) {
        return Err(format!("begins with {taken:?}, which is reserved for principals without a Howdah token"));
    }
    match name.chars().find(|c| !c.is_ascii_graphic()) {
        Some(bad) => {
            Err(format!("has the character {bad:?}; allowed are ASCII letters, digits and signs, without spaces"))
        }
        None => Ok(()),
    }
}
