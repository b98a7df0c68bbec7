//! The table of job options, and the expected result of each pair of options.

use std::time::Duration;

use howdah_proto::v1::{
    DependencyFailure, EnqueueOutcome, HistoryMode, KeyPolicy, NewJob, Rate, RetryPolicy, RetryPolicyKind,
    StagePayload, TaskTypeSettings,
    new_job::{Expiry, Start},
};

use crate::support::*;

pub const NEXT: &str = "pair.next";
pub const FALLBACK: &str = "pair.fallback";
pub const PARENT: &str = "pair.parent";
/// Header with the number of the job's case, and header with the job's role in the case.
pub const CASE: &str = "case";
pub const ROLE: &str = "role";

macro_rules! job_options {
    ($($name:ident),* $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum JobOption { $($name),* }
        const ALL: &[JobOption] = &[$(JobOption::$name),*];
    };
}

job_options! {
    // Options of time and order, and options that make attempts fail.
    Priority, Delay, ExpiresLater, Expired, Timeout, FailsOnce, Fatal, Vanishes, Fallback, Large, FairKey, RequestKey,
    // Key options. For each key option, the test enqueues another job with the same key.
    Keep, Replace, Newer, Reject, Debounce, Hold, DebounceLimit,
    // Options that involve other types and other jobs.
    Stages, SamePayload, After, AfterLocal, AfterDead, RunAnyway,
    // Limit options. Two companion jobs run under the same limit.
    LimitKey, OneAtATime, Strict, Gap, KeyRate, MaxRunning, TypeRate,
    HistoryNone, HistoryFailures, HistoryWithoutEmpty, Paused,
}

const POLICIES: [JobOption; 5] =
    [JobOption::Keep, JobOption::Replace, JobOption::Newer, JobOption::Reject, JobOption::Debounce];
const HISTORIES: [JobOption; 3] = [JobOption::HistoryNone, JobOption::HistoryFailures, JobOption::HistoryWithoutEmpty];
const PARENTS: [JobOption; 3] = [JobOption::After, JobOption::AfterLocal, JobOption::AfterDead];

/// A pair of job options that are tested together, on one job. Each pair has its own task type.
#[derive(Clone, Debug)]
pub struct Case {
    pub number: usize,
    options: [JobOption; 2],
}

/// Action of a worker for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerAction {
    Ack(&'static str),
    Retry,
    Fail,
    /// The worker does nothing until the attempt times out.
    Ignore,
    Vanish,
}

/// The expected final state of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    pub state: &'static str,
    pub task_type: String,
    pub payload: Vec<u8>,
    pub result: &'static str,
    pub failed: bool,
}

/// All possible pairs of options.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, &one) in ALL.iter().enumerate() {
        for &other in &ALL[i + 1..] {
            let both = |group: &[JobOption]| group.contains(&one) && group.contains(&other);
            // Leaves out pairs whose options set the same field.
            if !both(&POLICIES) && !both(&HISTORIES) {
                cases.push(Case { number: cases.len(), options: [one, other] });
            }
        }
    }
    cases
}

fn ms(ms: u64) -> Option<prost_types::Duration> {
    Some(Duration::from_millis(ms).try_into().expect("short"))
}

impl Case {
    pub fn has(&self, option: JobOption) -> bool {
        self.options.contains(&option)
    }

    fn has_one(&self, group: &[JobOption]) -> bool {
        group.iter().any(|option| self.has(*option))
    }

    pub fn task_type(&self) -> String {
        format!("pair.{}", self.number)
    }

