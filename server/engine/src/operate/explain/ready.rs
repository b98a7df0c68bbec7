//! Explanations of ready jobs.

use std::time::{Duration, SystemTime};

use howdah_core::job::{Braked, ListedWorker, Reason};
use howdah_proto::v1::ReasonKind;

use super::{MOST_BEFORE, before, if_paused, text};
use crate::{
    operate::workers::PULLS_AGAIN,
    session::JOB_OVERHEAD,
    store::{JobFacts, ReadyFacts},
};

/// Minimum period, in seconds, over which the settle rate is computed, so that the first settled job does not suggest a high
/// rate.
const LEAST_S: f64 = 60.0;

/// Last pull of jobs of a task type by a program without a stream (`PullJobs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pulled {
    /// No program has pulled.
    Never,
    /// A program has pulled, at this time.
    At(SystemTime),
    /// A pull waits for jobs now.
    Now,
}

/// A ready job, and facts about the workers of its task type.
pub(super) struct About<'a> {
    job: &'a JobFacts,
    facts: ReadyFacts,
    pulled: Pulled,
    /// Number of workers with a window for the task type.
    workers: usize,
    /// Number of workers that accept a job of this size, or whose accepted size is unknown because their window is 0.
    takers: usize,
    /// Size in bytes of the largest job that any of the workers accepts.
    largest: u64,
    /// Number of jobs of the task type that the workers hold.
    held: u64,
    /// Number of jobs of the task type that the windows of the workers allow.
    window: u64,
    /// Number of jobs that still fit into the windows of workers that accept a job of this size.
    room: u64,
}

impl<'a> About<'a> {
    pub(super) fn new(job: &'a JobFacts, facts: ReadyFacts, pulled: Pulled, workers: &[ListedWorker]) -> Self {
        let weight = u64::try_from(job.weight.unwrap_or_default()).unwrap_or_default();
        let mut about = Self { job, facts, pulled, workers: 0, takers: 0, largest: 0, held: 0, window: 0, room: 0 };
        for worker in workers {
            let windows = worker.view.windows.iter().filter(|window| window.task_type == job.task_type);
            for window in windows {
                if !worker.view.is_connected || worker.view.is_draining {
                    continue;
                }
                let largest = window.bytes.min(worker.view.max_message_bytes.saturating_sub(JOB_OVERHEAD));
                about.workers += 1;
                about.largest = about.largest.max(largest);
                about.held += u64::from(window.held);
                about.window += u64::from(window.jobs);
                if weight <= largest || window.jobs == 0 {
                    about.takers += 1;
                    about.room += u64::from(window.jobs.saturating_sub(window.held));
                }
            }
        }
        about
    }

    /// Returns the number of attempts settled per minute, averaged over the last minutes.
    pub(super) fn settled_per_minute(&self) -> f64 {
        self.facts.settled as f64 * 60.0 / self.facts.settled_s.max(LEAST_S)
    }

    /// Returns the estimated time until the job starts: from the rate limit of the task type while workers have room, otherwise
    /// from the settle rate of the last minutes.
    pub(super) fn expected_in(&self) -> Option<Duration> {
        let is_taken = self.takers > 0 || self.is_pulled();
        if self.job.paused || !is_taken || self.facts.before > MOST_BEFORE {
            return None;
        }
        let first = u64::try_from(self.facts.before).unwrap_or_default();
        // A waiting pull takes at least one job.
        let room = self.room.max(u64::from(self.pulled == Pulled::Now));
        let is_limited = self.is_at_limit() || self.facts.braked.is_some();
        match self.job.rate_per_s {
            Some(rate) if room > 0 && !is_limited => return self.expected_by_rate(first, rate),
            None if first < room && !is_limited => return Some(Duration::ZERO),
            _ => {}
        }
        let missing = first + 1 - room.min(first);
        let rate = self.settled_per_minute();
        (rate > 0.0).then(|| Duration::try_from_secs_f64(missing as f64 * 60.0 / rate).ok()).flatten()
    }

    /// Returns the time until the rate limit has let the jobs before this one start, and then this one.
    fn expected_by_rate(&self, first: u64, rate: f64) -> Option<Duration> {
        let next = self.facts.next_token.and_then(|next| next.duration_since(self.job.now).ok()).unwrap_or_default();
        Some(next + Duration::try_from_secs_f64(first as f64 / rate).ok()?)
    }

    /// Whether programs have recently pulled jobs of the task type (`PullJobs`).
    fn is_pulled(&self) -> bool {
        match self.pulled {
            Pulled::Never => false,
            Pulled::At(last) => self.job.now.duration_since(last).unwrap_or_default() <= PULLS_AGAIN,
            Pulled::Now => true,
        }
    }

    fn is_at_limit(&self) -> bool {
        self.job.max_running.is_some_and(|most| self.facts.running >= i64::from(most))
    }

    pub(super) fn reasons(&self) -> Vec<Reason> {
        let of_type = [self.type_brake(), self.type_limit(), self.type_rate()];
        let reasons = [if_paused(self.job), self.not_taken()].into_iter().chain(of_type).chain([self.full()]);
        let mut reasons: Vec<Reason> = reasons.flatten().collect();
        reasons.extend(self.others_first());
        if reasons.is_empty() {
            reasons.push(Reason {
                kind: ReasonKind::Starting,
                text: "Nothing holds the job back: a worker gets it in a moment.".into(),
                ..Reason::default()
            });
        }
        reasons
    }

