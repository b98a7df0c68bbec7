//! Checks the planned next times of schedules. A time may be outdated because time zone rules have changed, or because
//! the database's clock was ahead when the time was planned.

use super::Context;
use crate::store::StoreError;

/// Maximum number of schedules read at a time.
const PAGE: i32 = 1_000;
/// Approximate maximum size of the schedules read at a time, in bytes.
const BYTES: i64 = 4 << 20;

/// Checks all schedules and corrects outdated planned times. Skips a locked schedule, which is being fired or changed.
/// Returns whether any schedule was changed.
pub(super) async fn run_once(context: &Context) -> Result<bool, StoreError> {
    let now = context.store.count_schedules("").await?.now;
    let (mut after, mut changed) = (String::new(), 0);
    loop {
        let page = context.store.list_schedules(&after, PAGE, BYTES).await?;
        for schedule in &page.schedules {
            // Skips a schedule that this broker cannot plan; other brokers may be able to.
            let Ok(plan) = schedule.spec.plan.parse() else { continue };
            if schedule.clone().replan(&plan, now) {
                changed += u64::from(replan(context, &schedule.spec.name).await?);
            }
        }
        match page.schedules.last() {
            Some(last) if page.more => after.clone_from(&last.spec.name),
            _ => break,
        }
    }
    if changed > 0 {
        tracing::info!(
            schedules = changed,
            "planned schedules again: the rules of their time zones have changed, or the database's clock has gone back"
        );
    }
    Ok(changed > 0)
}

/// Locks the schedule, checks it again, and stores its corrected planned time. Returns whether the schedule was
/// changed.
async fn replan(context: &Context, name: &str) -> Result<bool, StoreError> {
    let mut transaction = context.store.schedule_transaction().await?;
    let held = match transaction.lock(name).await {
        Err(StoreError::Locked(_)) => None,
        held => held?,
    };
    let Some((mut schedule, now)) = held else {
        transaction.roll_back().await;
        return Ok(false);
    };
    let changed = schedule.spec.plan.parse().is_ok_and(|plan| schedule.replan(&plan, now));
    if changed {
        transaction.save(&schedule).await?;
    }
    transaction.commit().await?;
    Ok(changed)
}
