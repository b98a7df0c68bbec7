//! Statements that keep leases: adopt, extend, read.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use postgres_types::Json;
use serde_json::{Map, Value};
use tokio_postgres::Row;

use super::{Statement, Store, StoreError, settle::lease_columns};
use crate::job::{Chosen, JobOptions, Lease, ProgressReport, TypeId};

/// An adopted lease.
#[derive(Clone, Copy, Debug)]
pub struct Adopted {
    /// The lease.
    pub lease: Lease,
    /// Its type.
    pub type_id: TypeId,
    /// Its weight in the window.
    pub bytes: i64,
    /// Another transaction has locked it: it is still another broker's.
    pub locked: bool,
}

/// The attempt of an adopted lease, for its span.
#[derive(Clone, Debug)]
pub struct AdoptedAttempt {
    /// The lease.
    pub lease: Lease,
    /// Its type.
    pub type_id: TypeId,
    /// The number of the attempt.
    pub number: i16,
    /// The trace context of the job's producer.
    pub traceparent: Option<String>,
    /// What goes with that.
    pub tracestate: Option<String>,
    /// When it was adopted, by the clock of the database: µs after 1970.
    pub at_us: i64,
}

/// What an adoption did.
#[derive(Debug, Default)]
pub struct Adoption {
    /// The leases that are this broker's now, or will be when a lock goes.
    pub adopted: Vec<Adopted>,
    /// The attempts of those that are this broker's now.
    pub attempts: Vec<AdoptedAttempt>,
    /// The brokers that had some of them before, with the ids of those.
    pub others: Vec<(i32, Vec<i64>)>,
}

/// A lease that is not this broker's any more.
#[derive(Clone, Copy, Debug)]
pub struct EndedLease {
    /// The lease.
    pub lease: Lease,
    /// What became of it.
    pub ending: LeaseEnding,
}

/// What became of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseEnding {
    /// Another broker has taken it over, since its worker went there.
    Moved,
    /// Its worker has settled it.
    Settled,
    /// The job was cancelled.
    Cancelled,
    /// Its deadline passed.
    TimedOut,
    /// It ended in another way: another broker rescued it, or an operator took it from its worker.
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

/// What the retry policy needs to know.
#[derive(Clone, Debug)]
pub struct LeaseFacts {
    /// The job.
    pub id: i64,
    /// Its type.
    pub type_id: TypeId,
    /// The number of this attempt.
    pub attempt: i16,
    /// The most attempts.
    pub max_attempts: i16,
    /// They may have a retry policy of the job's own.
    pub options: Option<Box<JobOptions>>,
}

impl Store {
    /// Takes over the leases of a session that came back, sorted by id; returns those it still has. With `from`, only those
    /// that are under one of these numbers. Those that another transaction has locked do not hold up the others. A broker
    /// whose own lease has run out gets an error: it cannot know which of them are lost.
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
        // One that is this broker's already stays so.
        let locked = |row: &Row| adopted(row, row.get::<_, i32>("broker_id") != broker_id);
        adoption.adopted.extend(rows.iter().map(locked));
        Ok(adoption)
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
                adoption.adopted.push(adopted(row, false));
                adoption.attempts.push(attempt(row));
            }
        }
        Ok(adoption)
    }

    /// Which of these leases are not this broker's any more, under whichever of its numbers.
    pub async fn ended_leases(&self, leases: &[Lease], broker_ids: &[i32]) -> Result<Vec<EndedLease>, StoreError> {
        let ids: Vec<i64> = leases.iter().map(|lease| lease.id).collect();
        let tokens: Vec<i64> = leases.iter().map(|lease| lease.token).collect();
        let rows = self.hot().await?.query(Statement::EndedLeases, &[&ids, &tokens, &broker_ids]).await?;
        let ended = rows.iter().map(|row| EndedLease {
            lease: Lease { id: row.get("id"), token: row.get("token") },
            ending: LeaseEnding::from_name(row.get("ending")),
        });
        Ok(ended.collect())
    }

    /// The leases of these jobs, each with its broker (0: none, it was pulled), sorted by id.
    pub async fn leases_of(&self, jobs: &Chosen) -> Result<Vec<(Lease, i32)>, StoreError> {
        let rows = self.hot().await?.query(Statement::LeasesOf, &[&jobs.ids, &jobs.types()]).await?;
        let lease = |row: &Row| (Lease { id: row.get("id"), token: row.get("token") }, row.get("broker_id"));
        Ok(rows.iter().map(lease).collect())
    }

    /// Sets deadlines to this long from now, sorted by id; returns the ids that took effect.
    pub async fn extend(&self, extensions: &[(Lease, Duration)]) -> Result<Vec<i64>, StoreError> {
        let (ids, tokens) = lease_columns(extensions.iter().map(|(lease, _)| *lease));
        let durations: Vec<i64> = extensions.iter().map(|(_, d)| d.as_millis() as i64).collect();
        let rows = self.hot().await?.query(Statement::Extend, &[&ids, &tokens, &durations]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Stores progress of jobs, sorted by id, an id once; returns the ids that took effect.
    pub async fn report_progress(&self, reports: &[&ProgressReport]) -> Result<Vec<i64>, StoreError> {
        let (ids, tokens) = lease_columns(reports.iter().map(|report| report.lease));
        let changes: Vec<Json<Value>> = reports.iter().map(|report| Json(changes(report))).collect();
        let rows = self.hot().await?.query(Statement::ReportProgress, &[&ids, &tokens, &changes]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// The facts that the retry policy needs, for leases sorted by id; the result is sorted too.
    pub async fn lease_facts(&self, leases: &[Lease]) -> Result<Vec<LeaseFacts>, StoreError> {
        let (ids, tokens) = lease_columns(leases.iter().copied());
        let rows = self.hot().await?.query(Statement::LeaseFacts, &[&ids, &tokens]).await?;
        let mut facts: Vec<LeaseFacts> = rows
            .iter()
            .map(|row| LeaseFacts {
                id: row.get("id"),
                type_id: row.get("type_id"),
                attempt: row.get("attempt"),
                max_attempts: row.get("max_attempts"),
                // Anybody with SQL access may have written anything: invalid options are ignored.
                options: row.try_get::<_, Option<Json<_>>>("options").unwrap_or_default().map(|Json(o)| o),
            })
            .collect();
        facts.sort_unstable_by_key(|f| f.id);
        Ok(facts)
    }
}

fn attempt(row: &Row) -> AdoptedAttempt {
    AdoptedAttempt {
        lease: Lease { id: row.get("id"), token: row.get("token") },
        type_id: row.get("type_id"),
        number: row.get("attempt"),
        traceparent: row.get("traceparent"),
        tracestate: row.get("tracestate"),
        at_us: row.get("now_us"),
    }
}

fn adopted(row: &Row, locked: bool) -> Adopted {
    let lease = Lease { id: row.get("id"), token: row.get("token") };
    Adopted { lease, type_id: row.get("type_id"), bytes: row.get("bytes"), locked }
}

/// The changes that a report makes in `options`, by the names of [`JobOptions`].
fn changes(report: &ProgressReport) -> Value {
    let mut set = Map::new();
    if let Some(fraction) = report.fraction {
        set.insert("progress_fraction".into(), fraction.into());
    }
    if let Some(text) = &report.text {
        set.insert("progress_text".into(), text.as_str().into());
    }
    if let Some(checkpoint) = &report.checkpoint {
        // null removes the checkpoint.
        let kept = (!checkpoint.is_empty()).then(|| STANDARD.encode(checkpoint));
        set.insert("checkpoint".into(), kept.into());
    }
    Value::Object(set)
}
