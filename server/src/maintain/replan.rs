//! Checks whether the next planned times of schedules still match their plans. Time zone rules change, and the
//! database's clock may have been ahead when the times were planned.

use super::Context;
use crate::store::StoreError;

/// Maximum number of schedules in a page.
const PAGE: i32 = 1_000;
/// Approximate maximum bytes of schedules in a page.
const BYTES: i64 = 4 << 20;

/// Checks all schedules and replans where needed. A locked schedule is being fired or changed, so it is left to the
/// next check. Returns whether any schedule was replanned.
pub(super) async fn run_once(context: &Context) -> Result<bool, StoreError> {
    let now = context.store.count_schedules("").await?.now;
    let (mut after, mut changed) = (String::new(), 0);
    loop {
        let page = context.store.list_schedules(&after, PAGE, BYTES).await?;
        for schedule in &page.schedules {
            // A schedule that this broker cannot plan is left to other brokers.
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
            "planned schedules anew: the rules of their time zones have changed, or the database's clock has gone back"
        );
    }
    Ok(changed > 0)
}

/// Replans a schedule if that is still needed.
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
