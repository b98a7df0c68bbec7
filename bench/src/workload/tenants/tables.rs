//! The design with one table per tenant. `pgbench` runs both sides: 64 connections insert tasks, 32 move them out.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::{CALLERS, Direction, Extent, MOVERS};
use crate::{
    environment::{Database, Environment, Mark, Pgbench, Script},
    error::{Error, Result},
    load::{Faults, Span},
    report::Bar,
    workload::Bench,
};

const DROP: &str = include_str!("../../../sql/tenants_drop.sql");
const MAKE: &str = include_str!("../../../sql/tenants.sql");
/// Interval at which the number of moved tasks is checked.
const POLL: Duration = Duration::from_millis(200);
/// The run fails if no task is moved for this long.
const STALLED: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Tables {
    environment: Environment,
    into: Pgbench,
    out: Pgbench,
    extent: Extent,
    faults: Faults,
}

impl Tables {
    /// Creates the tables and opens the pgbench connections.
    pub(super) async fn start(bench: &mut Bench, extent: Extent) -> Result<Self> {
        let _bar = Bar::spinner("tenants: a table for each");
        let environment = bench.setting.environment(0).await?;
        let database = environment.database()?;
        database.execute(DROP, "cannot drop the tables of the tenants").await?;
        database.execute(MAKE, "cannot create the tables of the tenants").await?;
        let make = format!("CALL howdah_tenants.make({})", extent.tenants);
        database.execute(&make, "cannot create the tables of the tenants").await?;
        let variables = [("tenants", extent.tenants.to_string()), ("bytes", extent.payload.to_string())];
        let into = Script {
            name: "howdah bench: tasks in",
            text: include_str!("../../../sql/tenants_in.sql"),
            connections: CALLERS,
            variables: &variables,
        };
        let out = Script {
            name: "howdah bench: tasks out",
            text: include_str!("../../../sql/tenants_out.sql"),
            connections: MOVERS,
            variables: &variables[..1],
        };
        let (into, out) = (Pgbench::start(database, into).await?, Pgbench::start(database, out).await?);
        Ok(Self { environment, into, out, extent, faults: Faults::default() })
    }

    /// Stops pgbench and drops the tables.
    pub(super) async fn stop(self, bench: &Bench) -> Result<()> {
        self.into.stop().await;
        self.out.stop().await;
        if !self.environment.is_private {
            self.environment.database()?.execute(DROP, "cannot drop the tables of the tenants").await?;
        }
        bench.tear_down(self.environment).await
    }

    pub(super) fn faults(&self) -> Faults {
        self.faults
    }

    /// Measures one time slice. All tasks are in the history table when it returns.
    pub(super) async fn measure(&mut self, direction: Direction, message: &str) -> Result<Span> {
        if direction == Direction::Out {
            let _bar = Bar::spinner(format!("{message}: filling"));
            let Extent { tenants, waiting, payload, .. } = self.extent;
            let fill = format!("CALL howdah_tenants.fill({tenants}, {waiting}, {payload})");
            self.database()?.execute(&fill, "cannot fill the tables of the tenants").await?;
        }
        self.environment.settle_down().await;
        let bar = Bar::new(message.to_owned(), self.extent.time.as_secs_f64());
        let span = if direction == Direction::Out {
            self.take_out().await?
        } else {
            self.for_a_while(direction, &bar).await?
        };
        let left = self.database()?.number("SELECT count(*) FROM howdah_tenants.task", &[]).await?;
        self.faults.lost += left as u64;
        Ok(span)
    }

    /// Measures inserts of tasks, while other connections move tasks out (`Both`) or not (`In`). Only tasks inserted (`In`) or
    /// moved (`Both`) in the measured time count.
    async fn for_a_while(&mut self, direction: Direction, bar: &Bar) -> Result<Span> {
        self.into.go()?;
        if direction == Direction::Both {
            self.out.go()?;
        }
        sleep(self.extent.warm_up).await;
        let (before, from) = (Mark::take(&self.environment).await, self.database()?.now().await?);
        sleep(self.extent.time).await;
        let (until, after) = (self.database()?.now().await?, Mark::take(&self.environment).await);
        bar.at(self.extent.time.as_secs_f64());
        self.into.park().await?;
        let (table, time) = if direction == Direction::In { ("task", "created") } else { ("history", "finished") };
        let count = format!(
            "SELECT count(*) FROM howdah_tenants.{table} WHERE {time} >= $1::bigint * interval '1 us' + 'epoch'::timestamptz \
             AND {time} < $2::bigint * interval '1 us' + 'epoch'::timestamptz"
        );
        let mut jobs = self.database()?.number(&count, &[&from, &until]).await?;
        self.all_out(None).await?;
        if direction == Direction::Both {
            jobs = self.database()?.number(&count, &[&from, &until]).await?;
        }
        Ok(Span::new(jobs as u64, (until - from) as f64 / 1e6, after.since(&before)))
    }

    /// Measures how fast a backlog of tasks is moved to history, from the start until the last task.
    async fn take_out(&mut self) -> Result<Span> {
        let moved = self.moved().await?;
        let (before, from) = (Mark::take(&self.environment).await, self.database()?.now().await?);
        self.all_out(Some(moved + self.extent.waiting as i64)).await?;
        let after = Mark::take(&self.environment).await;
        let last = "SELECT (extract(epoch FROM max(finished)) * 1000000)::bigint FROM howdah_tenants.history";
        let until = self.database()?.number(last, &[]).await?;
        Ok(Span::new(self.extent.waiting, (until - from) as f64 / 1e6, after.since(&before)))
    }

    /// Lets connections move tasks out until no task is left and, if `known` is given, until the counters show `known` tasks in
    /// history.
    async fn all_out(&mut self, known: Option<i64>) -> Result<()> {
        self.out.go()?;
        let (mut before, mut changed) = (-1, Instant::now());
        loop {
            let done = self.moved().await?;
            // Sessions report their counters late, so an empty task table does not suffice: `done` must also reach
            // `known`.
            if known.is_none_or(|known| done >= known) && self.database()?.number(ANY_LEFT, &[]).await? == 0 {
                break;
            }
            if done != before {
                (before, changed) = (done, Instant::now());
            } else if changed.elapsed() > STALLED {
                return Err(Error::Process("no task was moved out of the tables of the tenants for a minute".into()));
            }
            sleep(POLL).await;
        }
        self.out.park().await
    }

    /// Number of tasks in history by the counters of Postgres, which sessions report about once per second.
    async fn moved(&self) -> Result<i64> {
        let moved = "SELECT coalesce(sum(pg_stat_get_tuples_inserted(oid)), 0)::bigint FROM pg_class \
                     WHERE relnamespace = 'howdah_tenants'::regnamespace AND relname ~ '^history_'";
        self.database()?.number(moved, &[]).await
    }

    fn database(&self) -> Result<&Database> {
        self.environment.database()
    }
}

/// Query that returns 1 if a task is left, else 0.
const ANY_LEFT: &str = "SELECT count(*) FROM (SELECT FROM howdah_tenants.task LIMIT 1) t";
