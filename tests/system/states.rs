//! Tests random sequences of store operations against a simple model. Every job is in exactly one table, moved there by a
//! permitted transition, with the right number of attempts.

use std::{
    collections::{BTreeMap, HashSet},
    sync::LazyLock,
    time::Duration,
};

use howdah_core::{
    config::Config,
    job::{Lease, NewJob, Start, TaskTypeName, Tokens},
};
use howdah_engine::store::{
    Action, Actor, ClaimRequest, KeyedJob, Nack, PlainJob, RequestColumns, RequestKeys, ShortHistories, Store, Want,
};
use proptest::prelude::*;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};
use tokio::runtime::Runtime;

use crate::support::{TestDatabase, database};

const MAX_ATTEMPTS: i16 = 3;
const TYPE: i32 = 1;

/// State of a job in the model.
#[derive(Clone, Debug, PartialEq, Eq)]
enum JobState {
    Ready,
    Leased { broker: usize },
    Scheduled,
    Dead,
    Finished(i16),
}

/// The model of the store: jobs in the order of their creation.
#[derive(Clone, Debug, Default)]
struct Model {
    jobs: BTreeMap<usize, (JobState, i16)>,
}

#[derive(Clone, Debug)]
enum Step {
    Enqueue {
        jobs: usize,
        delayed: bool,
    },
    /// Enqueues jobs directly into `leased`, assigned to one of two brokers.
    EnqueueDirect {
        jobs: usize,
        broker: usize,
    },
    /// Claims all ready jobs for one of two brokers.
    Claim {
        broker: usize,
    },
    Ack {
        job: usize,
        right_token: bool,
    },
    Nack {
        job: usize,
        action: Action,
        delayed: bool,
        right_token: bool,
        right_owner: bool,
    },
    /// Makes scheduled jobs due.
    Promote,
    /// Broker 1 expires, another broker rescues its leases, and broker 1 registers again.
    Rescue,
    Adopt {
        job: usize,
        broker: usize,
    },
    Cancel {
        job: usize,
    },
}

impl ReferenceStateMachine for Model {
    type State = Model;
    type Transition = Step;

    fn init_state() -> BoxedStrategy<Model> {
        Just(Model::default()).boxed()
    }

    fn transitions(model: &Model) -> BoxedStrategy<Step> {
        let job = 0..model.jobs.len().max(1);
        let action = prop_oneof![
            Just(Action::Retry),
            Just(Action::Dead),
            Just(Action::Snooze),
            Just(Action::Release),
            Just(Action::Lost)
        ];
        let mostly = || prop::bool::weighted(0.8);
        prop_oneof![
            3 => (1..4usize, any::<bool>()).prop_map(|(jobs, delayed)| Step::Enqueue { jobs, delayed }),
            1 => (1..4usize, 0..2usize).prop_map(|(jobs, broker)| Step::EnqueueDirect { jobs, broker }),
            3 => (0..2usize).prop_map(|broker| Step::Claim { broker }),
            3 => (job.clone(), mostly()).prop_map(|(job, right_token)| Step::Ack { job, right_token }),
            5 => (job.clone(), action, any::<bool>(), mostly(), mostly()).prop_map(
                |(job, action, delayed, right_token, right_owner)| Step::Nack { job, action, delayed, right_token, right_owner }
            ),
            2 => Just(Step::Promote),
            1 => Just(Step::Rescue),
            1 => (job.clone(), 0..2usize).prop_map(|(job, broker)| Step::Adopt { job, broker }),
            1 => job.prop_map(|job| Step::Cancel { job }),
        ]
        .boxed()
    }

