//! Statements on leases: adopt leases of a reconnected worker, regain leases that were released, extend deadlines, read
//! facts for retries.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use howdah_core::job::{Chosen, JobOptions, Lease, ProgressReport, TypeId};
use postgres_types::Json;
use serde_json::{Map, Value};
use tokio_postgres::Row;

use super::{
    Statement, Store, StoreError,
    rows::{FromRow as _, from_row, json},
    settle::lease_columns,
};

/// A lease that this broker has adopted, or will adopt when it is unlocked.
#[derive(Clone, Copy, Debug)]
pub struct Adopted {
    /// Lease of the job.
    pub lease: Lease,
    pub type_id: TypeId,
    /// Bytes of payload and headers, which count against the worker's window.
    pub bytes: i64,
    /// Whether another transaction has locked the lease, which then still belongs to its previous broker.
    pub locked: bool,
}

from_row! { Adopted(row) { lease: Lease::from_row(row), type_id, bytes, locked: false } }

/// The attempt of an adopted lease, for the trace span that this broker continues.
#[derive(Clone, Debug)]
pub struct AdoptedAttempt {
    pub lease: Lease,
    pub type_id: TypeId,
    /// Number of the attempt.
    pub number: i16,
    /// Trace context of the job's producer (`traceparent`).
    pub traceparent: Option<String>,
    /// Vendor-specific trace context (`tracestate`).
    pub tracestate: Option<String>,
    /// Database time of the adoption, in µs since 1970.
    pub at_us: i64,
}

from_row! {
    AdoptedAttempt(row) {
        lease: Lease::from_row(row), type_id, number: row.get("attempt"), traceparent, tracestate, at_us: row.get("now_us"),
    }
}

/// Result of an adoption.
#[derive(Debug, Default)]
pub struct Adoption {
    /// Leases that this broker has adopted, or will adopt once they are unlocked.
    pub adopted: Vec<Adopted>,
    /// Attempts of leases that this broker has adopted.
    pub attempts: Vec<AdoptedAttempt>,
    /// Previous brokers of the adopted leases, each with the ids of the jobs that were taken over from it.
    pub others: Vec<(i32, Vec<i64>)>,
}

/// A lease that this broker no longer has.
#[derive(Clone, Copy, Debug)]
pub struct EndedLease {
    pub lease: Lease,
    pub ending: LeaseEnding,
}

from_row! {
    EndedLease(row) { lease: Lease::from_row(row), ending: LeaseEnding::from_name(row.get("ending")) }
}

/// Reason why a broker no longer has a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseEnding {
    /// Another broker adopted the lease, because the worker reconnected to that broker.
    Moved,
    /// The worker settled the job.
    Settled,
    /// The job was cancelled.
    Cancelled,
    /// The deadline of the attempt passed.
    TimedOut,
    /// Another broker rescued the lease, an operator took it from the worker, or the reason is unknown.
    Lost,
}

impl LeaseEnding {
    fn from_name(name: &str) -> Self {
        match name {
            "moved" => Self::Moved,
            "settled" => Self::Settled,
            "cancelled" => Self::Cancelled,
            "timed_out" => Self::TimedOut,
            _ => Self::Lost,
        }
    }
}

/// Facts about a lease for the retry policy.
#[derive(Clone, Debug)]
pub struct LeaseFacts {
    pub id: i64,
    pub type_id: TypeId,
    /// Number of this attempt.
    pub attempt: i16,
    pub max_attempts: i16,
    /// Job options, which may include the job's retry policy.
    pub options: Option<Box<JobOptions>>,
}

from_row! {
    LeaseFacts(row) {
        id, type_id, attempt, max_attempts,
        // A role with SQL access may have written invalid options. They are ignored.
        options: json(row, "options"),
    }
}

impl Store {
    /// Adopts the leases of a resumed session, sorted by id, and returns the leases that the session still has. `from`
    /// restricts the adoption to leases of these broker ids. Locked leases do not delay the adoption of the others.
    /// Fails with `Expired` if this broker's own row has expired, because the broker then cannot know which leases are
    /// lost.
    pub async fn adopt(&self, leases: &[Lease], broker_id: i32, from: Option<&[i32]>) -> Result<Adoption, StoreError> {
        match self.adopt_all(leases, broker_id, from).await {
            Err(StoreError::Locked(_)) => {}
            adoption => return adoption,
        }
        let ids: Vec<i64> = leases.iter().map(|lease| lease.id).collect();
        let locked = self.locked_leases(&ids).await?;
        let (locked, free): (Vec<Lease>, Vec<Lease>) =
            leases.iter().copied().partition(|lease| locked.contains(&lease.id));
        let mut adoption = self.adopt_all(&free, broker_id, from).await?;
        let (ids, tokens) = lease_columns(locked.iter().copied());
        let rows = self.hot().await?.query(Statement::LockedForAdoption, &[&ids, &tokens, &from]).await?;
        // A locked lease that already belongs to this broker counts as adopted.
        let locked =
            |row: &Row| Adopted { locked: row.get::<_, i32>("broker_id") != broker_id, ..Adopted::from_row(row) };
        adoption.adopted.extend(rows.iter().map(locked));
        Ok(adoption)
    }

