//! Tests thirty switchovers and failovers of a real Patroni cluster under load. No job is lost or duplicated, and jobs run
//! again soon after a new primary is elected.

use std::{collections::BTreeMap, sync::atomic::AtomicUsize, time::Duration};

use tokio::time::{Instant, sleep};

use super::{
    load::{Load, Plan},
    mix::Mix,
    patroni::{Fault, Patroni, http_get},
    producer,
    record::Record,
};
use crate::support::{PATIENCE, TestDatabase, with_timeout};

/// Maximum recovery time after the election of a new primary, as the documentation promises.
const PROMISED: Duration = Duration::from_secs(5);

/// Durations of the parts of one recovery.
#[derive(Clone, Copy)]
struct Recovery {
    /// Time from the fault until another node is the primary. It depends on Patroni, not on Howdah.
    another_primary: Duration,
    /// Time from the election of the new primary until each broker has accepted a job.
    accepted: Duration,
    /// Time from the election of the new primary until the jobs of `accepted` have succeeded.
    succeeded: Duration,
    /// Time from the election of the new primary until each broker is ready.
    ready: Duration,
    /// Time from the election of the new primary until no broker is connected to the former primary.
    left: Duration,
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes long: cargo test --test system -- --ignored endurance"]
async fn thirty_switchovers_and_failovers_of_patroni_lose_nothing_and_jobs_flow_again_soon() {
    let wish = std::env::var("HOWDAH_ENDURANCE_FAILOVERS").ok();
    let times: usize = wish.map_or(30, |wish| wish.parse().expect("HOWDAH_ENDURANCE_FAILOVERS is a number"));
    let mut patroni = Patroni::start().await;
    let mut plan = Plan::new(Mix::All, 30 * times as u64);
    // The timeout is longer than the longest permitted response time, so that a missing response is noticed.
    plan.patience = Duration::from_secs(60);
    let url = patroni.url();
    let mut load = Load::start_at(plan, TestDatabase { url: url.clone() }, &url).await;
    load.produce();
    let mut recoveries: BTreeMap<Fault, Vec<Recovery>> = BTreeMap::new();
    for (round, fault) in Fault::ALL.into_iter().cycle().take(times).enumerate() {
        let former = patroni.healthy().await;
        load.pause(Duration::from_secs(3)).await;
        let began = Instant::now();
        patroni.strike(former, fault).await;
        let primary = patroni.next_primary(former).await;
        let another_primary = began.elapsed();
        let recovery = recover(&load, &patroni, former, primary, round).await;
        let recovery = Recovery { another_primary, ..recovery };
        eprintln!("{:2} {}", round + 1, recovery.text(&format!("{fault:?}")));
        recoveries.entry(fault).or_default().push(recovery);
        patroni.mend(former, fault);
    }
    let last = patroni.healthy().await;
    load.database = TestDatabase { url: patroni.node(last).url("app") };
    for (fault, some) in &recoveries {
        eprintln!("{} × {fault:?}:", some.len());
        eprintln!("   {}", Recovery::of_each(some, median).text("median"));
        eprintln!("   {}", Recovery::of_each(some, longest).text("most"));
    }
    let all: Vec<Recovery> = recoveries.into_values().flatten().collect();
    let most = Recovery::of_each(&all, longest);
    eprintln!("all {}:\n   {}\n   {}", all.len(), Recovery::of_each(&all, median).text("median"), most.text("most"));
    load.check("switchovers and failovers of Patroni", times).await;
    let slowest = [most.accepted, most.succeeded, most.ready, most.left].into_iter().max().unwrap_or_default();
    assert!(slowest <= PROMISED, "{slowest:?} after a new primary, and {PROMISED:?} are promised");
}

/// Waits until all brokers have recovered, and measures each part of the recovery.
async fn recover(load: &Load, patroni: &Patroni, former: usize, primary: usize, round: usize) -> Recovery {
    let began = Instant::now();
    let working = async {
        let ids = enqueue_at_each(load, round).await;
        let accepted = began.elapsed();
        let client = patroni.node(primary).connect("app").await.expect("the new primary");
        let done = "SELECT count(*) = $2 FROM howdah.job WHERE id = ANY ($1) AND state = 'succeeded'";
        let count = ids.len() as i64;
        while !client.query_one(done, &[&ids, &count]).await.expect(done).get::<_, bool>(0) {
            sleep(Duration::from_millis(20)).await;
        }
        (accepted, began.elapsed())
    };
    let ready = async {
        for broker in &load.brokers {
            let url = format!("http://{}/readyz", broker.http);
            while http_get(&url).await.is_none() {
                sleep(Duration::from_millis(20)).await;
            }
        }
        began.elapsed()
    };
    let left = async {
        // Ignores sessions that wait for synchronous replication, because they do not notice that their client has
        // gone.
        let sql = "SELECT count(*) = 0 FROM pg_stat_activity WHERE usename = 'howdah'
                   AND application_name ~ '^(broker|howdah)' AND wait_event IS DISTINCT FROM 'SyncRep'";
        // `None` means that the node does not respond.
        while patroni.node(former).ask(sql).await == Some(false) {
            sleep(Duration::from_millis(50)).await;
        }
        began.elapsed()
    };
    let all = async { tokio::join!(working, ready, left) };
    let ((accepted, succeeded), ready, left) = with_timeout("the recovery of all brokers", all).await;
    Recovery { another_primary: Duration::ZERO, accepted, succeeded, ready, left }
}

/// Enqueues one job at each broker.
async fn enqueue_at_each(load: &Load, round: usize) -> Vec<i64> {
    let each = load.brokers.iter().enumerate().map(|(n, broker)| {
        let record = Record::open(&load.records.path(), &format!("again-{n}"));
        let mut clients = producer::clients(std::slice::from_ref(&broker.grpc));
        let request = format!("again-{round}-{n}");
        async move {
            let jobs = Mix::Plain.jobs(0, &request, 1);
            producer::enqueue(&mut clients, 0, &request, jobs, &record, PATIENCE, &AtomicUsize::new(0)).await
        }
    });
    futures::future::join_all(each).await.concat()
}

impl Recovery {
    fn text(&self, name: &str) -> String {
        let [primary, accepted, succeeded, ready, left] =
            [self.another_primary, self.accepted, self.succeeded, self.ready, self.left].map(|d| d.as_secs_f64());
        format!(
            "{name:14} another primary {primary:5.2} s; from then: accepted {accepted:.2} s, succeeded {succeeded:.2} s, \
             ready {ready:.2} s, the former one left {left:.2} s"
        )
    }

    /// Applies a function such as the median to each field of several recoveries.
    fn of_each(some: &[Self], figure: fn(Vec<Duration>) -> Duration) -> Self {
        let figure_of = |part: fn(&Self) -> Duration| figure(some.iter().map(part).collect());
        Self {
            another_primary: figure_of(|r| r.another_primary),
            accepted: figure_of(|r| r.accepted),
            succeeded: figure_of(|r| r.succeeded),
            ready: figure_of(|r| r.ready),
            left: figure_of(|r| r.left),
        }
    }
}

fn longest(durations: Vec<Duration>) -> Duration {
    durations.into_iter().max().unwrap_or_default()
}

fn median(mut durations: Vec<Duration>) -> Duration {
    durations.sort_unstable();
    durations.get(durations.len() / 2).copied().unwrap_or_default()
}
