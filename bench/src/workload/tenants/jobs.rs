//! Measures Howdah's design for many tenants: one fair key per tenant. Jobs are enqueued one at a time, by gRPC (one call per
//! job, or all on one stream) or by SQL, and are acked by workers.

use std::time::Instant;

use tokio::time::sleep;
use tokio_postgres::types::ToSql;

use super::{CALLERS, Design, Direction, Extent};
use crate::{
    environment::{Environment, Mark, Pgbench, Script},
    error::{Error, Result},
    load::{Demand, Faults, Plan, Span, Trial},
    report::Bar,
    workload::Bench,
};

/// Inserts ready jobs of the tenants. $1 type id, $2 number of jobs, $3 payload size in bytes, $4 number of tenants.
const FILL: &str = include_str!("../../../sql/tenants_fill.sql");
/// Part of a query that selects the ready jobs of a type. $1 name of the type.
const OF_TYPE: &str = "FROM howdah.ready r JOIN howdah.task_type t ON t.id = r.type_id WHERE t.name = $1";
const CALLS: Demand = Demand::Single { producers: CALLERS };
const STREAM: Demand = Demand::Shared { producers: CALLERS };

#[derive(Debug)]
pub(super) struct Jobs {
    environment: Environment,
    plan: Plan,
    /// Plan for jobs enqueued by SQL. They have a separate type, because their ids must be known.
    sql_plan: Plan,
    by_sql: Pgbench,
    extent: Extent,
    faults: Faults,
}

impl Jobs {
    /// Starts the brokers and the connections.
    pub(super) async fn start(bench: &mut Bench, extent: Extent) -> Result<Self> {
        let bar = Bar::spinner("tenants: fair keys");
        let environment = bench.environment().await?;
        let mut plan = bench.plan(1);
        plan.tenants = extent.tenants;
        let mut sql_plan = plan.clone();
        sql_plan.types = bench.plan(1).types;
        let variables = [
            ("tenants", extent.tenants.to_string()),
            ("bytes", extent.payload.to_string()),
            ("type", sql_plan.types[0].clone()),
        ];
        let script = Script {
            name: "howdah bench: jobs in",
            text: include_str!("../../../sql/tenants_enqueue.sql"),
            connections: CALLERS,
            variables: &variables,
        };
        let by_sql = Pgbench::start(environment.database()?, script).await?;
        let mut this = Self { environment, plan, sql_plan, by_sql, extent, faults: Faults::default() };
        // Each pgbench connection has stored one job during its warm-up. Finish these jobs before the measurement.
        this.faults = this.work_off_sql(&bar).await?;
        Ok(this)
    }

    /// Stops the brokers.
    pub(super) async fn stop(self, bench: &Bench) -> Result<()> {
        self.by_sql.stop().await;
        bench.tear_down(self.environment).await
    }

    pub(super) fn faults(&self) -> Faults {
        self.faults
    }

    pub(super) fn brokers(&self) -> usize {
        self.environment.brokers.len()
    }

    /// Measures one time slice. All jobs are settled when it returns.
    pub(super) async fn measure(&mut self, direction: Direction, design: Design, message: &str) -> Result<Span> {
        self.environment.settle_down().await;
        let bar = Bar::new(message.to_owned(), self.extent.time.as_secs_f64());
        let (span, faults) = match direction {
            Direction::In if design == Design::Sql => self.in_by_sql(&bar).await?,
            Direction::In => self.in_by_grpc(if design == Design::Stream { STREAM } else { CALLS }).await?,
            Direction::Out => self.out(&bar).await?,
            Direction::Both => self.both(&bar).await?,
        };
        self.faults += faults;
        Ok(span)
    }

    /// Measures enqueue calls by gRPC without workers. The rate counts answered calls.
    async fn in_by_grpc(&self, demand: Demand) -> Result<(Span, Faults)> {
        let mut trial = Trial::new(&self.environment, self.plan.clone())?;
        trial.produce(demand, None).await?;
        trial.warm_up(self.extent.warm_up).await?;
        let (before, from, began) = (Mark::take(&self.environment).await, trial.tally.enqueued_count(), Instant::now());
        trial.warm_up(self.extent.time).await?;
        let (jobs, time) = (trial.tally.enqueued_count() - from, began.elapsed());
        let span = Span::new(jobs, time.as_secs_f64(), Mark::take(&self.environment).await.since(&before));
        trial.stop_producing();
        trial.connect_workers().await?;
        trial.finish().await?;
        trial.dismiss().await?;
        Ok((span, trial.tally.faults(0)))
    }

