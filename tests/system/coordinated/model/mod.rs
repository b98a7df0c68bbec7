//! Runs random sequences of operations on coordinated jobs, at two brokers, and compares the result with a model in memory. No
//! job is lost or duplicated, no slot of a limit key is lost or counted twice, and keys and dependencies are correct.

mod memory;
mod stored;

use std::sync::LazyLock;

use howdah_core::job::{DependencyFailure, KeyPolicy};
use howdah_engine::store::Action;
use memory::{EnqueueOptions, Model, State, TYPES};
use proptest::prelude::*;
use stored::Stored;
use tokio::runtime::Runtime;

use crate::support::sized;

/// Number of keys, and of limit keys, that the jobs use.
const KEYS: u8 = 2;

/// A random operation. A job is given as a number, modulo the number of jobs in a suitable state.
#[derive(Clone, Debug)]
enum Step {
    Enqueue {
        options: EnqueueOptions,
        after: Vec<usize>,
    },
    Claim {
        broker: usize,
        jobs: usize,
    },
    Ack {
        job: usize,
    },
    Nack {
        job: usize,
        action: Action,
        later: bool,
    },
    Cancel {
        job: usize,
    },
    RetryDead {
        job: usize,
    },
    Expire,
    Promote,
    /// A broker dies, its leases are released, and it restarts.
    Lose {
        broker: usize,
    },
    Limits {
        limit: Option<usize>,
        strict: bool,
        max_running: Option<usize>,
    },
    Admit,
}

