//! The table: what can be asked for, and what must come of two of them together.

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
/// Says which case a job is of, and what it is there.
pub const CASE: &str = "case";
pub const ROLE: &str = "role";

macro_rules! asks {
    ($($name:ident),* $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Ask { $($name),* }
        const ALL: &[Ask] = &[$(Ask::$name),*];
    };
}

asks! {
    // What is asked of the job's place and time, and how its attempts end.
    Priority, Delay, ExpiresLater, Expired, Timeout, FailsOnce, Fatal, Vanishes, Fallback, Large, FairKey, RequestKey,
    // Keys; another job comes with the same one.
    Keep, Replace, Newer, Reject, Debounce, Hold, DebounceLimit,
    // Other types and other jobs.
    Stages, SamePayload, After, AfterLocal, AfterDead, RunAnyway,
    // Limits: two more jobs are there.
    LimitKey, OneAtATime, Strict, Gap, KeyRate, MaxRunning, TypeRate,
    HistoryNone, HistoryFailures, HistoryWithoutEmpty, Paused,
}

const POLICIES: [Ask; 5] = [Ask::Keep, Ask::Replace, Ask::Newer, Ask::Reject, Ask::Debounce];
const HISTORIES: [Ask; 3] = [Ask::HistoryNone, Ask::HistoryFailures, Ask::HistoryWithoutEmpty];
const PARENTS: [Ask; 3] = [Ask::After, Ask::AfterLocal, Ask::AfterDead];

/// Two options, on a task type of their own.
#[derive(Clone, Debug)]
pub struct Case {
    pub number: usize,
    asks: [Ask; 2],
}

/// What a worker does with a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    Ack(&'static str),
    Retry,
    Fail,
    /// Nothing, until the attempt is over.
    Ignore,
    Vanish,
}

/// How the job must be found; `None` of them: not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    pub state: &'static str,
    pub task_type: String,
    pub payload: Vec<u8>,
    pub result: &'static str,
    pub failed: bool,
}

/// All pairs that can meet.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, &one) in ALL.iter().enumerate() {
        for &other in &ALL[i + 1..] {
            let both = |group: &[Ask]| group.contains(&one) && group.contains(&other);
            // There is one field for each of these.
            if !both(&POLICIES) && !both(&HISTORIES) {
                cases.push(Case { number: cases.len(), asks: [one, other] });
            }
        }
    }
    cases
}

fn ms(ms: u64) -> Option<prost_types::Duration> {
    Some(Duration::from_millis(ms).try_into().expect("short"))
}

impl Case {
    pub fn has(&self, ask: Ask) -> bool {
        self.asks.contains(&ask)
    }

    fn has_one(&self, group: &[Ask]) -> bool {
        group.iter().any(|ask| self.has(*ask))
    }

    pub fn task_type(&self) -> String {
        format!("pair.{}", self.number)
    }

