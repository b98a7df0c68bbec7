//! Maintenance task: handles notifications from other brokers and from SQL functions.

use std::{collections::HashMap, mem, sync::Arc, time::Duration};

use howdah_core::job::{Ready, TypeId};
use tokio::{sync::mpsc, time::Instant};

use super::Context;
use crate::wake::{Heard, Notice};

/// Maximum number of task types that wait for a repeated check. The periodic sweep finds ready jobs of further types.
const MOST_AGAIN: usize = 10_000;
/// Delay of the second check after a notification by `howdah.announce` (enqueue with SQL). Only one of several
/// concurrent transactions sends it, and most of the others have committed after this delay.
const SILENT: Duration = Duration::from_millis(50);
/// Delay of the third check, after which slow transactions have committed as well, for example behind a stalled disk.
const SLOW: Duration = Duration::from_millis(500);

/// Task types to check again at a later time, with the ranks from which to look for ready jobs.
struct Again {
    types: HashMap<TypeId, i64>,
    at: Instant,
    /// Types announced while a check is scheduled. They are checked in the round after it, because their transactions
    /// may commit later than `at`.
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

    /// Returns the task types to check now, and schedules the next round.
    fn take(&mut self) -> HashMap<TypeId, i64> {
        self.at = Instant::now() + self.after;
        mem::replace(&mut self.types, mem::take(&mut self.since))
    }
}

pub(super) async fn run(context: Arc<Context>, mut heard: mpsc::Receiver<Heard>) {
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
        // Notifications before the connection may be lost, and new settings may make jobs ready: the sweep finds
        // these jobs. `held_leases` finds running jobs that were cancelled.
        Heard::Connected | Heard::Notice(Notice::Settings) => context.sweep_now.notify_one(),
        Heard::Notice(Notice::Ready(types) | Notice::Enqueued(types)) => {
            context.statistics_now.notify_one();
            wake(context, types);
        }
        Heard::Notice(Notice::SessionsMoved(sessions)) => {
            let left = sessions.iter().flat_map(|mark| context.sessions.resumed_elsewhere(mark, &context.dispatch));
            context.release.release_after_full_move(left.collect());
        }
        Heard::Notice(Notice::Ended(ids)) => context.waiters.ended(&ids),
        Heard::Notice(Notice::Lost(lost)) => {
            if lost.broker_id == context.dispatch.broker_id() {
                context.ended_leases.add(lost.ids, lost.loss.into());
            }
        }
    }
}
