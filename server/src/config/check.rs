//! What must hold between settings, each of which is within its own bounds.

use super::{Config, load::ConfigError};

/// A message holds its payload, its headers, and so much for everything else.
const MESSAGE_OVERHEAD: usize = 4 << 10;

/// The first thing that does not hold.
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let limits = &config.limits;
    let job_bytes = limits.payload_bytes + limits.header_bytes + MESSAGE_OVERHEAD;
    let same_address = config.listen == config.http && config.listen.port() != 0;
    let rules = [
        (
            config.renew_interval * 2 > config.broker_lease,
            "renew_interval must be at most half of broker_lease: one late renewal would lose every lease",
        ),
        (
            job_bytes > limits.message_bytes,
            "limits.message_bytes must hold limits.payload_bytes, limits.header_bytes and 4 KiB more",
        ),
        (
            limits.gathered_bytes < limits.message_bytes,
            "limits.gathered_bytes must be at least limits.message_bytes: a full request would never fit",
        ),
        (
            limits.gathered_jobs < limits.batch,
            "limits.gathered_jobs must be at least limits.batch: a full request would never fit",
        ),
        (
            limits.window_bytes < job_bytes as u64,
            "limits.window_bytes must hold one job of limits.payload_bytes and limits.header_bytes",
        ),
        (config.retry.initial > config.retry.max, "retry.initial must be at most retry.max"),
        (same_address, "listen and http must be different addresses"),
    ];
    let broken = rules.into_iter().find(|(broken, _)| *broken);
    broken.map_or(Ok(()), |(_, rule)| Err(ConfigError::new(rule)))
}
