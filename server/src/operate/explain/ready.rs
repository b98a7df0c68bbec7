//! Jobs that could run.

use std::time::Duration;

use howdah_proto::v1::ReasonKind;

use super::{MOST_BEFORE, before, if_paused, text};
use crate::{
    job::{ListedWorker, Reason},
    session::JOB_OVERHEAD,
    store::{JobFacts, ReadyFacts},
};

/// A ready job, and the workers of its type.
pub(super) struct About<'a> {
    job: &'a JobFacts,
    facts: ReadyFacts,
    /// Workers that take jobs of the type.
    workers: usize,
    /// Of these, those that take one as large.
    takers: usize,
    /// The largest job that one of them takes.
    largest: u64,
    /// Jobs that they hold,
    held: u64,
    /// and may hold.
    window: u64,
    /// Jobs that can be given to those that take one as large.
    room: u64,
    /// Jobs that were settled in the last minute.
    pub(super) settled: u32,
}

impl<'a> About<'a> {
    pub(super) fn of(job: &'a JobFacts, facts: ReadyFacts, workers: &[ListedWorker]) -> Self {
        let weight = u64::try_from(job.weight.unwrap_or_default()).unwrap_or_default();
        let mut about = Self { job, facts, workers: 0, takers: 0, largest: 0, held: 0, window: 0, room: 0, settled: 0 };
        for worker in workers {
            let windows = worker.view.windows.iter().filter(|window| window.task_type == job.task_type);
            for window in windows {
                about.settled += window.settled;
                if !worker.view.is_connected || worker.view.is_draining || window.jobs == 0 {
                    continue;
                }
                let largest = window.bytes.min(worker.view.max_message_bytes.saturating_sub(JOB_OVERHEAD));
                about.workers += 1;
                about.largest = about.largest.max(largest);
                about.held += u64::from(window.held);
                about.window += u64::from(window.jobs);
                if weight <= largest {
                    about.takers += 1;
                    about.room += u64::from(window.jobs.saturating_sub(window.held));
                }
            }
        }
        about
    }

    /// The time until it starts, by what was settled in the last minute.
    pub(super) fn expected_in(&self) -> Option<Duration> {
        if self.job.paused || self.takers == 0 || self.facts.before > MOST_BEFORE {
            return None;
        }
        let first = u64::try_from(self.facts.before).unwrap_or_default();
        let is_limited = self.is_at_limit() || self.job.rate_per_s.is_some();
        if first < self.room && !is_limited {
            return Some(Duration::ZERO);
        }
        let missing = first + 1 - self.room.min(first);
        (self.settled > 0).then(|| Duration::from_secs_f64(missing as f64 * 60.0 / f64::from(self.settled)))
    }

    fn is_at_limit(&self) -> bool {
        self.job.max_running.is_some_and(|most| self.facts.running >= i64::from(most))
    }

    pub(super) fn reasons(&self) -> Vec<Reason> {
        let reasons = [if_paused(self.job), self.no_worker(), self.type_limit(), self.type_rate(), self.full()];
        let mut reasons: Vec<Reason> = reasons.into_iter().flatten().collect();
        reasons.extend(self.others_first());
        if reasons.is_empty() {
            reasons.push(Reason {
                kind: ReasonKind::Starting,
                text: "Nothing holds it back: a worker gets it in a moment.".into(),
                ..Reason::default()
            });
        }
        reasons
    }

    /// No worker takes it.
    fn no_worker(&self) -> Option<Reason> {
        let task_type = &self.job.task_type;
        if self.workers == 0 {
            return Some(Reason {
                kind: ReasonKind::NoWorker,
                text: format!("No worker takes jobs of the type {task_type}, at any broker."),
                remedy: "Start a worker for exactly this type.".into(),
                ..Reason::default()
            });
        }
        (self.takers == 0).then(|| Reason {
            kind: ReasonKind::TooLarge,
            text: format!(
                "It has {} bytes; the {} of {task_type} take at most {}.",
                self.job.weight.unwrap_or_default(),
                workers(self.workers),
                self.largest
            ),
            remedy: "A worker must take larger messages, or have a larger window in bytes.".into(),
            limit: self.largest as f64,
            used: self.job.weight.unwrap_or_default(),
            ..Reason::default()
        })
    }

    /// They hold as many jobs as they want.
    fn full(&self) -> Option<Reason> {
        (self.takers > 0 && self.room == 0).then(|| Reason {
            kind: ReasonKind::WorkersFull,
            text: format!(
                "The {} of {} hold {} of at most {} jobs.",
                workers(self.workers),
                self.job.task_type,
                self.held,
                self.window
            ),
            remedy: "One of their jobs must end; more workers or larger windows make it start earlier.".into(),
            limit: self.window as f64,
            used: self.held as i64,
            ..Reason::default()
        })
    }

    /// As many jobs of the type run as may.
    fn type_limit(&self) -> Option<Reason> {
        let most = self.job.max_running.filter(|_| self.is_at_limit())?;
        Some(Reason {
            kind: ReasonKind::TypeLimit,
            text: format!("Of {}, {most} may run at once, and {} do.", self.job.task_type, self.facts.running),
            remedy: "One of them must end, or max_running must be raised.".into(),
            limit: f64::from(most),
            used: self.facts.running,
            ..Reason::default()
        })
    }

    /// The type has no starts left.
    fn type_rate(&self) -> Option<Reason> {
        let next = self.facts.next_token.filter(|&next| next > self.job.now)?;
        let rate = self.job.rate_per_s?;
        Some(Reason {
            kind: ReasonKind::TypeRate,
            text: format!(
                "The rate limit of {} ({rate} a second) allows the next start at {}.",
                self.job.task_type,
                text::until(next, self.job.now)
            ),
            remedy: "That time must come, or the rate must be raised.".into(),
            until: Some(next),
            limit: rate,
            ..Reason::default()
        })
    }

    fn others_first(&self) -> impl Iterator<Item = Reason> {
        let first = before(self.facts.before);
        let others = (first.jobs > 0).then(|| Reason {
            kind: ReasonKind::OthersFirst,
            text: format!("Of {}, {} first.", self.job.task_type, text::go_first(first)),
            remedy: "Those jobs must start; a lower priority number makes it go before them.".into(),
            used: first.jobs,
            ..Reason::default()
        });
        let fair = self.job.fair_key.as_ref().filter(|_| first.jobs > 0).map(|key| Reason {
            kind: ReasonKind::FairShare,
            text: format!("Jobs of other fairness keys take turns with those of {key:?}."),
            key: key.clone(),
            ..Reason::default()
        });
        others.into_iter().chain(fair)
    }
}

fn workers(number: usize) -> String {
    if number == 1 { "worker".into() } else { format!("{number} workers") }
}