    /// Restores leases, sorted by id, that ended because their worker was lost. Skips jobs that were delivered or
    /// changed since then. A restored lease lasts one minute. Returns the ids of the jobs whose leases were restored.
    pub async fn regain(&self, leases: &[Lease]) -> Result<Vec<i64>, StoreError> {
        let (ids, tokens) = lease_columns(leases.iter().copied());
        self.hot().await?.list(Statement::Regain, &[&ids, &tokens]).await
    }

    async fn adopt_all(&self, leases: &[Lease], broker_id: i32, from: Option<&[i32]>) -> Result<Adoption, StoreError> {
        let (ids, tokens) = lease_columns(leases.iter().copied());
        let rows = self.hot().await?.query(Statement::Adopt, &[&ids, &tokens, &broker_id, &from]).await?;
        if rows.iter().any(|row| row.get("expired")) {
            return Err(StoreError::Expired);
        }
        let mut adoption = Adoption::default();
        for row in &rows {
            if let Some(other) = row.get("other_id") {
                adoption.others.push((other, row.get("other_ids")));
            } else {
                adoption.adopted.push(Adopted::from_row(row));
                adoption.attempts.push(AdoptedAttempt::from_row(row));
            }
        }
        Ok(adoption)
    }

    /// Returns the given leases that this broker no longer has under any of its former and current ids (`broker_ids`).
    pub async fn ended_leases(&self, leases: &[Lease], broker_ids: &[i32]) -> Result<Vec<EndedLease>, StoreError> {
        let ids: Vec<i64> = leases.iter().map(|lease| lease.id).collect();
        let tokens: Vec<i64> = leases.iter().map(|lease| lease.token).collect();
        self.hot().await?.list(Statement::EndedLeases, &[&ids, &tokens, &broker_ids]).await
    }

    /// Returns the leases of these jobs, sorted by id, each with its broker id (0 if the job was pulled).
    pub async fn leases_of(&self, jobs: &Chosen) -> Result<Vec<(Lease, i32)>, StoreError> {
        let rows = self.hot().await?.query(Statement::LeasesOf, &[&jobs.ids, &jobs.types()]).await?;
        Ok(rows.iter().map(|row| (Lease::from_row(row), row.get("broker_id"))).collect())
    }

    /// Sets the deadline of each lease to the given duration from now. The leases must be sorted by id. Returns the ids
    /// of the jobs whose deadlines were set.
    pub async fn extend(&self, extensions: &[(Lease, Duration)]) -> Result<Vec<i64>, StoreError> {
        let (ids, tokens) = lease_columns(extensions.iter().map(|(lease, _)| *lease));
        let durations: Vec<i64> = extensions.iter().map(|(_, d)| d.as_millis() as i64).collect();
        self.hot().await?.list(Statement::Extend, &[&ids, &tokens, &durations]).await
    }

    /// Stores the progress of jobs. The reports must be unique and sorted by job id. Returns the ids of the jobs whose
    /// progress was stored.
    pub async fn report_progress(&self, reports: &[&ProgressReport]) -> Result<Vec<i64>, StoreError> {
        let (ids, tokens) = lease_columns(reports.iter().map(|report| report.lease));
        let changes: Vec<Json<Value>> = reports.iter().map(|report| Json(changes(report))).collect();
        self.hot().await?.list(Statement::ReportProgress, &[&ids, &tokens, &changes]).await
    }

    /// Returns facts for the retry policy. The leases must be sorted by job id, and the result has the same order.
    pub async fn lease_facts(&self, leases: &[Lease]) -> Result<Vec<LeaseFacts>, StoreError> {
        let (ids, tokens) = lease_columns(leases.iter().copied());
        let mut facts: Vec<LeaseFacts> = self.hot().await?.list(Statement::LeaseFacts, &[&ids, &tokens]).await?;
        facts.sort_unstable_by_key(|f| f.id);
        Ok(facts)
    }
}

/// Converts a progress report to a change of the `options` column, with the field names of [`JobOptions`].
fn changes(report: &ProgressReport) -> Value {
    let mut set = Map::new();
    if let Some(fraction) = report.fraction {
        set.insert("progress_fraction".into(), fraction.into());
    }
    if let Some(text) = &report.text {
        set.insert("progress_text".into(), text.as_str().into());
    }
    if let Some(checkpoint) = &report.checkpoint {
        // An empty checkpoint becomes JSON null, which removes the stored checkpoint.
        let kept = (!checkpoint.is_empty()).then(|| STANDARD.encode(checkpoint));
        set.insert("checkpoint".into(), kept.into());
    }
    Value::Object(set)
}
