//! The current public keys of an issuer. One task reads them from the source, so that at most one read runs at a time.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use arc_swap::ArcSwapOption;
use futures::FutureExt as _;
use howdah_core::error::Error;
use howdah_engine::metrics::{ByIssuer, JwtMetrics};
use jsonwebtoken::Algorithm;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep_until, timeout},
};

use super::{
    key::{Key, KeySet},
    source::Source,
};

/// Minimum interval between warnings that an issuer's keys cannot be read.
const WARN_EVERY: Duration = Duration::from_secs(600);
/// Maximum time that a call waits for a read of the keys. The reads have a shorter timeout.
const WAIT: Duration = Duration::from_secs(6);

/// Intervals between reads of an issuer's keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Interval from a successful read of the keys to the next read.
    pub(super) every: Duration,
    /// Interval from a failed read of the keys to the next read.
    pub(super) retry: Duration,
    /// Minimum interval between two reads of the keys, if a token with an unknown key triggers the second one.
    pub(super) unknown: Duration,
}

impl Pace {
    pub(super) fn new(source: &Source) -> Self {
        let seconds = |every, retry, unknown| Self {
            every: Duration::from_secs(every),
            retry: Duration::from_secs(retry),
            unknown: Duration::from_secs(unknown),
        };
        if source.is_local() { seconds(10, 10, 1) } else { seconds(600, 30, 30) }
    }
}

/// State of the task that reads the keys.
#[derive(Clone, Copy, Debug)]
struct Progress {
    /// Number of completed reads of the keys, successful or not.
    reads: u64,
    /// Whether a read of the keys is running.
    reading: bool,
    /// Earliest time at which a token with an unknown key may trigger the next read.
    soonest: Instant,
}

/// Keys of an issuer, and the state of their reads.
pub(super) struct Keys {
    label: ByIssuer,
    algorithms: Vec<Algorithm>,
    source: Source,
    pace: Pace,
    /// Keys from the last successful read; `None` before the first one.
    in_force: ArcSwapOption<KeySet>,
    progress: watch::Sender<Progress>,
    wanted: Notify,
    metrics: JwtMetrics,
}

impl Keys {
    pub(super) fn new(
        issuer: &str,
        algorithms: &[Algorithm],
        source: Source,
        pace: Pace,
        metrics: &JwtMetrics,
    ) -> Self {
        // `reading` is initially true, so that calls before the start of the task wait for its first read.
        let progress = Progress { reads: 0, reading: true, soonest: Instant::now() };
        Self {
            label: ByIssuer { issuer: issuer.to_owned() },
            algorithms: algorithms.to_vec(),
            source,
            pace,
            in_force: ArcSwapOption::empty(),
            progress: watch::Sender::new(progress),
            wanted: Notify::new(),
            metrics: metrics.clone(),
        }
    }

    /// Returns the key with this key id. An unknown key triggers a throttled read of the keys.
    pub(super) async fn find(&self, algorithm: Algorithm, id: Option<&str>) -> Result<Arc<Key>, Error> {
        if let Some(key) = self.known(algorithm, id) {
            return Ok(key);
        }
        self.read_again().await;
        if let Some(key) = self.known(algorithm, id) {
            return Ok(key);
        }
        if self.in_force.load().is_none() {
            let issuer = &self.label.issuer;
            return Err(Error::Unavailable(format!(
                "the keys of the issuer {issuer} could not be read yet; try again"
            )));
        }
        let which =
            if id.is_some() { "has a key id (kid) that its issuer does not have" } else { "has no key id (kid)" };
        Err(super::refused(which))
    }

    /// Whether the key with this key id is known without a read.
    pub(super) fn knows(&self, algorithm: Algorithm, id: Option<&str>) -> bool {
        self.known(algorithm, id).is_some()
    }

    fn known(&self, algorithm: Algorithm, id: Option<&str>) -> Option<Arc<Key>> {
        self.in_force.load().as_ref()?.find(algorithm, id).cloned()
    }

    /// Waits for the running read of the keys, or triggers a read and waits for it. Returns at once while new reads are
    /// throttled.
    async fn read_again(&self) {
        let mut progress = self.progress.subscribe();
        let now = *progress.borrow_and_update();
        if !now.reading {
            if Instant::now() < now.soonest {
                return;
            }
            self.wanted.notify_one();
        }
        let _ = timeout(WAIT, progress.wait_for(|progress| progress.reads > now.reads)).await;
    }

    /// Reads the keys periodically and on demand. Never returns.
    pub(super) async fn keep(self: Arc<Self>) {
        let mut warned: Option<Instant> = None;
        loop {
            let begun = Instant::now();
            self.progress.send_modify(|progress| progress.reading = true);
            let result = self.read().await;
            let next = if result.is_ok() { self.pace.every } else { self.pace.retry };
            self.report(result, &mut warned);
            let soonest = begun + self.pace.unknown;
            // The read that has just ended also serves requests made during it. Only later requests trigger another read.
            let _ = self.wanted.notified().now_or_never();
            self.progress.send_modify(|progress| {
                *progress = Progress { reads: progress.reads + 1, reading: false, soonest };
            });
            // Jitter prevents that all brokers read the keys at the same time.
            let next = next.mul_f64(rand::random_range(0.9..=1.0));
            tokio::select! {
                () = sleep_until(begun + next) => {}
                () = async { sleep_until(soonest).await; self.wanted.notified().await } => {}
            }
        }
    }

    /// Reads the keys and replaces the current ones. Ends the credentials that were verified with removed keys.
    async fn read(&self) -> Result<(), String> {
        let bytes = self.source.read().await?;
        let mut found = KeySet::parse(&bytes, &self.algorithms)?;
        let before = self.in_force.load_full().unwrap_or_default();
        let is_in = |set: &[Arc<Key>], key: &Key| set.iter().position(|other| other.is_same(key));
        let mut changed = self.in_force.load().is_none() || found.keys.len() != before.keys.len();
        for key in &mut found.keys {
            match is_in(&before.keys, key) {
                Some(at) => *key = before.keys[at].clone(),
                None => changed = true,
            }
        }
        let found = Arc::new(found);
        self.in_force.store(Some(found.clone()));
        for key in before.keys.iter().filter(|key| is_in(&found.keys, key).is_none()) {
            key.removed.cancel();
        }
        if changed {
            let (issuer, keys) = (&self.label.issuer, found.keys.len());
            tracing::info!(issuer, keys, unusable = ?found.unusable, "read the keys of an issuer of JSON Web Tokens");
        }
        if changed && found.keys.is_empty() {
            tracing::warn!(issuer = self.label.issuer, "the issuer has no usable key: all its tokens are refused");
        }
        Ok(())
    }

    fn report(&self, result: Result<(), String>, warned: &mut Option<Instant>) {
        let metrics = &self.metrics;
        match result {
            Ok(()) => {
                metrics.key_reads.get_or_create(&self.label).inc();
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
                metrics.keys_read_at.get_or_create(&self.label).set(i64::try_from(now).unwrap_or(i64::MAX));
                if warned.take().is_some() {
                    tracing::info!(issuer = self.label.issuer, "the keys of the issuer can be read again");
                }
            }
            Err(problem) => {
                metrics.key_read_failures.get_or_create(&self.label).inc();
                if warned.is_none_or(|last| last.elapsed() >= WARN_EVERY) {
                    *warned = Some(Instant::now());
                    let issuer = &self.label.issuer;
                    tracing::warn!(issuer, problem, "cannot read the keys of an issuer; the known keys stay valid");
                }
            }
        }
    }
}