    /// Returns the field that the broker refuses, because the two options contradict each other or an option lacks another one
    /// that it needs. Returns `None` if the pair is valid.
    pub fn refused(&self) -> Option<&'static str> {
        let wrong = [
            ("key_hold", self.has(JobOption::Hold) && !self.has_one(&POLICIES)),
            ("key_debounce_limit", self.has(JobOption::DebounceLimit) && !self.has(JobOption::Debounce)),
            ("expire_after", self.has(JobOption::Expired) && self.has_one(&[JobOption::Delay, JobOption::Debounce])),
            ("stage_payload", self.has(JobOption::SamePayload) && !self.has(JobOption::Stages)),
            ("on_dependency_failure", self.has(JobOption::RunAnyway) && !self.has_one(&PARENTS)),
        ];
        wrong.iter().filter(|(_, is_wrong)| *is_wrong).map(|(field, _)| *field).min_by_key(|field| {
            // The broker reports the first wrong field in its order of validation.
            ["key_hold", "key_debounce_limit", "stage_payload", "on_dependency_failure", "expire_after"]
                .iter()
                .position(|known| known == field)
        })
    }

    /// Returns the job with both options, without its dependencies.
    pub fn job(&self) -> NewJob {
        let retry_policy = RetryPolicy {
            kind: RetryPolicyKind::Fixed as i32,
            initial_delay: ms(1),
            jitter: Some(0.0),
            ..RetryPolicy::default()
        };
        let base = new_job(&self.task_type(), self.first_payload());
        let mut job = NewJob { retry_policy: Some(retry_policy), ..base.max_attempts(50) };
        job.headers.insert(CASE.into(), self.number.to_string());
        for option in self.options {
            apply(option, &mut job);
        }
        job
    }

    fn first_payload(&self) -> Vec<u8> {
        if self.has(JobOption::Large) { vec![b'x'; 3_000] } else { b"first".into() }
    }

    /// Returns a second job with the same key, which is enqueued before workers start, and its expected outcome; `None` if the
    /// case has no such job.
    pub fn second(&self) -> Option<(NewJob, EnqueueOutcome)> {
        if self.has(JobOption::Expired) || self.refused().is_some() {
            return None;
        }
        let outcomes = [
            (JobOption::Keep, EnqueueOutcome::Kept),
            (JobOption::Replace, EnqueueOutcome::Replaced),
            (JobOption::Newer, EnqueueOutcome::Stale),
            (JobOption::Reject, EnqueueOutcome::Unspecified),
            (JobOption::Debounce, EnqueueOutcome::Debounced),
        ];
        let (_, outcome) = outcomes.into_iter().find(|(option, _)| self.has(*option))?;
        let job = NewJob { on_dependency_failure: 0, ..self.job().payload(self.second_payload()) };
        Some((NewJob { key_version: job.key_version.map(|version| version - 1), ..job }, outcome))
    }

    fn second_payload(&self) -> Vec<u8> {
        if self.has(JobOption::Large) { vec![b'y'; 3_000] } else { b"second".into() }
    }

    /// Returns two more jobs under the same limit; none if the case has no limit.
    pub fn companions(&self) -> Vec<NewJob> {
        let keyed = self.has_one(&[
            JobOption::LimitKey,
            JobOption::OneAtATime,
            JobOption::Strict,
            JobOption::Gap,
            JobOption::KeyRate,
        ]);
        if !keyed && !self.has_one(&[JobOption::MaxRunning, JobOption::TypeRate]) {
            return Vec::new();
        }
        // Workers that vanish also use up attempts of the companions, so the companions have many attempts.
        let base = new_job(&self.task_type(), "").max_attempts(50);
        let mut job = NewJob { limit_key: if keyed { "k".into() } else { String::new() }, ..base };
        job.headers.insert(ROLE.into(), "companion".into());
        vec![job.clone(), job]
    }

    /// Settings of the case's task type; `None` for the defaults.
    pub fn settings(&self) -> Option<TaskTypeSettings> {
        let mut settings = TaskTypeSettings::default();
        let rate = |per_second| Some(Rate { per_second, burst: 1 });
        for option in self.options {
            match option {
                JobOption::OneAtATime => settings.key_max_running = 1,
                JobOption::Strict => (settings.key_max_running, settings.key_strict_order) = (1, true),
                JobOption::Gap => settings.key_min_gap = ms(5),
                JobOption::KeyRate => settings.key_rate = rate(100.0),
                JobOption::MaxRunning => settings.max_running = 1,
                JobOption::TypeRate => settings.rate = rate(100.0),
                JobOption::HistoryNone => settings.history = HistoryMode::None as i32,
                JobOption::HistoryFailures => settings.history = HistoryMode::Failures as i32,
                JobOption::HistoryWithoutEmpty => settings.history = HistoryMode::WithoutEmpty as i32,
                JobOption::Paused => settings.paused = true,
                _ => {}
            }
        }
        (settings != TaskTypeSettings::default()).then_some(settings)
    }

    /// Returns what the worker does in the given attempt of the case's job in this task type.
    pub fn action(&self, task_type: &str, attempt: u32) -> WorkerAction {
        if task_type == NEXT {
            return WorkerAction::Ack("done");
        }
        let troubles = [
            (JobOption::FailsOnce, WorkerAction::Retry),
            (JobOption::Timeout, WorkerAction::Ignore),
            (JobOption::Vanishes, WorkerAction::Vanish),
        ];
        let mut troubles = troubles.iter().filter(|(option, _)| self.has(*option));
        if task_type == FALLBACK {
            return if self.has(JobOption::Fatal) { WorkerAction::Fail } else { WorkerAction::Ack("done") };
        }
        match troubles.nth(attempt as usize - 1) {
            Some((_, action)) => *action,
            None if self.has_one(&[JobOption::Fatal, JobOption::Fallback]) => WorkerAction::Fail,
            None if self.has(JobOption::Stages) => WorkerAction::Ack("staged"),
            None if self.has(JobOption::HistoryWithoutEmpty) => WorkerAction::Ack(""),
            None => WorkerAction::Ack("done"),
        }
    }

    /// Returns the expected final state of the case's job; `None` if history does not keep the job.
    pub fn ending(&self) -> Option<Ending> {
        let fails_first = self.has_one(&[JobOption::FailsOnce, JobOption::Timeout, JobOption::Vanishes]);
        let replaced = self.second().is_some() && self.has_one(&[JobOption::Replace, JobOption::Debounce]);
        let payload = if replaced { self.second_payload() } else { self.first_payload() };
        let succeeded =
            Ending { state: "succeeded", task_type: self.task_type(), payload, result: "", failed: fails_first };
        Some(if self.has(JobOption::Expired) {
            Ending { state: "expired", failed: false, ..succeeded }
        } else if self.has(JobOption::AfterDead) && !self.has(JobOption::RunAnyway) {
            Ending { state: "cancelled", failed: true, ..succeeded }
        } else if self.has(JobOption::Fallback) {
            let (state, result) = if self.has(JobOption::Fatal) { ("dead", "") } else { ("succeeded", "done") };
            Ending { state, result, task_type: FALLBACK.into(), failed: true, ..succeeded }
        } else if self.has(JobOption::Fatal) {
            Ending { state: "dead", failed: true, ..succeeded }
        } else if self.has(JobOption::Stages) {
            let payload = if self.has(JobOption::SamePayload) { succeeded.payload } else { b"staged".into() };
            Ending { task_type: NEXT.into(), payload, result: "done", ..succeeded }
        } else if self.has(JobOption::HistoryNone) || !fails_first && self.has_one(&HISTORIES) {
            return None;
        } else {
            let result = if self.has(JobOption::HistoryWithoutEmpty) { "" } else { "done" };
            Ending { result, ..succeeded }
        })
    }
}

