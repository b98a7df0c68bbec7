//! Tests random changes of priority steps and priorities, made by brokers with a current or an outdated step and interrupted
//! anywhere. The rank of a job must always contain its original time.

use std::{collections::HashSet, sync::LazyLock, time::Duration};

use howdah_core::{
    config::Config,
    job::{JobOptions, JobState, Lease, NewJob, PRIORITY_STEP, PagePosition, Start, TaskTypeName, rank_base},
};
use howdah_engine::store::{Action, Actor, ClaimRequest, Nack, PlainJob, RequestKeys, Store, Want};
use proptest::prelude::*;
use tokio::runtime::Runtime;

use crate::support::{TestDatabase, database};

const TYPE: i32 = 1;

#[derive(Clone, Debug)]
enum Change {
    /// Enqueues a job at a broker that knows this priority step, which may be outdated.
    Enqueue {
        priority: i16,
        known_step: Option<i64>,
    },
    /// Changes the priority step of the task type. Later scans change the ranks.
    Step(Option<i64>),
    /// Changes ranks by a scan of `steps` steps with `jobs` jobs each.
    Walk {
        steps: usize,
        jobs: i32,
    },
    Reprioritize {
        job: usize,
        priority: i16,
    },
    Claim(i32),
    Release,
    Rescue,
}

fn step() -> impl Strategy<Value = Option<i64>> {
    prop_oneof![Just(None), Just(Some(1_000)), Just(Some(60_000_000)), Just(Some(PRIORITY_STEP - 1))]
}

fn change() -> impl Strategy<Value = Change> {
    let priority = || prop_oneof![Just(0_i16), Just(-1000), Just(1000), -5..5_i16];
    prop_oneof![
        6 => (priority(), step()).prop_map(|(priority, known_step)| Change::Enqueue { priority, known_step }),
        2 => step().prop_map(Change::Step),
        4 => (1..4_usize, 1..4_i32).prop_map(|(steps, jobs)| Change::Walk { steps, jobs }),
        3 => (any::<usize>(), priority()).prop_map(|(job, priority)| Change::Reprioritize { job, priority }),
        3 => (1..4_i32).prop_map(Change::Claim),
        2 => Just(Change::Release),
        1 => Just(Change::Rescue),
    ]
}

struct World {
    runtime: Runtime,
    database: TestDatabase,
    store: Store,
}

static WORLD: LazyLock<World> = LazyLock::new(|| {
    let runtime = Runtime::new().expect("runtime");
    let database = runtime.block_on(database());
    let store = runtime.block_on(async { Store::new(&Config::new(&database.url)).expect("store") });
    runtime.block_on(store.create_task_types(&["r"], "")).expect("a type");
    World { runtime, database, store }
});

struct Case {
    client: tokio_postgres::Client,
    broker: i32,
    ids: Vec<i64>,
    leases: Vec<Lease>,
}

impl Case {
    async fn begin() -> Self {
        let client = WORLD.database.connect().await;
        let clear = "TRUNCATE howdah.ready, howdah.leased, howdah.broker, howdah.worker; UPDATE howdah.task_type SET priority_step_us = NULL";
        client.batch_execute(clear).await.expect("clear");
        let broker = WORLD.store.register_broker("b", Duration::from_secs(600)).await.expect("broker");
        Self { client, broker, ids: Vec::new(), leases: Vec::new() }
    }