    /// The field that is wrong, if the two contradict each other, or one needs what the other is not.
    pub fn refused(&self) -> Option<&'static str> {
        let wrong = [
            ("key_hold", self.has(Ask::Hold) && !self.has_one(&POLICIES)),
            ("key_debounce_limit", self.has(Ask::DebounceLimit) && !self.has(Ask::Debounce)),
            ("expire_after", self.has(Ask::Expired) && self.has_one(&[Ask::Delay, Ask::Debounce])),
            ("stage_payload", self.has(Ask::SamePayload) && !self.has(Ask::Stages)),
            ("on_dependency_failure", self.has(Ask::RunAnyway) && !self.has_one(&PARENTS)),
        ];
        wrong.iter().filter(|(_, is_wrong)| *is_wrong).map(|(field, _)| *field).min_by_key(|field| {
            // In the order in which they are looked at.
            ["on_dependency_failure", "key_hold", "key_debounce_limit", "expire_after", "stage_payload"]
                .iter()
                .position(|known| known == field)
        })
    }

    /// Without those that it waits for.
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
        for ask in self.asks {
            apply(ask, &mut job);
        }
        job
    }

    fn first_payload(&self) -> Vec<u8> {
        if self.has(Ask::Large) { vec![b'x'; 3_000] } else { b"first".into() }
    }

    /// Another job with the key, and what its enqueue is told; it comes before any worker.
    pub fn second(&self) -> Option<(NewJob, EnqueueOutcome)> {
        if self.has(Ask::Expired) || self.refused().is_some() {
            return None;
        }
        let told = [
            (Ask::Keep, EnqueueOutcome::Kept),
            (Ask::Replace, EnqueueOutcome::Replaced),
            (Ask::Newer, EnqueueOutcome::Stale),
            (Ask::Reject, EnqueueOutcome::Unspecified),
            (Ask::Debounce, EnqueueOutcome::Debounced),
        ];
        let (_, told) = told.into_iter().find(|(ask, _)| self.has(*ask))?;
        let job = NewJob { on_dependency_failure: 0, ..self.job().payload(self.second_payload()) };
        Some((NewJob { key_version: job.key_version.map(|version| version - 1), ..job }, told))
    }

    fn second_payload(&self) -> Vec<u8> {
        if self.has(Ask::Large) { vec![b'y'; 3_000] } else { b"second".into() }
    }

    /// Jobs beside it, that count for the same limits.
    pub fn companions(&self) -> Vec<NewJob> {
        let keyed = self.has_one(&[Ask::LimitKey, Ask::OneAtATime, Ask::Strict, Ask::Gap, Ask::KeyRate]);
        if !keyed && !self.has_one(&[Ask::MaxRunning, Ask::TypeRate]) {
            return Vec::new();
        }
        // As often as anybody may vanish with them.
        let base = new_job(&self.task_type(), "").max_attempts(50);
        let mut job = NewJob { limit_key: if keyed { "k".into() } else { String::new() }, ..base };
        job.headers.insert(ROLE.into(), "companion".into());
        vec![job.clone(), job]
    }

    /// What its type is set to.
    pub fn settings(&self) -> Option<TaskTypeSettings> {
        let mut settings = TaskTypeSettings::default();
        let rate = |per_second| Some(Rate { per_second, burst: 1 });
        for ask in self.asks {
            match ask {
                Ask::OneAtATime => settings.key_max_running = 1,
                Ask::Strict => (settings.key_max_running, settings.key_strict_order) = (1, true),
                Ask::Gap => settings.key_min_gap = ms(5),
                Ask::KeyRate => settings.key_rate = rate(100.0),
                Ask::MaxRunning => settings.max_running = 1,
                Ask::TypeRate => settings.rate = rate(100.0),
                Ask::HistoryNone => settings.history = HistoryMode::None as i32,
                Ask::HistoryFailures => settings.history = HistoryMode::Failures as i32,
                Ask::HistoryWithoutEmpty => settings.history = HistoryMode::WithoutEmpty as i32,
                Ask::Paused => settings.paused = true,
                _ => {}
            }
        }
        (settings != TaskTypeSettings::default()).then_some(settings)
    }

    /// What a worker does with the n-th attempt of its job in a type.
    pub fn deed(&self, task_type: &str, attempt: u32) -> Deed {
        if task_type == NEXT {
            return Deed::Ack("done");
        }
        let troubles = [(Ask::FailsOnce, Deed::Retry), (Ask::Timeout, Deed::Ignore), (Ask::Vanishes, Deed::Vanish)];
        let mut troubles = troubles.iter().filter(|(ask, _)| self.has(*ask));
        if task_type == FALLBACK {
            return if self.has(Ask::Fatal) { Deed::Fail } else { Deed::Ack("done") };
        }
        match troubles.nth(attempt as usize - 1) {
            Some((_, deed)) => *deed,
            None if self.has_one(&[Ask::Fatal, Ask::Fallback]) => Deed::Fail,
            None if self.has(Ask::Stages) => Deed::Ack("staged"),
            None if self.has(Ask::HistoryWithoutEmpty) => Deed::Ack(""),
            None => Deed::Ack("done"),
        }
    }

    /// How it must end.
    pub fn ending(&self) -> Option<Ending> {
        let troubled = self.has_one(&[Ask::FailsOnce, Ask::Timeout, Ask::Vanishes]);
        let replaced = self.second().is_some() && self.has_one(&[Ask::Replace, Ask::Debounce]);
        let payload = if replaced { self.second_payload() } else { self.first_payload() };
        let own = Ending { state: "succeeded", task_type: self.task_type(), payload, result: "", failed: troubled };
        Some(if self.has(Ask::Expired) {
            Ending { state: "expired", failed: false, ..own }
        } else if self.has(Ask::AfterDead) && !self.has(Ask::RunAnyway) {
            Ending { state: "cancelled", failed: true, ..own }
        } else if self.has(Ask::Fallback) {
            let (state, result) = if self.has(Ask::Fatal) { ("dead", "") } else { ("succeeded", "done") };
            Ending { state, result, task_type: FALLBACK.into(), failed: true, ..own }
        } else if self.has(Ask::Fatal) {
            Ending { state: "dead", failed: true, ..own }
        } else if self.has(Ask::Stages) {
            let payload = if self.has(Ask::SamePayload) { own.payload } else { b"staged".into() };
            Ending { task_type: NEXT.into(), payload, result: "done", ..own }
        } else if self.has(Ask::HistoryNone) || !troubled && self.has_one(&HISTORIES) {
            return None;
        } else {
            let result = if self.has(Ask::HistoryWithoutEmpty) { "" } else { "done" };
            Ending { result, ..own }
        })
    }
}

/// What an option says of a job. Those of its type, and those that name other jobs, say nothing here.
fn apply(ask: Ask, job: &mut NewJob) {
    let key = |policy: KeyPolicy| ("doc-7".to_owned(), policy as i32);
    match ask {
        Ask::Priority => job.priority = 7,
        Ask::Delay => job.start = Some(Start::Delay(ms(100).expect("short"))),
        Ask::ExpiresLater => job.expiry = Some(Expiry::ExpireAfter(ms(3_600_000).expect("short"))),
        Ask::Expired => job.expiry = Some(Expiry::ExpireAfter(ms(1).expect("short"))),
        Ask::Timeout => job.timeout = ms(700),
        Ask::Fallback => job.fallback = FALLBACK.into(),
        Ask::FairKey => job.fair_key = "tenant".into(),
        Ask::Keep => job.key = "doc-7".into(),
        Ask::Replace => (job.key, job.key_policy) = key(KeyPolicy::Replace),
        Ask::Newer => {
            (job.key, job.key_policy) = key(KeyPolicy::ReplaceIfNewer);
            job.key_version = Some(2);
        }
        Ask::Reject => (job.key, job.key_policy) = key(KeyPolicy::Reject),
        Ask::Debounce => {
            (job.key, job.key_policy) = key(KeyPolicy::Debounce);
            job.start = Some(Start::Delay(ms(100).expect("short")));
        }
        Ask::Hold => job.key_hold = ms(3_600_000),
        Ask::DebounceLimit => job.key_debounce_limit = ms(1_000),
        Ask::Stages => job.next_stages = vec![NEXT.into()],
        Ask::SamePayload => job.stage_payload = StagePayload::Unchanged as i32,
        Ask::RunAnyway => job.on_dependency_failure = DependencyFailure::Run as i32,
        Ask::LimitKey | Ask::OneAtATime | Ask::Strict | Ask::Gap | Ask::KeyRate => job.limit_key = "k".into(),
        _ => {}
    }
}
