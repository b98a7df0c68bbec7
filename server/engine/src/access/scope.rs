//! Scopes in text form, such as `enqueue:mail.*`.

use std::fmt;

use howdah_core::job::TaskTypeName;

use super::Operation;

/// Maximum number of scopes of a token.
pub const MAX_SCOPES: usize = 1_000;

/// The right to an operation on the task types that a pattern matches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scope {
    pub operation: Operation,
    pub pattern: Pattern,
}

/// A set of task types: one name, or all names with a prefix.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// One task type.
    Name(String),
    /// Every task type whose name has this prefix. The empty prefix matches every task type.
    Prefix(String),
}

impl Scope {
    /// Parses `operation:pattern`. The error quotes the text and names the problem.
    pub fn parse(text: &str) -> Result<Self, String> {
        let words = || Operation::ALL.map(|(_, word)| word).join(", ");
        let Some((operation, pattern)) = text.split_once(':') else {
            return Err(format!(
                "{text:?} is not a scope; write OPERATION:TYPES, such as enqueue:mail.* (operations: {})",
                words()
            ));
        };
        let operation = Operation::parse(operation)
            .ok_or_else(|| format!("{text:?} does not begin with an operation; use one of {}", words()))?;
        let pattern = Pattern::parse(pattern).map_err(|problem| format!("{text:?}: the task type {problem}"))?;
        Ok(Self { operation, pattern })
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.operation, self.pattern)
    }
}

impl Pattern {
    fn parse(text: &str) -> Result<Self, String> {
        match text.strip_suffix('*') {
            Some("") => Ok(Self::Prefix(String::new())),
            Some(prefix) => TaskTypeName::parse(prefix).map(|prefix| Self::Prefix(prefix.to_string())),
            None => TaskTypeName::parse(text).map(|name| Self::Name(name.to_string())),
        }
    }

    /// Whether the pattern matches the task type.
    pub fn matches(&self, task_type: &str) -> bool {
        match self {
            Self::Name(name) => name == task_type,
            Self::Prefix(prefix) => task_type.starts_with(prefix),
        }
    }

    /// Whether the pattern matches every task type, including future ones.
    pub fn is_everything(&self) -> bool {
        *self == Self::Prefix(String::new())
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Prefix(prefix) => write!(f, "{prefix}*"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_a_name_or_ends_in_a_star() {
        for (scope, matched, not) in [
            ("enqueue:mail.send", &["mail.send"][..], &["mail.sen", "mail.send2", "mail.*", ""][..]),
            ("work:mail.*", &["mail.", "mail.send", "mail.a/b:c"], &["mail", "email.send", "MAIL.send"]),
            ("admin:*", &["a", "mail.send"], &[]),
        ] {
            let read = Scope::parse(scope).unwrap();
            assert_eq!(read.to_string(), scope);
            assert!(matched.iter().all(|name| read.pattern.matches(name)), "{scope}");
            assert!(!not.iter().any(|name| read.pattern.matches(name)), "{scope}");
            assert_eq!(read.pattern.is_everything(), scope == "admin:*");
        }
    }

    #[test]
    fn an_invalid_scope_is_refused_with_the_reason() {
        for (text, problem) in [
            ("", "is not a scope"),
            ("enqueue", "is not a scope"),
            ("enqueu:a", "begin with an operation"),
            ("Enqueue:a", "begin with an operation"),
            ("enqueue:", "is empty"),
            ("enqueue:a*b", "has the character '*'"),
            ("enqueue:**", "has the character '*'"),
            ("enqueue:a b", "has the character ' '"),
            (&format!("read:{}", "x".repeat(201)), "201 bytes"),
        ] {
            let error = Scope::parse(text).unwrap_err();
            assert!(error.contains(problem) && error.contains(&format!("{text:?}")), "{error}");
        }
    }
}
