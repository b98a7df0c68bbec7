//! Connection strings on the command line, where every user of the machine can read them: they may come from a variable
//! or a file instead.

use std::env;

use super::failure::Failure;

/// The connection string itself, or the one that `env:NAME` or `file:PATH` names. The error names the flag, and shows
/// no part of the string.
pub(super) fn resolve(flag: &str, given: &str) -> Result<String, Failure> {
    let text = if let Some(name) = given.strip_prefix("env:") {
        env::var(name).map_err(|_| Failure::usage(format!("{flag}: the variable {name} is not set, or not UTF-8")))?
    } else if let Some(path) = given.strip_prefix("file:") {
        std::fs::read_to_string(path).map_err(|error| Failure::usage(format!("{flag}: {path}: {error}")))?
    } else {
        given.to_owned()
    };
    match text.trim() {
        "" => {
            Err(Failure::usage(format!("{flag}: the connection string is empty; it is postgres://user@host/database")))
        }
        text => Ok(text.to_owned()),
    }
}
