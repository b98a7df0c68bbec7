//! Tests one worker stream over several stores: window, leases, messages.

use std::{collections::HashMap, future::IntoFuture as _};

use howdah_cli::postgres::{Cluster, StopMode};
use howdah_core::job::{IDS_OF_A_STORE, StoreNumber};
use howdah_proto::v1::{LeasedJob, SettleStatus, work_response::Message};

use super::empty;
use crate::support::*;

/// Starts a broker on two stores, numbered 0 and 1. Returns the broker and the second store's database.
pub async fn two(suffix: &str) -> (TestBroker, TestDatabase) {
    let (shop, mail) = (empty(&format!("{suffix}_shop")).await, empty(&format!("{suffix}_mail")).await);
    let broker = TestBroker::on_stores(&[("shop", &shop), ("mail", &mail)], |_| {}).await;
    // Waits for today's partition, because an SQL statement that ends a job fails if it runs while the partition is
    // created.
    mail.until(
        "the partition of today",
        "SELECT to_regclass(to_char(now() AT TIME ZONE 'UTC', '\"howdah.history_\"YYYYMMDD')) IS NOT NULL",
    )
    .await;
    (broker, mail)
}

/// Enqueues jobs of a type in a store, by SQL.
pub async fn fill(database: &TestDatabase, task_type: &str, jobs: usize) {
    database.sql(&format!("SELECT howdah.enqueue_many('{task_type}', array_fill('x'::text, ARRAY[{jobs}]))")).await;
}

pub fn of_store(job: &LeasedJob) -> u16 {
    StoreNumber::of_id(job.id).expect("an id of a store").get()
}

/// Number of jobs of each store.
fn by_store(jobs: &[LeasedJob]) -> HashMap<u16, usize> {
    let mut counts = HashMap::new();
    jobs.iter().for_each(|job| *counts.entry(of_store(job)).or_default() += 1);
    counts
}

/// Settles the first held job, and receives another job in its place.
async fn replace_first(worker: &mut Worker, held: &mut Vec<LeasedJob>) {
    let done = held.remove(0);
    worker.ack(&done).await;
    held.push(worker.next().await);
}

/// Resumes the session with these leases. Repeats the call while a broker is still ending one of the leases.
pub async fn resumed(broker: &Service, session: &str, holds: &[&LeasedJob]) -> Worker {
    loop {
        match broker.worker("t").window(4).resumes(session, holds).answer().await {
            Ok(worker) => return worker,
            Err(status) => assert!(status.message().contains("is ending a lease of this session"), "{status}"),
        }
    }
}

#[tokio::test]
async fn a_worker_that_names_a_store_gets_jobs_of_that_store_alone() {
    let (broker, mail) = two("named").await;
    fill(&broker.database, "t", 5).await;
    fill(&mail, "t", 5).await;
    let args = ["--in-store", "mail", "work", "--server", &broker.grpc, "t", "--jobs", "3", "--exec", "cat", "--drain"];
    assert!(Program::start(&args).ended().await.success());
    assert_eq!(mail.count("SELECT count(*) FROM howdah.history").await, 5);
    assert_eq!(broker.count("SELECT count(*) FROM howdah.ready").await, 5);
    let refused =
        Program::start(&["--in-store", "mial", "work", "--server", &broker.grpc, "t", "--exec", "cat"]).ended().await;
    assert!(!refused.success());
    // A worker without --in-store runs the jobs of the other store.
    let args = ["work", "--server", &broker.grpc, "t", "--exec", "cat", "--drain"];
    assert!(Program::start(&args).ended().await.success());
    assert_eq!(broker.count("SELECT count(*) FROM howdah.history").await, 5);
}

const LEASED: &str = "SELECT count(*) FROM howdah.leased";

#[tokio::test]
async fn a_window_holds_over_two_stores_with_backlogs_and_both_are_worked_off_at_one_pace() {
    let (broker, mail) = two("window").await;
    fill(&broker.database, "t", 300).await;
    fill(&mail, "t", 300).await;
    let mut worker = broker.worker("t").window(10).await;
    let mut held = worker.take(10).await;
    let mut done = Vec::new();
    for _ in 0..300 {
        // The two stores are counted one after the other, so a job delivered in between may be missed but never counted twice.
        let leased = broker.count(LEASED).await + mail.count(LEASED).await;
        assert!(leased <= 10, "{leased} jobs are leased; the window is 10");
        done.push(held[0].clone());
        replace_first(&mut worker, &mut held).await;
        assert_eq!(worker.buffered(), 0, "more jobs were delivered than the window allows");
    }
    let done = by_store(&done);
    assert!(done[&0] > 90 && done[&1] > 90, "jobs of both stores run: {done:?}");
}