/// Sets the option in the job. Settings of the task type and dependencies are set elsewhere.
fn apply(option: JobOption, job: &mut NewJob) {
    let key = |policy: KeyPolicy| ("doc-7".to_owned(), policy as i32);
    match option {
        JobOption::Priority => job.priority = 7,
        JobOption::Delay => job.start = Some(Start::Delay(ms(100).expect("short"))),
        JobOption::ExpiresLater => job.expiry = Some(Expiry::ExpireAfter(ms(3_600_000).expect("short"))),
        JobOption::Expired => job.expiry = Some(Expiry::ExpireAfter(ms(1).expect("short"))),
        JobOption::Timeout => job.timeout = ms(700),
        JobOption::Fallback => job.fallback = FALLBACK.into(),
        JobOption::FairKey => job.fair_key = "tenant".into(),
        JobOption::Keep => job.key = "doc-7".into(),
        JobOption::Replace => (job.key, job.key_policy) = key(KeyPolicy::Replace),
        JobOption::Newer => {
            (job.key, job.key_policy) = key(KeyPolicy::ReplaceIfNewer);
            job.key_version = Some(2);
        }
        JobOption::Reject => (job.key, job.key_policy) = key(KeyPolicy::Reject),
        JobOption::Debounce => {
            (job.key, job.key_policy) = key(KeyPolicy::Debounce);
            job.start = Some(Start::Delay(ms(100).expect("short")));
        }
        JobOption::Hold => job.key_hold = ms(3_600_000),
        JobOption::DebounceLimit => job.key_debounce_limit = ms(1_000),
        JobOption::Stages => job.next_stages = vec![NEXT.into()],
        JobOption::SamePayload => job.stage_payload = StagePayload::Unchanged as i32,
        JobOption::RunAnyway => job.on_dependency_failure = DependencyFailure::Run as i32,
        JobOption::LimitKey | JobOption::OneAtATime | JobOption::Strict | JobOption::Gap | JobOption::KeyRate => {
            job.limit_key = "k".into()
        }
        _ => {}
    }
}
