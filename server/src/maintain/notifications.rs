//! Handles notifications of other brokers.

use std::{collections::HashMap, mem, sync::Arc, time::Duration};

use tokio::{sync::mpsc, time::Instant};

use super::Context;
use crate::{
    job::{Ready, TypeId},
    session::CancelReason,
    wake::{Heard, Loss, Notice},
};

/// The most types that wait for another check; the sweep finds the others.
const MOST_AGAIN: usize = 10_000;
/// How long after an announcement the transactions that did not announce have mostly committed (`howdah.announce`).
const SILENT: Duration = Duration::from_millis(50);
/// When slow ones have committed too, for example behind a stalled disk.
const SLOW: Duration = Duration::from_millis(500);

/// Types to check again after a while, and the rank to check from.
struct Again {
    types: HashMap<TypeId, i64>,
    at: Instant,
    /// Types announced since then. They get the check after this one, since transactions that did not announce may not
    /// have committed by `at`.
    since: HashMap<TypeId, i64>,
    after: Duration,
}

impl Again {
    fn new(after: Duration) -> Self {
        Self { types: HashMap::new(), at: Instant::now(), since: HashMap::new(), after }
    }

    fn add(&mut self, types: &[(TypeId, i64)]) {
        let next = if self.types.is_empty() {
            self.at = Instant::now() + self.after;
            &mut self.types
        } else {
            &mut self.since
        };
        for &(type_id, rank) in types.iter().take(MOST_AGAIN.saturating_sub(next.len())) {
            next.entry(type_id).and_modify(|lowest| *lowest = rank.min(*lowest)).or_insert(rank);
        }
    }

    /// The types to check now.
    fn take(&mut self) -> HashMap<TypeId, i64> {
        self.at = Instant::now() + self.after;
        mem::replace(&mut self.types, mem::take(&mut self.since))
    }
}

pub(super) async fn always(context: Arc<Context>, mut heard: mpsc::Receiver<Heard>) {
    let (mut silent, mut slow) = (Again::new(SILENT), Again::new(SLOW));
    loop {
        let news = tokio::select! {
            news = heard.recv() => news,
            () = tokio::time::sleep_until(silent.at), if !silent.types.is_empty() => {
                wake(&context, silent.take());
                continue;
            }
            () = tokio::time::sleep_until(slow.at), if !slow.types.is_empty() => {
                wake(&context, slow.take());
                continue;
            }
        };
        let Some(news) = news else { return };
        if let Heard::Notice(Notice::Enqueued(types)) = &news {
            silent.add(types);
            slow.add(types);
        }
        run_once(&context, news);
    }
}

fn wake(context: &Context, types: impl IntoIterator<Item = (TypeId, i64)>) {
    context.dispatch.ready_here(types.into_iter().map(|(type_id, lowest_rank)| Ready {
        type_id,
        lowest_rank,
        jobs: 1,
    }));
}

fn run_once(context: &Context, heard: Heard) {
    match heard {
        // Whatever was said while nobody listened is found by looking; cancels of what runs here, when leases are
        // compared.
        Heard::Connected | Heard::Notice(Notice::Settings) => context.sweep_now.notify_one(),
        Heard::Notice(Notice::Ready(types) | Notice::Enqueued(types)) => {
            context.statistics_now.notify_one();
            wake(context, types);
        }
        Heard::Notice(Notice::WentOn(sessions)) => {
            let left = sessions.iter().flat_map(|mark| context.sessions.went_on_elsewhere(mark, &context.dispatch));
            context.release.release_behind(left.collect());
        }
        Heard::Notice(Notice::Ended(ids)) => context.waiters.ended(&ids),
        Heard::Notice(Notice::Lost(lost)) => {
            if lost.broker_id == context.dispatch.broker_id() {
                let reason = match lost.loss {
                    Loss::Cancelled => CancelReason::Cancelled,
                    Loss::TimedOut => CancelReason::Timeout,
                    Loss::Moved => CancelReason::LeaseLost,
                };
                context.ended_leases.add(lost.ids, reason);
            }
        }
    }
}