#[tokio::test]
async fn outcomes_and_extensions_go_to_the_store_of_each_job() {
    let (broker, mail) = two("settle").await;
    fill(&broker.database, "t", 2).await;
    fill(&mail, "t", 2).await;
    let mut worker = broker.worker("t").await;
    let mut jobs = worker.take(4).await;
    assert_eq!(by_store(&jobs), HashMap::from([(0, 2), (1, 2)]));
    for job in &jobs {
        assert_eq!(worker.extend(job, secs(600)).await, SettleStatus::Ok);
    }
    // A lease of an unknown store gets `LEASE_LOST`, like a lease of an unknown job.
    let unknown = LeasedJob { id: 7 * IDS_OF_A_STORE + 1, ..jobs[0].clone() };
    jobs.push(unknown);
    worker.settle(jobs.iter().map(ack).collect()).await;
    let mut statuses = HashMap::new();
    for _ in 0..5 {
        let settled = worker.settled().await;
        statuses.insert(settled.id, settled.status());
    }
    let lost = statuses.remove(&jobs[4].id);
    assert_eq!(lost, Some(SettleStatus::LeaseLost));
    assert!(statuses.values().all(|status| *status == SettleStatus::Ok), "{statuses:?}");
    let succeeded = "SELECT count(*) FROM howdah.history WHERE outcome = 'succeeded'";
    assert_eq!((broker.count(succeeded).await, mail.count(succeeded).await), (2, 2));
}

#[tokio::test]
async fn a_resumed_session_keeps_its_leases_of_all_stores_here_and_at_another_broker() {
    let (broker, mail) = two("resume").await;
    let other = TestBroker::on_stores(&[("shop", &broker.database), ("mail", &mail)], |_| {}).await;
    fill(&broker.database, "t", 5).await;
    fill(&mail, "t", 5).await;
    let mut worker = broker.worker("t").window(4).await;
    let mut held = worker.take(4).await;
    let mut session = worker.welcome.session_id.clone();
    worker.vanish();
    let lost = LeasedJob { token: held[0].token.wrapping_add(1), ..held[0].clone() };
    for (n, at) in [&broker, &other, &broker].into_iter().enumerate() {
        let holds: Vec<&LeasedJob> = held.iter().chain([&lost]).collect();
        let mut worker = with_timeout("a welcome", resumed(at, &session, &holds)).await;
        assert_eq!(worker.lost(1).await, [lease(&lost)], "round {n}");
        let mut kept: Vec<i64> = worker.welcome.kept.iter().map(|lease| lease.id).collect();
        let mut expected: Vec<i64> = held.iter().map(|job| job.id).collect();
        kept.sort_unstable();
        expected.sort_unstable();
        assert_eq!(kept, expected, "round {n}");
        // When one job is settled, exactly one job takes its place.
        replace_first(&mut worker, &mut held).await;
        worker.ping().await;
        assert_eq!(worker.buffered(), 0);
        assert_eq!(broker.count(LEASED).await + mail.count(LEASED).await, 4);
        session = worker.welcome.session_id.clone();
        worker.vanish();
    }
}

#[tokio::test]
async fn a_type_that_comes_into_being_in_another_store_later_is_worked_on() {
    let (broker, mail) = two("later").await;
    let mut worker = broker.worker("t").await;
    // Until now, the type exists only in its home store. From now on, it exists in both stores.
    fill(&broker.database, "t", 1).await;
    fill(&mail, "t", 1).await;
    assert_eq!(by_store(&worker.take(2).await).len(), 2);
    // Jobs of both stores must also come for a window that the worker opens later.
    worker.window("u", 5).await;
    fill(&broker.database, "u", 1).await;
    fill(&mail, "u", 1).await;
    assert_eq!(by_store(&worker.take(2).await).len(), 2);
}

#[tokio::test]
async fn a_type_that_no_store_has_is_created_in_one() {
    let (broker, mail) = two("create").await;
    let worker = broker.worker("fresh").await;
    worker.window("fresher", 3).await;
    let types = "SELECT count(*) FROM howdah.task_type WHERE name LIKE 'fresh%'";
    eventually("the types", async || broker.count(types).await + mail.count(types).await == 2).await;
}

#[tokio::test]
async fn a_drain_over_two_stores_is_answered_once_and_no_more_jobs_follow() {
    let (broker, mail) = two("drain").await;
    fill(&broker.database, "t", 1).await;
    fill(&mail, "t", 1).await;
    let mut worker = broker.worker("t").await;
    let jobs = worker.take(2).await;
    worker.drain().await;
    worker.drained().await;
    fill(&mail, "t", 1).await;
    for job in &jobs {
        // `ack` fails if another message comes first, so this also checks that no job is delivered.
        worker.ack(job).await;
    }
    worker.ping().await;
    assert_eq!(worker.buffered(), 0);
}