    /// Returns a reason if no worker accepts the job and no pull waits for jobs.
    fn not_taken(&self) -> Option<Reason> {
        if self.takers > 0 || self.pulled == Pulled::Now {
            return None;
        }
        let task_type = &self.job.task_type;
        match self.pulled {
            Pulled::At(last) if self.is_pulled() => Some(Reason {
                kind: ReasonKind::NextPull,
                text: format!(
                    "The job waits for the next pull: jobs of the type {task_type} were last pulled (PullJobs) at {}.",
                    text::since(last, self.job.now)
                ),
                remedy: "Let the program that pulls jobs call PullJobs again. A worker with a stream would get the job at once."
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
                "The job has {} bytes; the {} of the type {task_type} {} at most {}.",
                self.job.weight.unwrap_or_default(),
                workers(self.workers),
                text::verb(self.workers as i64, "takes", "take"),
                self.largest
            ),
            remedy: "Raise a worker's message limit, or its window in bytes.".into(),
            limit: self.largest as f64,
            used: self.job.weight.unwrap_or_default(),
            ..Reason::default()
        }
    }

    /// Returns a reason if the workers hold as many jobs as their windows allow.
    fn full(&self) -> Option<Reason> {
        let is_full = self.takers > 0 && self.room == 0 && self.pulled != Pulled::Now;
        let number = self.workers as i64;
        let subject = format!("The {} of the type {}", workers(self.workers), self.job.task_type);
        let (text, ends) = match self.window {
            0 => (
                format!(
                    "{subject} {} full: {} 0.",
                    text::verb(number, "is", "are"),
                    text::verb(number, "its window is", "their windows are")
                ),
                "A worker must end one of its jobs and raise its window",
            ),
            window => {
                let holds = text::verb(number, "holds", "hold");
                let text = format!("{subject} {holds} {} of at most {}.", self.held, text::count(window as i64));
                (text, if self.held == 1 { "That job must end" } else { "One of those jobs must end" })
            }
        };
        is_full.then(|| Reason {
            kind: ReasonKind::WorkersFull,
            text,
            remedy: format!(
                "{ends}{}; with more workers or larger windows of the workers, this job starts earlier.",
                if self.is_pulled() { ", or a program must pull this job (PullJobs)" } else { "" }
            ),
            limit: self.window as f64,
            used: self.held as i64,
            ..Reason::default()
        })
    }

    /// Returns a reason if the task type is braked.
    fn type_brake(&self) -> Option<Reason> {
        let Braked { since, failures, next } = self.facts.braked?;
        let now = self.job.now;
        let next_attempt = if next > now {
            format!("the next attempt starts at {}", text::until(next, now))
        } else {
            "one job at a time is tried".to_owned()
        };
        Some(Reason {
            kind: ReasonKind::TypeBraked,
            text: format!(
                "The type {} is braked since {}, after {failures} failed {} in a row: {next_attempt}.",
                self.job.task_type,
                text::since(since, now),
                text::verb(failures, "attempt", "attempts")
            ),
            remedy: "Remove the cause of the failures: one successful attempt ends the brake.".into(),
            since: Some(since),
            until: (next > now).then_some(next),
            used: failures,
            ..Reason::default()
        })
    }

    /// Returns a reason if the task type has reached its limit of running jobs.
    fn type_limit(&self) -> Option<Reason> {
        let most = self.job.max_running.filter(|_| self.is_at_limit())?;
        Some(Reason {
            kind: ReasonKind::TypeLimit,
            text: format!(
                "Of the type {}, {} may run at once, and {} {}.",
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

    /// Returns a reason if the rate limit of the task type allows no start now.
    fn type_rate(&self) -> Option<Reason> {
        let next = self.facts.next_token.filter(|&next| next > self.job.now)?;
        let rate = self.job.rate_per_s?;
        Some(Reason {
            kind: ReasonKind::TypeRate,
            text: format!(
                "The rate limit of the type {} ({rate} a second) allows the next start at {}.",
                self.job.task_type,
                text::until(next, self.job.now)
            ),
            remedy: "Wait until then, or raise the rate.".into(),
            until: Some(next),
            limit: rate,
            ..Reason::default()
        })
    }

    fn others_first(&self) -> impl Iterator<Item = Reason> {
        let first = before(self.facts.before);
        let others = (first.jobs > 0).then(|| Reason {
            kind: ReasonKind::OthersFirst,
            text: format!("Of the type {}, {} before this one.", self.job.task_type, text::go_first(first)),
            remedy: format!(
                "{} must start; a lower priority number makes this job go before {}.",
                text::those(first.jobs),
                text::verb(first.jobs, "it", "them")
            ),
            used: first.jobs,
            ..Reason::default()
        });
        let fair = self.job.fair_key.as_ref().filter(|_| self.facts.takes_turns).map(|key| Reason {
            kind: ReasonKind::FairShare,
            text: match first.jobs {
                1 => {
                    format!("That job has another fair key: jobs of that key take turns with jobs of fair key {key:?}.")
                }
                _ => format!("Some jobs ahead have other fair keys and take turns with jobs of fair key {key:?}."),
            },
            key: key.clone(),
            ..Reason::default()
        });
        others.into_iter().chain(fair)
    }
}

/// Returns the beginning of a sentence about one of the running jobs.
pub(super) fn one_of(running: i64) -> &'static str {
    if running == 1 { "That job" } else { "One of them" }
}

fn workers(number: usize) -> String {
    if number == 1 { "worker".into() } else { format!("{number} workers") }
}
