//! Operations that scopes allow.

use std::fmt;

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
