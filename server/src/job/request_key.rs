//! Request keys, which make it safe to repeat an enqueue.

/// Between a principal and its key. No principal and no key has it.
const SEPARATOR: char = '\u{1f}';

/// The key of an enqueue request: a repeat of the request is answered with the jobs of the first one.
#[derive(Clone, Debug)]
pub struct RequestKey {
    /// The caller's key, as it is stored.
    pub key: String,
    /// SHA-256 of the jobs, because the same key with other jobs is refused.
    pub body_hash: [u8; 32],
}

impl RequestKey {
    /// The same key of this principal: another one that sends it means another request. Empty: nobody in particular.
    #[must_use]
    pub fn of(self, principal: &str) -> Self {
        Self { key: Self::name_of(principal, self.key), ..self }
    }

    /// The name under which a principal's key is stored.
    pub fn name_of(principal: &str, key: String) -> String {
        if principal.is_empty() { key } else { format!("{principal}{SEPARATOR}{key}") }
    }

    /// The key as the principal sent it.
    pub fn given(name: &str) -> &str {
        name.rsplit_once(SEPARATOR).map_or(name, |(_, key)| key)
    }
}
