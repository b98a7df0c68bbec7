//! Scopes in text form, such as `enqueue:mail.*`, and the operations that they allow.

use std::fmt;

use howdah_core::job::TaskTypeName;

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

/// A kind of call that requires a permission. A scope allows one operation on some task types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Enqueue jobs, and manage schedules that enqueue them.
    Enqueue,
    /// Run jobs.
    Work,
    /// See jobs, schedules, counts and settings, but not payloads and results.
    Read,
    /// See payloads and results of jobs that the caller may read.
    Payload,
    /// Cancel, retry, discard and reprioritize jobs; change settings.
    Operate,
    /// Create and revoke tokens, and read the audit log.
    Admin,
}

impl Operation {
    /// All operations, each with its name in scopes.
    pub const ALL: [(Self, &'static str); 6] = [
        (Self::Enqueue, "enqueue"),
        (Self::Work, "work"),
        (Self::Read, "read"),
        (Self::Payload, "payload"),
        (Self::Operate, "operate"),
        (Self::Admin, "admin"),
    ];

    pub fn as_str(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(_, known)| *known == word).map(|(operation, _)| operation)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A set of operations, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Operations(u8);

impl Operations {
    pub(super) fn contains(self, operation: Operation) -> bool {
        self.0 & (1 << operation as u8) != 0
    }

    pub(super) fn insert(&mut self, operation: Operation) {
        self.0 |= 1 << operation as u8;
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

    #[test]
    fn each_operation_has_a_word_and_a_bit_of_its_own() {
        let mut set = Operations::default();
        for (n, (operation, word)) in Operation::ALL.into_iter().enumerate() {
            assert_eq!((operation as usize, operation.as_str()), (n, word));
            assert_eq!(Operation::parse(word), Some(operation));
            assert!(!set.contains(operation));
            set.insert(operation);
            assert!(set.contains(operation));
        }
        assert_eq!(Operation::parse("everything"), None);
    }
}
