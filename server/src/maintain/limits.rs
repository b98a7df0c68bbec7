//! Applies changed limits of task types to their jobs and leases, in small transactions. The database records what is
//! left to do, so any broker can go on when this one ends.

use std::{sync::Arc, time::Duration};

use super::{Context, admit, until_done};
use crate::store::StoreError;

/// The most keys and jobs in a step.
const BATCH: i32 = 500;

pub(super) async fn always(context: Arc<Context>) {
    // Work that was begun before this broker started.
    let mut next = Some(Duration::ZERO);
    loop {
        let again = async {
            match next {
                Some(pause) => tokio::time::sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = context.limits_now.notified() => {}
            () = again => {}
        }
        next = until_done(&context, "applying changed limits", || run_once(&context)).await;
    }
}

/// One step; returns when the next one is due. Its keys are checked before, so that keys of other types are delayed by
/// at most one step.
async fn run_once(context: &Context) -> Result<Option<Duration>, StoreError> {
    let next = context.store.continue_limit_changes(BATCH).await?;
    if next.is_some_and(|next| next.is_zero()) {
        for _ in 0..=BATCH / admit::BATCH {
            admit::run_once(context).await?;
        }
    } else if next.is_some() {
        context.wake.limit_in(Duration::ZERO);
    }
    Ok(next)
}