    fn apply(mut model: Model, step: &Step) -> Model {
        match step {
            Step::Enqueue { jobs, delayed } => {
                for _ in 0..*jobs {
                    let state = if *delayed { JobState::Scheduled } else { JobState::Ready };
                    model.jobs.insert(model.jobs.len(), (state, 0));
                }
            }
            Step::EnqueueDirect { jobs, broker } => {
                for _ in 0..*jobs {
                    model.jobs.insert(model.jobs.len(), (JobState::Leased { broker: *broker }, 1));
                }
            }
            Step::Claim { broker } => {
                for (state, attempt) in model.jobs.values_mut().filter(|(state, _)| *state == JobState::Ready) {
                    *state = JobState::Leased { broker: *broker };
                    *attempt += 1;
                }
            }
            Step::Ack { job, right_token } => {
                if let Some((state @ JobState::Leased { .. }, _)) = model.jobs.get_mut(job)
                    && *right_token
                {
                    *state = JobState::Finished(6);
                }
            }
            Step::Nack { job, action, delayed, right_token, right_owner } => {
                if let Some((state @ JobState::Leased { .. }, attempt)) = model.jobs.get_mut(job)
                    && *right_token
                    && *right_owner
                {
                    nack(state, attempt, *action, *delayed);
                }
            }
            Step::Promote => {
                model
                    .jobs
                    .values_mut()
                    .filter(|(p, _)| *p == JobState::Scheduled)
                    .for_each(|(p, _)| *p = JobState::Ready);
            }
            Step::Rescue => {
                for (state, attempt) in model.jobs.values_mut() {
                    if matches!(state, JobState::Leased { broker: 1, .. }) {
                        *state = if *attempt >= MAX_ATTEMPTS { JobState::Dead } else { JobState::Ready };
                    }
                }
            }
            Step::Adopt { job, broker } => {
                if let Some((JobState::Leased { broker: owner, .. }, _)) = model.jobs.get_mut(job) {
                    *owner = *broker;
                }
            }
            Step::Cancel { job } => {
                if let Some((state, _)) = model.jobs.get_mut(job)
                    && !matches!(state, JobState::Finished(_))
                {
                    *state = JobState::Finished(7);
                }
            }
        }
        model
    }
}

fn nack(state: &mut JobState, attempt: &mut i16, action: Action, delayed: bool) {
    let later = if delayed { JobState::Scheduled } else { JobState::Ready };
    *state = match action {
        Action::Dead | Action::Fallback | Action::Superseded => JobState::Dead,
        Action::Retry | Action::Lost if *attempt >= MAX_ATTEMPTS => JobState::Dead,
        Action::Retry => later,
        Action::Lost => JobState::Ready,
        Action::Snooze => {
            *attempt -= 1;
            later
        }
        Action::Release => {
            *attempt -= 1;
            JobState::Ready
        }
    };
}

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("runtime"));

/// The real store, and the database id of each job of the model.
struct Real {
    database: TestDatabase,
    store: Store,
    brokers: [i32; 2],
    ids: Vec<i64>,
    tokens: BTreeMap<i64, i64>,
}

impl StateMachineTest for Real {
    type SystemUnderTest = Real;
    type Reference = Model;

    fn init_test(_: &Model) -> Real {
        let (database, store, brokers) = RUNTIME.block_on(async {
            let database = database().await;
            let store = Store::new(&Config::new(&database.url)).expect("store");
            store.create_task_types(&["t"], "").await.expect("type");
            let lease = Duration::from_secs(3600);
            let brokers = [
                store.register_broker("a", lease).await.expect("broker"),
                store.register_broker("b", lease).await.expect("broker"),
            ];
            (database, store, brokers)
        });
        Real { database, store, brokers, ids: Vec::new(), tokens: BTreeMap::new() }
    }

    fn apply(mut real: Real, _: &Model, step: Step) -> Real {
        RUNTIME.block_on(real.step(&step));
        real
    }

    fn check_invariants(real: &Real, model: &Model) {
        RUNTIME.block_on(real.check(model));
    }
}

impl Real {
    async fn step(&mut self, step: &Step) {
        match step {
            Step::Enqueue { jobs, delayed } => self.enqueue(*jobs, *delayed).await,
            Step::EnqueueDirect { jobs, broker } => self.enqueue_direct(*jobs, self.brokers[*broker]).await,
            Step::Claim { broker } => self.claim(self.brokers[*broker]).await,
            Step::Ack { job, right_token } => {
                if let Some(lease) = self.lease(*job, *right_token) {
                    self.store.settle_acks(&[(lease, b"done")], &ShortHistories::default(), None).await.expect("ack");
                }
            }
            Step::Nack { job, action, delayed, right_token, right_owner } => {
                let Some(lease) = self.lease(*job, *right_token) else { return };
                let delay_ms = if *delayed { 3_600_000 } else { 0 };
                let nack = Nack { lease, action: *action, delay_ms, error: Some("no".into()) };
                let owner = (!right_owner).then_some(i32::MAX);
                self.store
                    .settle_nacks(&[nack], owner.as_ref().map(std::slice::from_ref), false, &mut Vec::new())
                    .await
                    .expect("nack");
            }
            Step::Promote => {
                self.sql("UPDATE howdah.scheduled SET run_at = now() - interval '1 second'").await;
                self.store.promote(None, 1_000).await.expect("promote");
            }
            Step::Rescue => {
                self.sql(&format!(
                    "UPDATE howdah.broker SET expires = now() - interval '1 second' WHERE id = {}",
                    self.brokers[1]
                ))
                .await;
                self.store.rescue(1_000, self.brokers[0]).await.expect("rescue");
                self.store.delete_expired_brokers().await.expect("purge");
                self.brokers[1] = self.store.register_broker("b", Duration::from_secs(3600)).await.expect("broker");
            }
            Step::Adopt { job, broker } => {
                if let Some(lease) = self.lease(*job, true) {
                    self.store.adopt(&[lease], self.brokers[*broker], None).await.expect("adopt");
                }
            }
            Step::Cancel { job } => {
                if let Some(id) = self.ids.get(*job) {
                    self.store.cancel(&vec![*id].into(), None, &Actor::of_session("test")).await.expect("cancel");
                }
            }
        }
    }