#[tokio::test]
async fn a_job_that_is_cancelled_in_any_store_is_taken_from_its_worker() {
    let (broker, mail) = two("cancel").await;
    fill(&mail, "t", 1).await;
    let mut worker = broker.worker("t").await;
    let job = worker.next().await;
    mail.sql(&format!("SELECT howdah.cancel({})", job.id)).await;
    assert_eq!(worker.cancelled().await.id, job.id);
}

#[tokio::test]
async fn a_second_stream_of_a_session_ends_the_first_in_all_stores() {
    let (broker, mail) = two("second").await;
    fill(&broker.database, "t", 2).await;
    fill(&mail, "t", 2).await;
    let mut first = broker.worker("t").window(2).await;
    let held = first.take(2).await;
    let holds: Vec<&LeasedJob> = held.iter().collect();
    let mut second = broker.worker("t").window(2).resumes(&first.welcome.session_id, &holds).await;
    assert_eq!(second.welcome.kept.len(), 2);
    let ended = loop {
        match first.message().await {
            Ok(Some(Message::Jobs(jobs))) => panic!("jobs on the old stream: {jobs:?}"),
            Ok(Some(_)) => {}
            Ok(None) => panic!("the old stream ended without an error"),
            Err(status) => break status,
        }
    };
    assert_eq!(ended.code(), tonic::Code::Aborted, "{ended:?}");
    for job in &held {
        second.ack(job).await;
    }
    assert_eq!(second.take(2).await.len(), 2);
}

#[tokio::test]
async fn an_unavailable_store_delays_only_its_own_jobs() {
    let shop = empty("away_shop").await;
    // Turns fsync on, because committed data must survive an immediate stop.
    let mut config = cluster_config();
    config.fsync = true;
    let mut cluster = Cluster::start(config).await.expect("Postgres");
    cluster.create_database("mail").await.expect("a database");
    let mail = TestDatabase { url: cluster.url("mail") };
    let stores = [("shop", &shop), ("mail", &mail)];
    let broker = TestBroker::on_stores(&stores, |config| config.database_timeout = secs(8)).await;
    fill(&shop, "t", 100).await;
    fill(&mail, "t", 2).await;
    let mut worker = broker.worker("t").window(4).await;
    let mut held = worker.take(4).await;
    while by_store(&held).get(&1) != Some(&2) {
        let at = held.iter().position(|job| of_store(job) == 0).expect("one of shop");
        held[..=at].rotate_right(1);
        replace_first(&mut worker, &mut held).await;
    }
    cluster.stop(StopMode::Immediate).await;
    let (mut own, of_mail): (Vec<_>, Vec<_>) = held.into_iter().partition(|job| of_store(job) == 0);
    // The outcome for the unavailable store waits, and then fails with UNAVAILABLE. Outcomes for the other store do not wait.
    worker.ack(&of_mail[0]).sent().await;
    for _ in 0..20 {
        replace_first(&mut worker, &mut own).await;
        assert!(own.iter().all(|job| of_store(job) == 0));
    }
    let answer = worker.settled().await;
    assert_eq!((answer.id, answer.status()), (of_mail[0].id, SettleStatus::Unavailable));
    // A worker that reconnects during the outage gets a `Welcome`, and keeps its leases of the unavailable store.
    let session = worker.welcome.session_id.clone();
    worker.vanish();
    let holds: Vec<&LeasedJob> = own.iter().chain(&of_mail).collect();
    let count = holds.len();
    let mut worker = broker.worker("t").window(4).resumes(&session, &holds).await;
    assert_eq!((worker.welcome.kept.len(), worker.welcome.lost.len()), (count, 0));
    assert_eq!(worker.ack(&of_mail[0]).status().await, SettleStatus::Unavailable);
    for _ in 0..5 {
        replace_first(&mut worker, &mut own).await;
        worker.ping().await;
        assert_eq!(worker.buffered(), 0, "leases of the unavailable store count in the window");
    }
    // The store becomes available again, with its leases unchanged.
    cluster.restart().await.expect("restart");
    eventually("an ack that is committed", async || match worker.ack(&of_mail[0]).status().await {
        SettleStatus::Unavailable => false,
        acked => acked == SettleStatus::Ok,
    })
    .await;
    fill(&mail, "t", 1).await;
    while own.iter().all(|job| of_store(job) == 0) {
        replace_first(&mut worker, &mut own).await;
    }
}

