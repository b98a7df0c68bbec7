//! Reloads the TLS files every ten seconds, and on request. Checks the expiry of the broker's certificate, also for `howdah
//! doctor`.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use howdah_core::{config::Config, durations};
use howdah_engine::{doctor::Finding, metrics::TlsMetrics};
use tokio::{task::spawn_blocking, time::sleep};
use tokio_util::sync::CancellationToken;

use crate::tls::{LOOK, Tls, WARN_BEFORE};

/// Interval of warnings about a certificate that expires soon.
const WARN_EVERY: Duration = Duration::from_hours(24);

/// Reloads changed TLS files, and warns before the certificate expires, until `stop` is cancelled.
pub(crate) async fn watch(tls: Arc<Tls>, metrics: TlsMetrics, stop: CancellationToken) {
    let mut warned = None;
    loop {
        look_after_expiry(&tls, &metrics, &mut warned);
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(LOOK) => {}
            () = tls.look_now.notified() => {}
        }
        let looking = tls.clone();
        // Reloading runs in a blocking task: the disk may be slow, and verifying thousands of certificates takes
        // seconds.
        let look = move || {
            let reloaded = looking.reload();
            let in_force = looking.in_force.load_full();
            let verifier = in_force.clients.as_ref().filter(|_| matches!(reloaded, Some(Ok(()))));
            let ended = looking.clients.end(verifier);
            if ended > 0 {
                tracing::warn!(connections = ended, "closed connections whose client certificates are no longer valid");
            }
            reloaded
        };
        match spawn_blocking(look).await {
            Ok(Some(Ok(()))) => {
                metrics.reloads.inc();
                warned = None;
                let expires = super::clients::date(tls.in_force.load().expires);
                tracing::info!(%expires, "the TLS files have changed; new connections use them");
            }
            Ok(Some(Err(problem))) => {
                metrics.reload_failures.inc();
                tracing::error!(%problem, "the TLS files have changed and cannot be used; the old ones stay in force");
            }
            Ok(None) | Err(_) => {}
        }
    }
}

fn look_after_expiry(tls: &Tls, metrics: &TlsMetrics, warned: &mut Option<Instant>) {
    let expires = tls.in_force.load().expires;
    metrics.expires.set(i64::try_from(expires).unwrap_or(i64::MAX));
    let left = tls.expires().duration_since(SystemTime::now()).unwrap_or_default();
    if left < WARN_BEFORE && warned.is_none_or(|warned| warned.elapsed() > WARN_EVERY) {
        *warned = Some(Instant::now());
        let expires = super::clients::date(expires);
        tracing::warn!(%expires, "the broker's certificate expires soon: replace the files of tls_cert and tls_key");
    }
}

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