    async fn enqueue(&mut self, count: usize, delayed: bool) {
        let start = if delayed { Start::After(Duration::from_secs(3600)) } else { Start::Now };
        let job = new_job(start);
        let plain = PlainJob { job: &job, type_id: TYPE, max_attempts: MAX_ATTEMPTS, rank_base: 0, out_of_line: false };
        if delayed {
            let jobs = vec![KeyedJob { plain, request_no: 0 }; count];
            let transaction = self.store.enqueue_keyed(&jobs, &RequestColumns::default()).await.expect("enqueue");
            self.ids.extend(transaction.stored.jobs.iter().map(|(id, _)| *id));
            transaction.commit().await.expect("commit");
        } else {
            self.ids.extend(
                self.store.enqueue_plain(&vec![plain; count], RequestKeys::default()).await.expect("enqueue").ids,
            );
        }
    }

    async fn enqueue_direct(&mut self, count: usize, broker: i32) {
        let job = new_job(Start::Now);
        let plain = PlainJob {
            job: &job,
            type_id: TYPE,
            max_attempts: MAX_ATTEMPTS,
            rank_base: 0,
            out_of_line: count.is_multiple_of(2),
        };
        let keys = RequestKeys::default();
        let stored = self.store.enqueue_direct(&vec![plain; count], keys, broker, &Tokens::draw(count)).await;
        for lease in stored.expect("enqueue").expect("the broker lives").leases {
            self.ids.push(lease.id);
            self.tokens.insert(lease.id, lease.token);
        }
    }

    async fn claim(&mut self, broker: i32) {
        let want = Want { type_id: TYPE, jobs: 1_000, floor: i64::MIN, largest: i64::MAX };
        let request = ClaimRequest { broker_id: Some(broker), ..ClaimRequest::new(vec![want], HashSet::new(), 1_000) };
        for job in self.store.claim(&request).await.expect("claim").jobs {
            let old = self.tokens.insert(job.lease.id, job.lease.token);
            assert_ne!(old, Some(job.lease.token), "a token came twice");
        }
    }

    /// Returns the latest lease of a job, or a lease with a forged token.
    fn lease(&self, job: usize, right_token: bool) -> Option<Lease> {
        let id = *self.ids.get(job)?;
        let token = *self.tokens.get(&id)?;
        Some(Lease { id, token: if right_token { token } else { token ^ 1 } })
    }

    async fn sql(&self, sql: &str) {
        self.database.connect().await.batch_execute(sql).await.expect(sql);
    }

    async fn check(&self, model: &Model) {
        let rows = self.database.connect().await;
        let rows = rows.query("SELECT id, state, attempt FROM howdah.job ORDER BY id", &[]).await.expect("view");
        assert_eq!(rows.len(), model.jobs.len(), "a job is lost, or in two tables");
        for (row, (number, (state, attempt))) in rows.iter().zip(&model.jobs) {
            let expected = match state {
                JobState::Ready => "ready",
                JobState::Leased { .. } => "leased",
                JobState::Scheduled => "scheduled",
                JobState::Dead => "dead",
                JobState::Finished(6) => "succeeded",
                JobState::Finished(_) => "cancelled",
            };
            assert_eq!(row.get::<_, i64>("id"), self.ids[*number]);
            assert_eq!(row.get::<_, String>("state"), expected, "job {number}");
            assert_eq!(row.get::<_, i16>("attempt"), *attempt, "attempts of job {number}");
        }
    }
}

fn new_job(start: Start) -> NewJob {
    NewJob {
        task_type: TaskTypeName::parse("t").expect("name"),
        payload: bytes_of("payload"),
        headers: std::collections::HashMap::new(),
        priority: 0,
        start,
        max_attempts: None,
        key: None,
        timeout: None,
        fallback: None,
        next_stages: Vec::new(),
        options: None,
    }
}

fn bytes_of(text: &'static str) -> bytes::Bytes {
    bytes::Bytes::from_static(text.as_bytes())
}

prop_state_machine! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_job_is_always_in_exactly_one_table(sequential 1..40 => Real);
}