fn enqueue() -> impl Strategy<Value = Step> {
    let key = prop::option::weighted(0.5, 0..KEYS);
    let policy = prop_oneof![
        1 => Just(KeyPolicy::Keep),
        1 => Just(KeyPolicy::Reject),
        2 => Just(KeyPolicy::Debounce),
        4 => Just(KeyPolicy::Replace),
    ];
    let on_failure =
        prop_oneof![Just(DependencyFailure::Cancel), Just(DependencyFailure::Run), Just(DependencyFailure::Wait)];
    let after = prop_oneof![2 => Just(vec![]), 1 => prop::collection::vec(0..8_usize, 1..3)];
    let some = || prop::bool::weighted(0.25);
    let limit_key = prop::option::weighted(0.6, 0..KEYS);
    (key, (policy, some()), limit_key, on_failure, after, some(), some(), some()).prop_map(
        |(key, (policy, waits_for_retries), limit_key, on_failure, after, staged, expires, delayed)| {
            let policy = if key.is_some() { policy } else { KeyPolicy::Keep };
            let delayed = delayed || policy == KeyPolicy::Debounce;
            let after_jobs = std::collections::BTreeSet::new();
            let options = EnqueueOptions {
                key,
                policy,
                waits_for_retries,
                limit_key,
                after: after_jobs,
                on_failure,
                staged,
                expires,
                delayed,
            };
            Step::Enqueue { options, after }
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let job = || 0..12_usize;
    let action = prop_oneof![
        3 => Just(Action::Retry),
        2 => Just(Action::Dead),
        1 => Just(Action::Snooze),
        1 => Just(Action::Release),
    ];
    prop_oneof![
        10 => enqueue(),
        6 => (0..2_usize, 1..4_usize).prop_map(|(broker, jobs)| Step::Claim { broker, jobs }),
        6 => job().prop_map(|job| Step::Ack { job }),
        5 => (job(), action, any::<bool>()).prop_map(|(job, action, later)| Step::Nack { job, action, later }),
        2 => job().prop_map(|job| Step::Cancel { job }),
        2 => job().prop_map(|job| Step::RetryDead { job }),
        1 => Just(Step::Expire),
        2 => Just(Step::Promote),
        1 => (0..2_usize).prop_map(|broker| Step::Lose { broker }),
        2 => (prop::option::weighted(0.8, 1..4_usize), any::<bool>(), prop::option::weighted(0.3, 1..4_usize)).prop_map(
            |(limit, strict, max_running)| Step::Limits { limit, strict: strict && limit.is_some(), max_running }
        ),
        6 => Just(Step::Admit),
    ]
}

/// The model in memory and the database, which must agree.
struct Case {
    model: Model,
    stored: Stored,
}

impl Case {
    /// Returns the `n`-th job whose state satisfies `has`, modulo the number of such jobs; `None` if no job does.
    fn one(&self, n: usize, has: impl Fn(State) -> bool) -> Option<usize> {
        let those: Vec<usize> = (0..self.model.jobs.len()).filter(|&i| has(self.model.jobs[i].state)).collect();
        (!those.is_empty()).then(|| those[n % those.len()])
    }

    async fn apply(&mut self, step: Step) {
        let leased = |state: State| matches!(state, State::Leased(_));
        match step {
            Step::Enqueue { mut options, after } => {
                options.after = after.into_iter().filter_map(|n| self.one(n, |_| true)).collect();
                let actual = self.stored.enqueue(&options).await;
                let expected = self.model.enqueue(options);
                assert_eq!(actual, expected, "result of the enqueue");
            }
            Step::Claim { broker, jobs } => self.claim(broker, jobs).await,
            Step::Ack { job } => {
                let Some(i) = self.one(job, leased) else { return };
                self.stored.ack(i).await;
                self.model.ack(i);
            }
            Step::Nack { job, action, later } => {
                let Some(i) = self.one(job, leased) else { return };
                self.stored.nack(i, action, later).await;
                self.model.nack(i, action, later);
            }
            Step::Cancel { job } => {
                let Some(i) = self.one(job, |_| true) else { return };
                self.stored.cancel(i).await;
                self.model.cancel(i);
            }
            Step::RetryDead { job } => {
                let Some(i) = self.one(job, |state| state == State::Dead) else { return };
                self.stored.retry(i).await;
                self.model.retry_dead(i);
            }
            Step::Expire => {
                self.stored.expire().await;
                self.model.expire();
            }
            Step::Promote => {
                self.stored.promote().await;
                self.model.promote();
            }
            Step::Lose { broker } => {
                self.stored.lose(broker).await;
                self.model.lose(broker);
            }
            Step::Limits { limit, strict, max_running } => {
                self.stored.set_limits(limit, strict, max_running).await;
                self.model.set_limit(limit, strict);
                self.model.max_running = max_running;
            }
            Step::Admit => self.admit().await,
        }
    }

    /// Postgres decides which jobs are claimed; the model predicts only their number.
    async fn claim(&mut self, broker: usize, at_most: usize) {
        for type_id in TYPES {
            let there = self.model.may_begin(type_id);
            let is_limited = self.model.max_running.is_some();
            let claimed = self.stored.claim(broker, type_id, at_most, is_limited).await;
            assert_eq!(claimed.len(), at_most.min(there), "jobs claimed of type {type_id}");
            for i in claimed {
                let job = &mut self.model.jobs[i];
                assert_eq!(
                    (job.state, job.type_id),
                    (State::Ready, type_id),
                    "state of the claimed job {i} in the model"
                );
                (job.state, job.attempt) = (State::Leased(broker), job.attempt + 1);
            }
        }
    }

    /// Makes waiting jobs of each limit key ready, in order, as far as slots are free.
    async fn admit(&mut self) {
        let order = self.stored.waiting_in_order().await;
        self.stored.admit().await;
        for (type_id, limit_key) in limits() {
            let (waiting, may_run) = self.model.waiting(type_id, limit_key);
            for &i in order.iter().filter(|i| waiting.contains(i)).take(may_run) {
                self.model.jobs[i].state = State::Ready;
            }
        }
    }

    /// Asserts that the model equals the database. Also asserts that a check is due for each limit with free slots and waiting
    /// jobs.
    async fn check(&self) {
        assert_eq!(
            self.stored.jobs().await,
            self.model.jobs.iter().map(|j| (j.state, j.attempt, j.type_id)).collect::<Vec<_>>()
        );
        assert_eq!(self.stored.keys().await, self.model.keys);
        let after =
            |(i, job): (usize, &memory::Job)| job.after.iter().map(move |parent| (i, *parent)).collect::<Vec<_>>();
        let mut dependencies: Vec<_> = self.model.jobs.iter().enumerate().flat_map(after).collect();
        dependencies.sort_unstable();
        assert_eq!(self.stored.dependencies().await, dependencies);
        let due = self.stored.due_limits().await;
        for limit in limits() {
            let may_run = self.model.waiting(limit.0, limit.1).1;
            assert!(
                may_run == 0 || due.contains(&limit),
                "{may_run} jobs may run at the limit {limit:?}, and no check of it is due"
            );
        }
    }
}

fn limits() -> impl Iterator<Item = (i32, u8)> {
    TYPES.into_iter().flat_map(|type_id| (0..KEYS).map(move |key| (type_id, key)))
}

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("runtime"));

proptest! {
    #![proptest_config(ProptestConfig { cases: sized(8, 24), max_shrink_iters: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_steps_leave_the_jobs_in_the_states_that_the_model_predicts(steps in prop::collection::vec(step(), 1..70)) {
        RUNTIME.block_on(async {
            let mut case = Case { model: Model::default(), stored: Stored::begin().await };
            for step in steps {
                case.apply(step).await;
                case.check().await;
            }
        });
    }
}