#[tokio::test]
async fn a_pull_gets_jobs_from_every_store_that_has_some() {
    let (broker, mail) = two("pull").await;
    let waiting = tokio::spawn(broker.pull("t").wait(secs(30)).into_future());
    let types = "SELECT count(*) FROM howdah.task_type WHERE name = 't'";
    eventually("the type in one store", async || broker.count(types).await + mail.count(types).await == 1).await;
    // Enqueues a job in the store that does not have the type yet.
    for database in [&mail, &broker.database] {
        if database.count(types).await == 0 {
            fill(database, "t", 1).await;
        }
    }
    let first = with_timeout("a job", waiting).await.unwrap();
    assert_eq!(first.len(), 1);
    fill(&broker.database, "t", 3).await;
    fill(&mail, "t", 3).await;
    let mut jobs = Vec::new();
    while jobs.len() < 6 {
        jobs.extend(broker.pull("t").wait(secs(30)).await);
    }
    assert_eq!(by_store(&jobs), HashMap::from([(0, 3), (1, 3)]));
    assert!(broker.pull("t").await.is_empty());
    jobs.extend(first);
    let statuses = broker.settle(jobs.iter().map(ack).collect()).await;
    assert!(statuses.iter().all(|status| *status == SettleStatus::Ok), "{statuses:?}");
    assert_eq!(broker.count(LEASED).await + mail.count(LEASED).await, 0);
}

#[tokio::test]
async fn a_pull_gets_the_jobs_of_a_store_that_takes_more_than_a_second_to_find_them() {
    let (broker, mail) = two("slow").await;
    fill(&broker.database, "t", 1).await;
    assert_eq!(broker.pull("t").await.len(), 1);
    fill(&mail, "t", 1).await;
    let gate = gate(&mail, "leased", "INSERT").await;
    let pulled = tokio::spawn(broker.pull("t").into_future());
    let waits = "wait_event = 'PgSleep'";
    mail.until("a claim of more than a second", &older_than_a_second(waits)).await;
    gate.open(&mail).await;
    assert_eq!(by_store(&with_timeout("a job", pulled).await.unwrap()), HashMap::from([(1, 1)]));
}

#[tokio::test]
async fn a_pull_gets_the_jobs_of_a_store_that_takes_more_than_a_second_to_find_their_type() {
    let (broker, mail) = two("slow_types").await;
    fill(&broker.database, "t", 1).await;
    assert_eq!(broker.pull("t").await.len(), 1);
    fill(&mail, "t", 1).await;
    let mut holder = mail.connect().await;
    let lock = holder.transaction().await.expect("a transaction");
    lock.batch_execute("LOCK TABLE howdah.task_type").await.expect("a lock");
    let pulled = tokio::spawn(broker.pull("t").wait(secs(30)).into_future());
    let waits = "wait_event_type = 'Lock' AND query LIKE '%task_type%'";
    mail.until("a question of more than a second", &older_than_a_second(waits)).await;
    lock.rollback().await.expect("no lock");
    assert_eq!(by_store(&with_timeout("a job", pulled).await.unwrap()), HashMap::from([(1, 1)]));
}

#[tokio::test]
async fn a_pull_makes_a_type_although_a_store_takes_more_than_a_second_to_say_that_it_does_not_have_it() {
    let (broker, mail) = two("slow_no").await;
    let mut holder = mail.connect().await;
    for round in 1.. {
        let task_type = format!("new.{round}");
        let lock = holder.transaction().await.expect("a transaction");
        lock.batch_execute("LOCK TABLE howdah.task_type").await.expect("a lock");
        let mut pulled = tokio::spawn(broker.pull(&task_type).into_future());
        let waits = older_than_a_second("wait_event_type = 'Lock' AND query LIKE '%task_type%'");
        let is_over = tokio::select! {
            () = mail.until("a question of more than a second", &waits) => false,
            _ = &mut pulled => true,
        };
        lock.rollback().await.expect("no lock");
        if !is_over {
            with_timeout("an answer", pulled).await.unwrap();
        }
        let made = format!("SELECT count(*) FROM howdah.task_type WHERE name = '{task_type}'");
        if broker.count(&made).await + mail.count(&made).await == 1 {
            break;
        }
        // The broker waits for the lock for only 2 s. If the test releases the lock later, as on a slow machine, the round is
        // repeated.
        assert!(round < 10, "no type was made");
    }
}

/// Returns a query that is true if a statement with this wait began more than a second ago.
fn older_than_a_second(waits: &str) -> String {
    format!(
        "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND state = 'active'
         AND pid <> pg_backend_pid() AND {waits} AND clock_timestamp() - query_start > '1 s'"
    )
}

#[tokio::test]
async fn each_store_notes_that_its_types_are_pulled() {
    let (broker, mail) = two("pulls").await;
    fill(&mail, "t", 1).await;
    assert_eq!(broker.pull("t").wait(secs(30)).await.len(), 1);
    mail.until("the stored time of the pull", "SELECT count(*) = 1 FROM howdah.pull").await;
    assert_eq!(broker.count("SELECT count(*) FROM howdah.pull").await, 0, "a pull in a store without the type");
}
