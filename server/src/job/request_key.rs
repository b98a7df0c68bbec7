//! Request keys, which make it safe to repeat an enqueue.

/// The key of an enqueue request: a repeat of the request is answered with the jobs of the first one.
#[derive(Clone, Debug)]
pub struct RequestKey {
    /// The caller's key.
    pub key: String,
    /// SHA-256 of the jobs, because the same key with other jobs is refused.
    pub body_hash: [u8; 32],
}
