//! The check of the broker's certificate for `howdah doctor`.

use std::time::{Duration, SystemTime};

use howdah_core::{config::Config, durations};
use howdah_engine::doctor::Finding;

use super::Tls;

/// Time before the expiry of a certificate at which it should be replaced.
const BEFORE_END: Duration = Duration::from_secs(14 * 86_400);

/// Checks the TLS files as the broker would read them.
pub fn examine(config: &Config, now: SystemTime) -> Option<Finding> {
    match Tls::load(&config.tls) {
        Err(problem) => Some(Finding::problem("tls", problem, "set tls_cert and tls_key to a certificate and its key")),
        Ok(None) => None,
        Ok(Some(tls)) => {
            let left = tls.expires().duration_since(now).unwrap_or_default();
            let change = "replace the certificate file: brokers reload it within ten seconds";
            match left {
                Duration::ZERO => Some(Finding::problem("tls_expires", "the broker's certificate has expired", change)),
                left if left < BEFORE_END => {
                    let found = format!("the broker's certificate expires in {}", durations::short(left));
                    Some(Finding::advice("tls_expires", found, change))
                }
                _ => None,
            }
        }
    }
}
