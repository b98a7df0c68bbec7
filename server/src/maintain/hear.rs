//! What other brokers say.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::Context;
use crate::{
    session::CancelReason,
    wake::{Heard, Notice, Ready},
};

pub(super) async fn always(context: Arc<Context>, mut heard: mpsc::Receiver<Heard>) {
    while let Some(heard) = heard.recv().await {
        run_once(&context, heard);
    }
}

fn run_once(context: &Context, heard: Heard) {
    match heard {
        // Whatever was said while nobody listened is found by looking.
        Heard::Connected | Heard::Notice(Notice::Settings) => context.sweep_now.notify_one(),
        Heard::Notice(Notice::Ready(types)) => {
            context.dispatch.wake(types.into_iter().map(|(type_id, lowest_rank)| Ready {
                type_id,
                lowest_rank,
                jobs: 1,
            }));
        }
        Heard::Notice(Notice::Ended(ids)) => context.waiting.ended(&ids),
        Heard::Notice(Notice::Cancel(notice)) => {
            if notice.broker_id == context.dispatch.broker_id() {
                let reason = if notice.timed_out { CancelReason::Timeout } else { CancelReason::Cancelled };
                context.sessions.cancel(&notice.leases, reason, &context.dispatch);
            }
        }
    }
}
