//! When a task type's limits were changed, its jobs and leases follow: in small transactions, each of which may be
//! the last of this broker. What is left to do stands in the database, and whichever broker is there goes on.

use std::{sync::Arc, time::Duration};

use super::{Context, admit, until_done};
use crate::store::StoreError;

/// Keys and jobs in a step at most.
const BATCH: i32 = 500;

pub(super) async fn always(context: Arc<Context>) {
    // What was begun before this broker.
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
        next = until_done("following changed limits", || run_once(&context)).await;
    }
}

/// One step; returns when the next is due. Its keys are looked at before, so that those of other types are never
/// behind more than a step.
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
