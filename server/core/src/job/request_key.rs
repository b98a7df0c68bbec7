//! Request keys, which make enqueues idempotent.

/// Character between the principal and the key in a stored request key. Neither can contain it.
const SEPARATOR: char = '\u{1f}';

/// Key of an enqueue request: a repeat of the request is answered with the jobs of the first one.
#[derive(Clone, Debug)]
pub struct RequestKey {
    /// The caller's key as stored.
    pub key: String,
    /// SHA-256 of the jobs, because a reuse of the key with other jobs is rejected.
    pub body_hash: [u8; 32],
}

impl RequestKey {
    /// Qualifies the key with the principal, so that principals do not share keys. `principal` is empty if authentication is off.
    #[must_use]
    pub fn for_principal(self, principal: &str) -> Self {
        Self { key: Self::name_of(principal, self.key), ..self }
    }

    /// Returns the stored form of a request key: the principal, if there is one, and the principal's key.
    pub fn name_of(principal: &str, key: String) -> String {
        if principal.is_empty() { key } else { format!("{principal}{SEPARATOR}{key}") }
    }

    /// Returns the stored form of a request key for one finished job that a request runs again. Each job has its own request
    /// key, so that a repeated call still runs the jobs that the first call did not run.
    pub fn name_of_rerun(principal: &str, old_id: i64, key: &str) -> String {
        format!("{principal}{SEPARATOR}rerun{SEPARATOR}{old_id}{SEPARATOR}{key}")
    }

    /// The key as sent by the principal.
    pub fn given(name: &str) -> &str {
        name.rsplit_once(SEPARATOR).map_or(name, |(_, key)| key)
    }
}
