//! Jobs that could run.

use std::time::{Duration, SystemTime};

use howdah_proto::v1::ReasonKind;

use super::{MOST_BEFORE, before, if_paused, text};
use crate::{
    job::{ListedWorker, Reason},
    session::JOB_OVERHEAD,
    store::{JobFacts, ReadyFacts},
};

/// Programs that have called for jobs of a type in this time call again.
const RECENT: Duration = Duration::from_secs(3_600);
/// A rate is that of a minute at least, so that the first job that is settled does not promise a thousand.
const LEAST_S: f64 = 60.0;

/// Programs without a stream, which call for jobs (`PullJobs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pulled {
    /// None has called.
    Never,
    /// One has called, at this time.
    At(SystemTime),
    /// One waits for jobs now.
    Now,
}

/// A ready job, and the workers of its type.
pub(super) struct About<'a> {
    job: &'a JobFacts,
    facts: ReadyFacts,
    pulled: Pulled,
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
}

impl<'a> About<'a> {
    pub(super) fn of(job: &'a JobFacts, facts: ReadyFacts, pulled: Pulled, workers: &[ListedWorker]) -> Self {
        let weight = u64::try_from(job.weight.unwrap_or_default()).unwrap_or_default();
        let mut about = Self { job, facts, pulled, workers: 0, takers: 0, largest: 0, held: 0, window: 0, room: 0 };
        for worker in workers {
            let windows = worker.view.windows.iter().filter(|window| window.task_type == job.task_type);
            for window in windows {
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

    /// Attempts that were settled a minute, in the last minutes.
    pub(super) fn settled_per_minute(&self) -> f64 {
        self.facts.settled as f64 * 60.0 / self.facts.settled_s.max(LEAST_S)
    }

    /// The time until it starts, by what was settled in the last minutes.
    pub(super) fn expected_in(&self) -> Option<Duration> {
        let is_taken = self.takers > 0 || self.is_pulled();
        if self.job.paused || !is_taken || self.facts.before > MOST_BEFORE {
            return None;
        }
        let first = u64::try_from(self.facts.before).unwrap_or_default();
        // A call that waits takes one job at least.
        let room = self.room.max(u64::from(self.pulled == Pulled::Now));
        let is_limited = self.is_at_limit() || self.job.rate_per_s.is_some();
        if first < room && !is_limited {
            return Some(Duration::ZERO);
        }
        let missing = first + 1 - room.min(first);
        let rate = self.settled_per_minute();
        (rate > 0.0).then(|| Duration::try_from_secs_f64(missing as f64 * 60.0 / rate).ok()).flatten()
    }

    /// Whether programs call for jobs of its type.
    fn is_pulled(&self) -> bool {
        match self.pulled {
            Pulled::Never => false,
            Pulled::At(last) => self.job.now.duration_since(last).unwrap_or_default() <= RECENT,
            Pulled::Now => true,
        }
    }

    fn is_at_limit(&self) -> bool {
        self.job.max_running.is_some_and(|most| self.facts.running >= i64::from(most))
    }

    pub(super) fn reasons(&self) -> Vec<Reason> {
        let reasons = [if_paused(self.job), self.not_taken(), self.type_limit(), self.type_rate(), self.full()];
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

    /// No worker takes it, and no program calls for it now.
    fn not_taken(&self) -> Option<Reason> {
        if self.takers > 0 || self.pulled == Pulled::Now {
            return None;
        }
        let task_type = &self.job.task_type;
        match self.pulled {
            Pulled::At(last) if self.is_pulled() => Some(Reason {
                kind: ReasonKind::NextPull,
                text: format!(
                    "It waits for the next pull: jobs of the type {task_type} were last pulled (PullJobs) at {}.",
                    text::since(last, self.job.now)
                ),
                remedy: "The program that pulls them must call again; a worker with a stream would get it at once."
                    .into(),
                since: Some(last),
                ..Reason::default()
            }),
            _ if self.workers == 0 => Some(self.no_worker()),
            _ => Some(self.too_large()),
        }
    }

    fn no_worker(&self) -> Reason {
        let since = match self.pulled {
            Pulled::At(last) => Some(last),
            Pulled::Never | Pulled::Now => None,
        };
        let pulled = since.map_or_else(String::new, |last| {
            format!(", and the last pull (PullJobs) was at {}", text::since(last, self.job.now))
        });
        Reason {
            kind: ReasonKind::NoWorker,
            text: format!("No worker takes jobs of the type {}, at any broker{pulled}.", self.job.task_type),
            remedy: "Start a worker for exactly this type.".into(),
            since,
            ..Reason::default()
        }
    }

    fn too_large(&self) -> Reason {
        let task_type = &self.job.task_type;
        Reason {
            kind: ReasonKind::TooLarge,
            text: format!(
                "It has {} bytes; the {} of {task_type} {} at most {}.",
                self.job.weight.unwrap_or_default(),
                workers(self.workers),
                text::verb(self.workers as i64, "takes", "take"),
                self.largest
            ),
            remedy: "A worker must take larger messages, or have a larger window in bytes.".into(),
            limit: self.largest as f64,
            used: self.job.weight.unwrap_or_default(),
            ..Reason::default()
        }
    }

    /// They hold as many jobs as they want.
    fn full(&self) -> Option<Reason> {
        let is_full = self.takers > 0 && self.room == 0 && self.pulled != Pulled::Now;
        is_full.then(|| Reason {
            kind: ReasonKind::WorkersFull,
            text: format!(
                "The {} of {} {} {} of at most {}.",
                workers(self.workers),
                self.job.task_type,
                text::verb(self.workers as i64, "holds", "hold"),
                self.held,
                text::count(self.window as i64)
            ),
            remedy: format!(
                "{} must end{}; more workers or larger windows make it start earlier.",
                if self.held == 1 { "That job" } else { "One of those jobs" },
                if self.is_pulled() { ", or a program must pull it (PullJobs)" } else { "" }
            ),
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
            text: format!(
                "Of {}, {} may run at once, and {} {}.",
                self.job.task_type,
                text::count(i64::from(most)),
                self.facts.running,
                text::verb(self.facts.running, "does", "do")
            ),
            remedy: format!("{} must end, or the limit must be raised.", one_of(self.facts.running)),
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
            remedy: format!(
                "{} must start; a lower priority number makes this one go before {}.",
                text::those(first.jobs),
                text::verb(first.jobs, "it", "them")
            ),
            used: first.jobs,
            ..Reason::default()
        });
        let fair = self.job.fair_key.as_ref().filter(|_| self.facts.takes_turns).map(|key| Reason {
            kind: ReasonKind::FairShare,
            text: match first.jobs {
                1 => format!("It has another fairness key: jobs of that one take turns with those of {key:?}."),
                _ => format!("Some of those have other fairness keys: they take turns with those of {key:?}."),
            },
            key: key.clone(),
            ..Reason::default()
        });
        others.into_iter().chain(fair)
    }
}

/// Of the jobs that run.
pub(super) fn one_of(running: i64) -> &'static str {
    if running == 1 { "That job" } else { "One of them" }
}

fn workers(number: usize) -> String {
    if number == 1 { "worker".into() } else { format!("{number} workers") }
}
