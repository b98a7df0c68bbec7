//! Readiness: whether jobs can be stored and claimed now.

use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use super::Operator;
use crate::store::StoreError;

/// Time limit of a readiness check. A Kubernetes probe waits one second by default, and an operator not much longer.
const ANSWER_WITHIN: Duration = Duration::from_millis(1_500);
/// Pause before a check is repeated after a temporary error.
const PAUSE: Duration = Duration::from_millis(50);

/// Start and result of the last check. The lock lets one check run at a time, and callers that waited for it share its
/// result.
#[derive(Debug, Default)]
pub(super) struct LastCheck(Mutex<Option<(Instant, Result<(), String>)>>);

impl Operator {
    /// Whether jobs can be stored, claimed and settled; otherwise an error with the reason. The error contains no host and no
    /// user names, which are only logged.
    pub async fn readiness(&self) -> Result<(), String> {
        let requested_at = Instant::now();
        if let Some(error) = self.context.store.unreachable_error() {
            return Err(error.public_text());
        }
        let operator = self.clone();
        // The check runs in a separate task and continues if the caller gives up: a cancelled statement would still occupy a
        // connection while it waits in Postgres.
        let checking = tokio::spawn(async move {
            let mut last = operator.last_check.0.lock().await;
            match &*last {
                Some((begun, result)) if *begun >= requested_at => result.clone(),
                _ => {
                    let begun = Instant::now();
                    let result = operator.check_database(begun).await;
                    *last = Some((begun, result.clone()));
                    result
                }
            }
        });
        match tokio::time::timeout(ANSWER_WITHIN, checking).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err("the broker is stopping".into()),
            Err(_) => Err(match self.context.store.connection_error() {
                Some(error) => error.public_text(),
                None => format!("Postgres has not stored a test job within {ANSWER_WITHIN:?}"),
            }),
        }
    }

    /// Repeats the check after temporary errors: a broken connection or a short lock only delays jobs.
    async fn check_database(&self, begun: Instant) -> Result<(), String> {
        loop {
            let error = match self.store_and_claim_trial().await {
                Ok(result) => return result,
                Err(error) => error,
            };
            let passes = matches!(error, StoreError::Locked(_) | StoreError::Unknown(_) | StoreError::Conflict(_))
                || error.ends_session();
            if !passes || begun.elapsed() >= ANSWER_WITHIN {
                return Err(self.refused(&error));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn store_and_claim_trial(&self) -> Result<Result<(), String>, StoreError> {
        let store = &self.context.store;
        let found = store.readiness(self.context.dispatch.broker_id()).await?;
        if !found.has_all_partitions {
            self.context.partitions_now.notify_one();
        }
        let lacking = match found {
            found if !found.has_partitions => {
                "a partition of history or payloads is missing, so jobs cannot be settled; the broker is creating it"
            }
            found if !found.has_lease => {
                "the lease of this broker has expired, so the broker claims no jobs; it is renewing the lease"
            }
            _ => return store.try_write().await.map(Ok),
        };
        Ok(Err(lacking.into()))
    }

    fn refused(&self, error: &StoreError) -> String {
        self.context.store.log_failure("storing and claiming a test job", error);
        if error.is_schema_missing() {
            return "the schema in the database is missing or incomplete: restart a broker, or run howdah migrate"
                .into();
        }
        match error {
            StoreError::NotSent(_) | StoreError::Unknown(_) => error.public_text(),
            _ => format!("jobs cannot be stored and claimed: {}; see the log of the broker", error.public_text()),
        }
    }
}
