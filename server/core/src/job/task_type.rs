//! Names of task types.

use std::{fmt, sync::Arc};

/// Id of a task type in the database.
pub type TypeId = i32;

/// A valid task type name: 1 to 200 bytes of `A-Z a-z 0-9 . _ : / -`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskTypeName(Arc<str>);

impl TaskTypeName {
    /// Maximum length of a name, in bytes.
    pub const MAX_BYTES: usize = 200;

    /// Validates a name; the error describes the problem.
    pub fn parse(name: &str) -> Result<Self, String> {
        if name.is_empty() {
            return Err(format!("is empty; 1 to {} bytes are allowed", Self::MAX_BYTES));
        }
        if name.len() > Self::MAX_BYTES {
            return Err(format!("has {} bytes; at most {} are allowed", name.len(), Self::MAX_BYTES));
        }
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._:/-".contains(c);
        if let Some(bad) = name.chars().find(|&c| !allowed(c)) {
            return Err(format!("{name:?} has the character {bad:?}; allowed are A-Z a-z 0-9 . _ : / -"));
        }
        Ok(Self(name.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TaskTypeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for TaskTypeName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::TaskTypeName;

    #[test]
    fn names_of_the_alphabet_are_accepted() {
        for name in ["a", "email.send", "A-Z/a_z:0.9", &"x".repeat(200)] {
            assert!(TaskTypeName::parse(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn names_with_other_characters_or_an_invalid_length_are_refused() {
        for name in ["", "a b", "a\n", "é", "a;b", "%", "a'b", "\u{1b}[31m", &"x".repeat(201)] {
            assert!(TaskTypeName::parse(name).is_err(), "{name:?}");
        }
    }
}