    /// Measures enqueues by SQL without workers. Jobs whose transaction began in the measured time are counted.
    async fn in_by_sql(&mut self, bar: &Bar) -> Result<(Span, Faults)> {
        self.by_sql.go()?;
        sleep(self.extent.warm_up).await;
        let database = self.environment.database()?;
        let (before, from) = (Mark::take(&self.environment).await, database.now().await?);
        sleep(self.extent.time).await;
        let (until, after) = (database.now().await?, Mark::take(&self.environment).await);
        self.by_sql.park().await?;
        let measured = format!(
            "SELECT count(*) {OF_TYPE} AND r.created >= $2::bigint * interval '1 us' + 'epoch'::timestamptz \
             AND r.created < $3::bigint * interval '1 us' + 'epoch'::timestamptz"
        );
        let parameters: [&(dyn ToSql + Sync); 3] = [&self.sql_plan.types[0], &from, &until];
        let jobs = self.environment.database()?.number(&measured, &parameters).await?;
        let faults = self.work_off_sql(bar).await?;
        Ok((Span::new(jobs as u64, (until - from) as f64 / 1e6, after.since(&before)), faults))
    }

    /// Lets workers finish the jobs that were enqueued by SQL. No other session stores jobs at that time, so the ids are
    /// consecutive.
    async fn work_off_sql(&self, bar: &Bar) -> Result<Faults> {
        let database = self.environment.database()?;
        let mut ends = [0; 3];
        for (end, aggregate) in ends.iter_mut().zip(["min(r.id)", "max(r.id)", "count(*)"]) {
            *end = database
                .number(&format!("SELECT coalesce({aggregate}, 0) {OF_TYPE}"), &[&self.sql_plan.types[0]])
                .await?;
        }
        let [first, last, count] = ends;
        if count == 0 {
            return Ok(Faults::default());
        }
        if last - first + 1 != count {
            let stored = format!("the ids {first} to {last} of {count} jobs stored by SQL are not consecutive");
            return Err(Error::Process(stored));
        }
        let mut trial = Trial::new(&self.environment, self.sql_plan.clone())?;
        trial.tally.expect(first..=last);
        self.work_off(&mut trial, count as u64, bar).await?;
        Ok(trial.tally.faults(0))
    }

    /// Measures how fast workers settle a backlog.
    async fn out(&self, bar: &Bar) -> Result<(Span, Faults)> {
        let Extent { waiting, payload, tenants, .. } = self.extent;
        let database = self.environment.database()?;
        let type_id = database.task_type(&self.plan.types[0]).await?;
        let parameters: [i64; 3] = [waiting as i64, payload as i64, i64::from(tenants)];
        let last = database.number(FILL, &[&type_id, &parameters[0], &parameters[1], &parameters[2]]).await?;
        database.execute("VACUUM ANALYZE howdah.ready", "VACUUM").await?;
        self.environment.settle_down().await;
        let mut trial = Trial::new(&self.environment, self.plan.clone())?;
        trial.tally.expect(last - waiting as i64 + 1..=last);
        let span = self.work_off(&mut trial, waiting, bar).await?;
        Ok((span, trial.tally.faults(0)))
    }

    /// Measures how long workers take to settle a backlog, from before the workers connect to the last ack.
    async fn work_off(&self, trial: &mut Trial<'_>, jobs: u64, bar: &Bar) -> Result<Span> {
        let began = trial.begin();
        trial.connect_workers().await?;
        let span = trial.measure_until(began, jobs, bar).await?;
        trial.dismiss().await?;
        Ok(span)
    }

    /// Measures enqueueing and settling at the same time.
    async fn both(&self, bar: &Bar) -> Result<(Span, Faults)> {
        let mut trial = Trial::new(&self.environment, self.plan.clone())?;
        trial.connect_workers().await?;
        trial.produce(CALLS, None).await?;
        trial.warm_up(self.extent.warm_up).await?;
        let span = trial.measure(self.extent.time, bar).await?;
        trial.finish().await?;
        trial.dismiss().await?;
        Ok((span, trial.tally.faults(0)))
    }
}