    async fn apply(&mut self, change: &Change) {
        let (store, by) = (&WORLD.store, Actor::of_session("test"));
        match change {
            Change::Enqueue { priority, known_step } => self.enqueue(*priority, *known_step).await,
            Change::Step(step) => {
                self.client.execute("UPDATE howdah.task_type SET priority_step_us = $1", &[step]).await.expect("step");
            }
            Change::Walk { steps, jobs } => {
                let mut at = Some(PagePosition::first(JobState::Ready));
                for _ in 0..*steps {
                    let Some(from) = at else { break };
                    at = store.rerank(TYPE, from, *jobs).await.expect("walk").next;
                }
            }
            Change::Reprioritize { job, priority } if !self.ids.is_empty() => {
                let id = self.ids[job % self.ids.len()];
                assert_eq!(store.reprioritize(&vec![id].into(), *priority, &by).await.expect("reprioritize").len(), 1);
            }
            Change::Reprioritize { .. } => {}
            Change::Claim(jobs) => {
                let want = Want { type_id: TYPE, jobs: *jobs, floor: i64::MIN, largest: i64::MAX };
                let broker_id = Some(self.broker);
                let claim = ClaimRequest { broker_id, ..ClaimRequest::new(vec![want], HashSet::new(), 100) };
                self.leases.extend(store.claim(&claim).await.expect("claim").jobs.iter().map(|job| job.lease));
            }
            Change::Release => {
                self.leases.sort_unstable();
                let nack = |lease: Lease| Nack { lease, action: Action::Release, delay_ms: 0, error: None };
                let nacks: Vec<Nack> = self.leases.drain(..).map(nack).collect();
                store.settle_nacks(&nacks, None, false, &mut Vec::new()).await.expect("release");
            }
            Change::Rescue => {
                self.client.execute("DELETE FROM howdah.broker", &[]).await.expect("gone");
                self.broker = store.register_broker("b", Duration::from_secs(600)).await.expect("broker");
                store.rescue(1_000, self.broker).await.expect("rescue");
                self.leases.clear();
            }
        }
    }

    async fn enqueue(&mut self, priority: i16, known_step: Option<i64>) {
        let priority_step_us = known_step.filter(|_| priority != 0);
        let options = JobOptions { priority_step_us, ..JobOptions::default() }.boxed();
        let job = NewJob {
            task_type: TaskTypeName::parse("r").expect("name"),
            payload: "p".into(),
            headers: std::collections::HashMap::default(),
            priority,
            start: Start::Now,
            max_attempts: None,
            key: None,
            timeout: None,
            fallback: None,
            next_stages: Vec::new(),
            options,
        };
        let rank_base = rank_base(priority, known_step.unwrap_or(PRIORITY_STEP));
        let plain = PlainJob { job: &job, type_id: TYPE, max_attempts: 1000, rank_base, out_of_line: false };
        let stored = WORLD.store.enqueue_plain(&[plain], RequestKeys::default()).await.expect("enqueue");
        self.ids.extend(stored.ids);
    }

    /// Asserts that no job is missing, and that each job's rank still contains its creation time.
    async fn check(&self, after: &Change) {
        let sql = "SELECT count(*) = $1, coalesce(bool_and(
                       rank - priority * howdah.step_of(options) = (extract(epoch FROM created) * 1000000)::bigint), true)
                   FROM (SELECT rank, priority, options, created FROM howdah.ready
                         UNION ALL SELECT rank, priority, options, created FROM howdah.leased) j";
        let row = self.client.query_one(sql, &[&(self.ids.len() as i64)]).await.expect("check");
        assert!(row.get::<_, bool>(0), "jobs are missing after {after:?}");
        assert!(row.get::<_, bool>(1), "a job has lost its time after {after:?}");
    }

    /// Releases leased jobs and completes a scan, after which all ranks use the current priority step.
    async fn end(&mut self) {
        self.apply(&Change::Release).await;
        let from = PagePosition::first(JobState::Ready);
        WORLD.store.rerank(TYPE, from, 1_000).await.expect("walk");
        let sql = "SELECT coalesce(bool_and(r.priority = 0 OR howdah.step_of(r.options)
                                            = coalesce(t.priority_step_us, 35184372088832)), true)
                   FROM howdah.ready r JOIN howdah.task_type t ON t.id = r.type_id";
        assert!(
            self.client.query_one(sql, &[]).await.expect("end").get::<_, bool>(0),
            "a rank does not use the current step"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn ranks_keep_the_original_time_of_a_job_through_all_changes_and_interruptions(changes in prop::collection::vec(change(), 1..40)) {
        WORLD.runtime.block_on(async {
            let mut case = Case::begin().await;
            for change in &changes {
                case.apply(change).await;
                case.check(change).await;
            }
            case.end().await;
            case.check(&Change::Release).await;
        });
    }
}
