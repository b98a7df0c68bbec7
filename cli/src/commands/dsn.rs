//! Connection strings from the command line, a variable or a file. Other users of the machine can read the command line.

use super::failure::Failure;
use crate::secrets;

/// Returns the given connection string, or reads it from the variable of `env:NAME` or the file of `file:PATH`. Errors name the
/// flag, and do not contain the string.
pub(super) fn resolve(flag: &str, given: &str) -> Result<String, Failure> {
    let text = if let Some(name) = given.strip_prefix("env:") {
        secrets::var(name)
            .ok_or_else(|| Failure::usage(format!("{flag}: the variable {name} is not set, or not UTF-8")))?
    } else if let Some(path) = given.strip_prefix("file:") {
        std::fs::read_to_string(path).map_err(|error| Failure::usage(format!("{flag}: {path}: {error}")))?
    } else {
        given.to_owned()
    };
    match text.trim() {
        "" => {
            Err(Failure::usage(format!("{flag}: the connection string is empty; write postgres://user@host/database")))
        }
        text => Ok(text.to_owned()),
    }
}
