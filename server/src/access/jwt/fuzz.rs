//! What fuzzers call of this module.

use super::{file::ALGORITHMS, key::KeySet, text::Unverified};

/// Reads a text as a token, and as the keys of an issuer. Errors go to callers and to the log, and have no part of it.
pub(crate) fn read(text: &str) {
    let problems = match KeySet::parse(text.as_bytes(), &ALGORITHMS) {
        Ok(keys) => keys.unusable,
        Err(problem) => vec![problem],
    };
    for problem in problems.into_iter().chain(Unverified::parse(text).err()) {
        assert!(problem.len() < 120, "{problem}");
    }
}
