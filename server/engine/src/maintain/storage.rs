//! Maintenance task: reads the health of the storage for the metrics, examines the database, and warns if a snapshot is
//! held for too long. It is separate from counting jobs, which takes long exactly when the storage has problems.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use howdah_core::config::WakeMode;
use tokio::time::Instant;

use super::{
    BEFORE_READINGS, Context,
    snapshot_watch::{LogLine, Observation, SnapshotWatch, overgrown},
};
use crate::{
    doctor::{self, Examination},
    metrics::{ByCheck, ByTable},
    store::{SnapshotHolder, StorageHealth, StoreError, TableHealth},
};

const EVERY: Duration = Duration::from_secs(15);
/// Number of readings from one examination of the database to the next. The first examination follows the second reading,
/// to add no load while the broker starts.
const READINGS_PER_EXAMINATION: u32 = 4;

pub(super) async fn run(context: Arc<Context>) {
    tokio::time::sleep(BEFORE_READINGS).await;
    let mut watch = SnapshotWatch::default();
    let (mut reading_fails, mut examination_fails) = (false, false);
    // Logs only the first of several failures in a row: if the role lacks a right, every reading fails.
    let log_first = |what: &str, done: Result<(), StoreError>, failing: &mut bool| {
        if let (Err(error), false) = (&done, *failing) {
            context.store.log_failure(what, error);
        }
        *failing = done.is_err();
    };
    for reading in 0_u32.. {
        let guard = context.background_mutex.lock().await;
        log_first("reading the health of the storage", run_once(&context, &mut watch).await, &mut reading_fails);
        if reading % READINGS_PER_EXAMINATION == 1 {
            log_first("examining the database", examine(&context).await, &mut examination_fails);
        }
        drop(guard);
        tokio::time::sleep(EVERY).await;
    }
}

/// Ends LISTEN sessions of expired brokers, and reads the health of the storage.
pub(super) async fn run_once(context: &Context, watch: &mut SnapshotWatch) -> Result<(), StoreError> {
    for (broker, pid) in context.store.end_listeners().await? {
        tracing::warn!(
            broker,
            pid,
            "ended the LISTEN session of a broker that has not renewed its row: it may be frozen"
        );
    }
    let health = context.store.storage_health().await?;
    let worst = overgrown(&health.tables);
    let oldest = health.oldest_snapshot.as_ref();
    let observation = watch.observe(oldest.map(|holder| holder.xid), worst.is_some(), Instant::now());
    measure(context, &health, observation);
    match (observation.log_line, oldest, worst) {
        (LogLine::Bloat, Some(holder), Some(table)) => warn(holder, table, observation.held),
        (LogLine::Over, ..) => tracing::info!("VACUUM is no longer held back, or the dead rows are gone"),
        _ => {}
    }
    Ok(())
}

/// Runs the checks of `howdah doctor` for the metrics and the Storage view.
async fn examine(context: &Context) -> Result<(), StoreError> {
    let m = &context.metrics.storage.findings;
    let found = doctor::examine(&context.store, &context.config).await;
    m.clear();
    *context.examination.lock() = None;
    let mut findings = found?;
    if context.config.wake == WakeMode::Listen && context.metrics.listening.get() == 0 {
        findings.push(doctor::not_listening("the log of the broker has the reason"));
    }
    for finding in &findings {
        m.get_or_create(&ByCheck { check: finding.check, level: finding.level.name() }).inc();
    }
    *context.examination.lock() = Some(Arc::new(Examination { time: SystemTime::now(), findings }));
    Ok(())
}

fn measure(context: &Context, health: &StorageHealth, observation: Observation) {
    let m = &context.metrics.storage;
    for table in &health.tables {
        let labels = ByTable { table: table.name };
        m.live_rows.get_or_create(&labels).set(table.live_rows);
        m.dead_rows.get_or_create(&labels).set(table.dead_rows);
    }
    let oldest = health.oldest_snapshot.as_ref();
    // The holder of a snapshot may have no known start time. Then the time of observation is used as the minimum age.
    let age = oldest.map_or(Duration::ZERO, |holder| holder.age.unwrap_or(observation.held));
    m.snapshot_age.set(age.as_secs_f64());
    m.snapshot_transactions.set(oldest.map_or(0, |holder| holder.xid_age));
    m.snapshot_bloat.set(i64::from(observation.bloat));
    m.queue_usage.set(health.notification_queue_usage);
    m.history_partitions.set(health.history_partitions);
}

fn warn(holder: &SnapshotHolder, table: &TableHealth, held: Duration) {
    if let Some(broker) = &holder.broker {
        tracing::warn!(
            broker,
            pid = holder.pid,
            user = holder.user,
            seen_for_s = held.as_secs(),
            xid_age = holder.xid_age,
            table = table.name,
            dead_rows = table.dead_rows,
            "the LISTEN session of a broker keeps VACUUM from removing dead rows, because the broker does not read: resume or \
             end its process, or end the session with pg_terminate_backend(pid)"
        );
        return;
    }
    tracing::warn!(
        held_by = holder.kind.name(),
        pid = holder.pid,
        name = holder.name,
        user = holder.user,
        database = holder.database,
        application = holder.application,
        state = holder.state,
        seen_for_s = held.as_secs(),
        transaction_age_s = holder.age.map(|age| age.as_secs()),
        xid_age = holder.xid_age,
        table = table.name,
        dead_rows = table.dead_rows,
        "a held snapshot keeps VACUUM from removing dead rows; see docs/operate/troubleshoot.md, When the tables grow"
    );
}
