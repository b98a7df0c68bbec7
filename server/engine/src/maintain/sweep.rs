//! Maintenance task: the sweep, a periodic query that finds all work whose notification was missed. An idle broker
//! looks for jobs with no other statement.

use std::{sync::Arc, time::Duration};

use howdah_core::{config::WakeMode, job::Ready};
use tokio::time::Instant;

use super::{Context, clock, until_done};
use crate::store::StoreError;

/// Interval of sweeps in poll mode after a sweep that has found work.
const BUSY_POLL: Duration = Duration::from_millis(200);

/// Minimum time between two requested sweeps, unless the poll interval is shorter.
const EARLY: Duration = Duration::from_secs(1);

/// Maximum interval of sweeps, even if the query is slow.
const SLOWEST: Duration = Duration::from_secs(5);

pub(super) async fn run(context: Arc<Context>) {
    let mut early_from = Instant::now();
    loop {
        let (found, took) = until_done(&context, "looking for work", || async {
            let begun = Instant::now();
            Ok((run_once(&context).await?, begun.elapsed()))
        })
        .await;
        let interval = match context.config.wake {
            WakeMode::Poll if found => context.config.poll_interval.min(BUSY_POLL),
            _ => context.config.poll_interval,
        };
        // If the query is slow (dead rows under a held snapshot), it runs less often.
        let pause = interval.max((took * 10).min(SLOWEST));
        // Any role with a database login may request sweeps, so their rate is limited.
        let early = async {
            context.sweep_now.notified().await;
            tokio::time::sleep_until(early_from).await;
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = early => early_from = Instant::now() + interval.min(EARLY),
        }
    }
}

/// Runs the sweep once, and wakes the tasks that have work. Returns whether jobs are ready.
pub(super) async fn run_once(context: &Context) -> Result<bool, StoreError> {
    let floor = *context.scheduled_floor.lock();
    let asked = Instant::now();
    let sweep = context.store.sweep(floor).await?;
    clock::read(context, sweep.now, asked);
    context.metrics.sweeps.inc();
    let found = !sweep.ready.is_empty();
    // Assigns jobs only to workers of this broker, because other brokers run their own sweep.
    context.dispatch.ready_here(sweep.ready.iter().map(|&(type_id, lowest_rank)| Ready {
        type_id,
        lowest_rank,
        jobs: 1,
    }));
    let in_ms = |ms: i64| Duration::from_millis(ms.max(0) as u64);
    if let Some(ms) = sweep.due_in_ms {
        context.wake.due_in(in_ms(ms));
    }
    if let Some(ms) = sweep.deadline_in_ms {
        context.wake.deadline_in(in_ms(ms));
    }
    if let Some(ms) = sweep.limit_in_ms {
        context.wake.limit_in(in_ms(ms));
    }
    if let Some(ms) = sweep.expiry_in_ms {
        context.wake.expiry_in(in_ms(ms));
    }
    if sweep.schedule_watches {
        context.wake.schedule_in(Duration::ZERO);
    } else if let Some(ms) = sweep.schedule_in_ms {
        context.wake.schedule_in(in_ms(ms));
    }
    if let Some(ms) = sweep.bulk_in_ms {
        context.wake.bulk_in(in_ms(ms));
    }
    if sweep.broker_expired {
        context.rescue_now.notify_one();
    }
    context.registry.follow(sweep.database).await?;
    context.refresh_settings(sweep.settings_version).await?;
    let pool = context.store.pool_state();
    context.metrics.pool_open.set(i64::from(pool.open));
    context.metrics.pool_idle.set(i64::from(pool.idle));
    Ok(found)
}
