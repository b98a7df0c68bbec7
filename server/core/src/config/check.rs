//! Rules that involve several settings. The bounds of each setting are checked earlier, when it is parsed.

use super::{Config, formats::bytes_words, load::ConfigError};
use crate::job::{ClusterSettings, Limits};

/// Checks all rules that involve several settings. The error describes the first broken rule.
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let limits = &config.limits;
    let same_address = config.listen == config.http && config.listen.port() != 0;
    let rules = [
        (
            config.renew_interval * 2 > config.broker_lease,
            "renew_interval must be at most half of broker_lease: one late renewal would lose every lease",
        ),
        (
            limits.gathered_bytes < limits.message_bytes,
            "limits.gathered_bytes must be at least limits.message_bytes: a full request would never fit",
        ),
        (config.retry.initial > config.retry.max, "retry.initial must be at most retry.max"),
        (same_address, "listen and http must be different addresses"),
        (
            config.tls.cert.is_some() != config.tls.key.is_some(),
            "tls_cert and tls_key go together: set both (--tls-cert, --tls-key)",
        ),
        (
            config.tls.client_ca.is_some() && config.tls.cert.is_none(),
            "tls_client_ca needs tls_cert and tls_key: clients show certificates over TLS only",
        ),
        (
            config.tls.client_crl.is_some() && config.tls.client_ca.is_none(),
            "tls_client_crl needs tls_client_ca: it lists certificates that these authorities have revoked",
        ),
        (
            (config.otlp.headers_file.is_some() || config.otlp.ca.is_some()) && !config.otlp.is_on(),
            "otlp_headers_file and otlp_ca need otlp_endpoint: without it no spans are sent",
        ),
        (
            config.otlp.ca.is_some()
                && !config.otlp.endpoint.as_deref().is_some_and(|endpoint| endpoint.starts_with("https://")),
            "otlp_ca needs an otlp_endpoint that begins with https://",
        ),
        (
            config.auth.jwt && config.auth_jwt_file.is_none(),
            "auth jwt needs auth_jwt_file: the file of trusted issuers (--auth-jwt-file)",
        ),
    ];
    let broken = rules.into_iter().find(|(broken, _)| *broken);
    broken.map_or(Ok(()), |(_, rule)| Err(ConfigError::new(rule)))
}

/// Whether the broker authenticates callers.
pub(super) fn is_authenticated(config: &Config) -> bool {
    config.tls.client_ca.is_some() || !config.auth.is_none()
}

/// Refuses non-loopback addresses without authentication, or with tokens in plain text, unless `insecure` is set. The error
/// lists the alternatives.
pub fn check_addresses(config: &Config) -> Result<(), String> {
    let addresses = [("listen", config.listen), ("http", config.http)];
    let open = addresses.into_iter().find(|(_, address)| !address.ip().to_canonical().is_loopback());
    let Some((key, address)) = open else { return Ok(()) };
    let (is_known, is_plain) = (is_authenticated(config), config.tls.cert.is_none());
    match (is_known, is_plain, config.insecure) {
        (true, false, _) => Ok(()),
        (false, _, true) => {
            tracing::warn!(%address, "{key} serves every caller without authentication (insecure)");
            Ok(())
        }
        (true, true, true) => {
            tracing::warn!(%address, "{key} accepts tokens in plain text (insecure)");
            Ok(())
        }
        (false, _, false) => Err(format!(
            "{key} is {address}, which other machines may reach, and callers are not authenticated: require client \
             certificates (--tls-cert, --tls-key, --tls-client-ca) or tokens (--tls-cert, --tls-key, --auth token), \
             listen on 127.0.0.1, or serve every caller with --insecure"
        )),
        (true, true, false) => Err(format!(
            "{key} is {address}, which other machines may reach, and clients would send tokens in plain text: \
             use TLS (--tls-cert, --tls-key), listen on 127.0.0.1, or accept tokens in plain text with --insecure"
        )),
    }
}

/// Returns one warning for each limit of a broker that is too small for the cluster settings. Such a broker cannot
/// accept or deliver the largest jobs; other brokers can.
pub fn too_small_for(limits: &Limits, cluster: &ClusterSettings) -> Vec<String> {
    let job_bytes = cluster.job_bytes() as u64;
    let held = [("limits.message_bytes", limits.message_bytes as u64), ("limits.window_bytes", limits.window_bytes)];
    let too_small = held.into_iter().filter(|(_, bytes)| *bytes < job_bytes);
    too_small
        .map(|(key, bytes)| {
            format!(
                "{key} of this broker ({}) is too small for payload_bytes ({}) and header_bytes ({}) of the cluster: \
                 this broker cannot accept or deliver the largest jobs. Set {key} to {} or more",
                bytes_words(bytes),
                bytes_words(cluster.payload_bytes as u64),
                bytes_words(cluster.header_bytes as u64),
                bytes_words(job_bytes),
            )
        })
        .collect()
}
