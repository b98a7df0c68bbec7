//! Calls that wait for jobs to finish, here or on another broker.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::mpsc::{Sender, UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::{Instant, MissedTickBehavior, interval_at},
};

use super::SharedBroker;
use crate::{
    config::WakeMode,
    error::Error,
    job::{JobState, JobView},
};

/// Jobs that are read at once.
const BATCH: usize = 100;
/// How often to look for jobs whose end nobody told of, with notifications and without.
const LOOK: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(100);

/// Who waits for which jobs.
#[derive(Default)]
pub(crate) struct Waiting(Mutex<HashMap<i64, Vec<UnboundedSender<i64>>>>);

impl Waiting {
    /// These jobs have ended.
    pub(crate) fn ended(&self, ids: &[i64]) {
        let mut waiting = self.0.lock();
        for id in ids {
            for sender in waiting.remove(id).unwrap_or_default() {
                // Whoever waited may have gone.
                let _ = sender.send(*id);
            }
        }
    }

    fn add(&self, ids: &[i64]) -> UnboundedReceiver<i64> {
        let (sender, ended) = unbounded_channel();
        let mut waiting = self.0.lock();
        for id in ids {
            waiting.entry(*id).or_default().push(sender.clone());
        }
        ended
    }

    fn remove(&self, ids: &[i64]) {
        let mut waiting = self.0.lock();
        for id in ids {
            if let Some(senders) = waiting.get_mut(id) {
                senders.retain(|sender| !sender.is_closed());
                if senders.is_empty() {
                    waiting.remove(id);
                }
            }
        }
    }
}

/// One call that waits.
struct Wait {
    broker: SharedBroker,
    ids: Vec<i64>,
    /// Not told of yet.
    left: HashSet<i64>,
    /// Known to have been there.
    seen: HashSet<i64>,
    answers: Sender<Result<JobView, Error>>,
}

/// Tells of each of these jobs when it has ended, until all have or the time is over.
pub(crate) async fn wait_jobs(
    broker: SharedBroker,
    mut ids: Vec<i64>,
    timeout: Duration,
    answers: Sender<Result<JobView, Error>>,
) {
    ids.sort_unstable();
    ids.dedup();
    let until = Instant::now() + timeout;
    // Registered before the jobs are looked at: no end between the two is missed.
    let mut ended = broker.waiting().add(&ids);
    let left = ids.iter().copied().collect();
    let mut wait = Wait { broker, ids, left, seen: HashSet::new(), answers };
    let caller = wait.answers.clone();
    let result = tokio::select! {
        result = wait.run(&mut ended, until) => result,
        () = caller.closed() => Ok(()),
    };
    if let Err(error) = result {
        let _ = wait.answers.send(Err(error)).await;
    }
    drop(ended);
    wait.broker.waiting().remove(&wait.ids);
}

impl Wait {
    async fn run(&mut self, ended: &mut UnboundedReceiver<i64>, until: Instant) -> Result<(), Error> {
        self.look().await?;
        let period = if self.broker.config().wake == WakeMode::Poll { POLL } else { LOOK };
        let mut tick = interval_at(Instant::now() + period, period);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !self.left.is_empty() {
            tokio::select! {
                Some(id) = ended.recv() => {
                    let mut ids = vec![id];
                    while ids.len() < BATCH && let Ok(id) = ended.try_recv() {
                        ids.push(id);
                    }
                    self.tell(&ids).await?;
                }
                _ = tick.tick() => {
                    let left: Vec<i64> = self.left.iter().copied().collect();
                    self.tell(&left).await?;
                }
                () = tokio::time::sleep_until(until) => {
                    let left = self.left.len();
                    return Err(Error::Deadline(format!("{left} of {} jobs have not finished in time", self.ids.len())));
                }
            }
        }
        Ok(())
    }

    /// Says that somebody waits for them, and tells of those that have ended already.
    async fn look(&mut self) -> Result<(), Error> {
        let ids = self.ids.clone();
        for batch in ids.chunks(BATCH) {
            let live = self.broker.store().mark_waited(batch).await?;
            self.seen.extend(&live);
            let gone: Vec<i64> = batch.iter().copied().filter(|id| !live.contains(id)).collect();
            self.tell(&gone).await?;
            let unknown: Vec<i64> = gone.into_iter().filter(|id| self.left.contains(id)).collect();
            self.tell_of_unknown(&unknown).await?;
        }
        Ok(())
    }

    async fn tell(&mut self, ids: &[i64]) -> Result<(), Error> {
        for batch in ids.chunks(BATCH) {
            let wanted: Vec<i64> = batch.iter().copied().filter(|id| self.left.contains(id)).collect();
            if wanted.is_empty() {
                continue;
            }
            for job in self.broker.store().ended_jobs(&wanted).await? {
                self.left.remove(&job.id);
                let _ = self.answers.send(Ok(job)).await;
            }
            // Told of, and nowhere: its type keeps no history.
            let vanished: Vec<i64> =
                wanted.into_iter().filter(|id| self.left.contains(id) && self.seen.contains(id)).collect();
            if !vanished.is_empty() {
                let live = self.broker.store().still_live(&vanished).await?;
                let gone: Vec<i64> = vanished.into_iter().filter(|id| !live.contains(id)).collect();
                self.tell_of_unknown(&gone).await?;
            }
        }
        Ok(())
    }

    async fn tell_of_unknown(&mut self, ids: &[i64]) -> Result<(), Error> {
        for id in ids {
            if !self.seen.contains(id) {
                let text = format!("there is no job {id}: it never existed, or its history was dropped");
                return Err(Error::NotFound(text));
            }
            self.left.remove(id);
            let _ = self.answers.send(Ok(JobView::forgotten(*id, JobState::Succeeded))).await;
        }
        Ok(())
    }
}
