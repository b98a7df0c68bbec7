//! Tests that no job is lost when processes are killed under load, and that attempts are counted correctly.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use howdah_cli::postgres::{Cluster, StopMode};
use howdah_client::{Client, Job, JobError, NewJob};
use howdah_proto::v1::SettleStatus;
use rustix::process::Signal;
use tokio::sync::watch;
use tonic::Code;

use crate::support::*;

/// Settings with short lease and grace times, so that brokers rescue and release jobs within seconds.
const QUICK: [&str; 6] = ["--set", "broker_lease=2s", "--set", "renew_interval=500ms", "--set", "session_grace=1s"];

/// A short grace time for lost workers, with the default broker lease, so that a slow broker keeps its jobs.
const SHORT_GRACE: [&str; 2] = ["--set", "session_grace=1s"];

async fn client(brokers: &[&Service]) -> Client {
    let builder = Client::builder().endpoints(brokers.iter().map(|broker| broker.grpc.clone()));
    with_timeout("a connection", builder.connect()).await.expect("connect")
}

/// Asserts that every accepted job is in history, and that no other table has jobs.
async fn check_all_done(database: &TestDatabase, ids: &HashSet<i64>) {
    let left = "SELECT NOT EXISTS (SELECT FROM howdah.job WHERE state NOT IN ('succeeded'))";
    until(database, "the end of all jobs", left).await;
    let rows =
        database.connect().await.query("SELECT id FROM howdah.history WHERE outcome = 'succeeded'", &[]).await.unwrap();
    let done: Vec<i64> = rows.iter().map(|r| r.get(0)).collect();
    let distinct: HashSet<i64> = done.iter().copied().collect();
    assert_eq!(done.len(), distinct.len(), "a job is in history twice");
    assert_eq!(ids - &distinct, HashSet::new(), "accepted jobs are lost");
    assert_eq!(&distinct - ids, HashSet::new(), "jobs that nobody enqueued");
}

#[tokio::test]
async fn a_killed_worker_process_loses_nothing_and_its_jobs_have_used_an_attempt() {
    let database = database().await;
    let broker = Program::serve(&database, &SHORT_GRACE).await;
    let server = &broker.grpc;
    let producer = client(&[&broker]).await;
    let jobs: Vec<NewJob> = (0..60).map(|n| NewJob::new("slow").payload(n.to_string())).collect();
    let ids: HashSet<i64> = producer.enqueue_all(jobs).await.expect("enqueue").iter().map(|e| e.id).collect();
    // Starts a worker whose commands never end. The test kills it while it runs four jobs.
    let endless = "cat >/dev/null; echo begun >&3; sleep infinity";
    let killed = Program::start(&["work", "slow", "--exec", endless, "--jobs", "4", "--server", server]);
    // Waits until the commands run, because a job that was leased but not yet sent would be released without counting an
    // attempt.
    let begun = "SELECT count(*) = 4 FROM howdah.leased WHERE options ? 'progress_text'";
    until(&database, "four running commands", begun).await;
    let held = database.connect().await.query("SELECT id FROM howdah.leased", &[]).await.unwrap();
    let held: HashSet<i64> = held.iter().map(|r| r.get(0)).collect();
    killed.signal(Signal::KILL);
    let mut good =
        Program::start(&["work", "slow", "--exec", "cat", "--jobs", "4", "--max-jobs", "60", "--server", server]);
    assert!(good.ended().await.success());
    check_all_done(&database, &ids).await;
    let twice = database.connect().await.query("SELECT id FROM howdah.history WHERE attempt = 2", &[]).await.unwrap();
    assert_eq!(twice.iter().map(|r| r.get(0)).collect::<HashSet<i64>>(), held);
    let results = "SELECT count(*) FROM howdah.history WHERE result = payload";
    assert_eq!(database.count(results).await, 60, "the standard output of the command is the result");
}

#[tokio::test]
async fn a_killed_broker_loses_nothing_and_its_workers_go_on_at_the_other() {
    let database = database().await;
    database.record().await;
    let [a, b] = [database.named("a"), database.named("b")];
    let (mut a, b) = (Program::serve(&a, &QUICK).await, Program::serve(&b, &QUICK).await);
    let (to_a, to_b): (Service, Service) = (Service::clone(&a), Service::clone(&b));
    let done = Arc::new(AtomicUsize::new(0));
    let mut workers = Vec::new();
    for order in [[&to_a, &to_b], [&to_b, &to_a]] {
        let done = done.clone();
        let handler = move |_: Job| {
            done.fetch_add(1, Ordering::Relaxed);
            async { Ok::<_, JobError>(()) }
        };
        let client = client(&order).await;
        workers.push(client.worker().handle("k", handler).concurrency(50).build().start());
    }
    let producer = client(&[&to_a, &to_b]).await.producer();
    let mut ids = HashSet::new();
    for round in 0..20 {
        let jobs = (0..250).map(|_| NewJob::new("k").payload("x"));
        let stored = with_timeout("an enqueue", producer.enqueue_all(jobs)).await.expect("enqueue");
        ids.extend(stored.iter().map(|e| e.id));
        if round == 8 {
            a.kill().await;
        }
    }
    assert_eq!(ids.len(), 5_000, "a repeated enqueue must return the same ids");
    check_all_done(&database, &ids).await;
    let replayed = database.replay().await.unwrap_or_else(|wrong| panic!("{wrong}"));
    assert!(replayed.claims >= 5_000 && replayed.outcomes == 5_000, "{replayed:?}");
    assert!(done.load(Ordering::Relaxed) >= 5_000);
    for worker in workers {
        with_timeout("the worker's end", worker.stop()).await.expect("a good end");
    }
}

#[tokio::test]
async fn a_stopped_worker_that_wakes_up_late_has_lost_its_leases() {
    let broker = TestBroker::start_with(|c| c.session_grace = millis(100)).await;
    let id = client(&[&broker]).await.enqueue(NewJob::new("z")).await.unwrap().id;
    let mut worker = broker.worker("z").window(1).await;
    let stale = worker.next().await;
    worker.vanish();
    broker.until("the end of the grace time", "SELECT count(*) = 1 FROM howdah.ready").await;
    let mut worker = broker.worker("z").window(1).await;
    let fresh = worker.next().await;
    assert_eq!(worker.ack(&stale).status().await, SettleStatus::LeaseLost);
    worker.ack(&fresh).await;
    assert_eq!(worker.ack(&stale).status().await, SettleStatus::LeaseLost);
    assert_eq!(broker.count(&format!("SELECT attempt::bigint FROM howdah.history WHERE id = {id}")).await, 2);
}

#[tokio::test]
async fn postgres_killed_under_load_loses_nothing() {
    let mut config = cluster_config();
    config.fsync = true;
    let mut cluster = Cluster::start(config).await.expect("Postgres");
    cluster.create_database("app").await.expect("database");
    let database = TestDatabase { url: cluster.url("app") };
    let broker = TestBroker::on_with(&database, |c| c.broker_lease = MINUTE).await;
    let client = client(&[&broker]).await;
    let worker = client.worker().handle("p", |_: Job| async { Ok::<_, JobError>(()) }).concurrency(100).build().start();
    let stop = Arc::new(AtomicBool::new(false));
    let (count, mut stored) = watch::channel(0_usize);
    let producing = tokio::spawn({
        let (producer, stop) = (client.producer(), stop.clone());
        async move {
            let mut ids = HashSet::new();
            while !stop.load(Ordering::Relaxed) {
                // If a request fails, the producer repeats it with the same request key.
                if let Ok(more) = producer.enqueue_all((0..50).map(|_| NewJob::new("p").payload("x"))).await {
                    ids.extend(more.iter().map(|e| e.id));
                    count.send_modify(|n| *n += more.len());
                }
            }
            ids
        }
    });
    for _ in 0..3 {
        let enough = *stored.borrow_and_update() + 500;
        with_timeout("progress", stored.wait_for(|n| *n >= enough)).await.expect("a producer");
        cluster.stop(StopMode::Immediate).await;
        cluster.restart().await.expect("restart");
    }
    stop.store(true, Ordering::Relaxed);
    let ids = with_timeout("the producer's end", producing).await.expect("no panic");
    // A failed enqueue may have been stored or not, so the test checks only the jobs that were accepted.
    until(&database, "the end of all jobs", "SELECT NOT EXISTS (SELECT FROM howdah.job WHERE state <> 'succeeded')")
        .await;
    let rows = database.connect().await.query("SELECT id FROM howdah.history", &[]).await.unwrap();
    let done: HashSet<i64> = rows.iter().map(|r| r.get(0)).collect();
    assert_eq!(rows.len(), done.len(), "a job is in history twice");
    assert!(ids.is_subset(&done), "{} accepted jobs are lost", (&ids - &done).len());
    with_timeout("the worker's end", worker.stop()).await.expect("a good end");
    broker.stop().await;
}

#[tokio::test]
async fn calls_answer_unavailable_while_postgres_is_down_and_succeed_after_its_restart() {
    let mut config = cluster_config();
    // Turns fsync on, because committed data must survive an immediate stop.
    config.fsync = true;
    let mut cluster = Cluster::start(config).await.expect("Postgres");
    cluster.create_database("app").await.expect("database");
    let database = TestDatabase { url: cluster.url("app") };
    let broker = TestBroker::on_with(&database, |c| c.database_timeout = secs(8)).await;
    cluster.stop(StopMode::Immediate).await;
    assert_eq!(broker.enqueue("u").refused().await.code, Code::Unavailable);
    cluster.restart().await.expect("restart");
    // UNAVAILABLE is the correct answer until the broker has reconnected to Postgres.
    let mut worker = None;
    eventually("a welcome", async || {
        match broker.worker("u").window(1).answer().await {
            Ok(welcome) => worker = Some(welcome),
            Err(status) => assert_eq!(status.code(), Code::Unavailable, "{status:?}"),
        }
        worker.is_some()
    })
    .await;
    let mut worker = worker.expect("a welcome");
    eventually("an accepted enqueue", async || broker.enqueue("u").answer().await.is_ok()).await;
    let job = worker.next().await;
    eventually("an ack that is committed", async || match worker.ack(&job).status().await {
        SettleStatus::Unavailable => false,
        acked => acked == SettleStatus::Ok,
    })
    .await;
}

#[tokio::test]
async fn enqueues_are_unavailable_while_postgres_hangs_and_only_the_first_is_sent_to_postgres() {
    let broker = TestBroker::start_with(|c| c.database_timeout = secs(10)).await;
    // Enqueues both types once, so that the broker has the ids of the types in its cache and needs no other statement.
    broker.enqueue_all(["first", "second"]).await;
    // A trigger makes the statement wait without a lock timeout, so that the broker cannot end the wait by giving up on
    // the lock.
    let trigger = "CREATE TABLE public.silence ();
                   CREATE FUNCTION public.be_silent() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0 AS
                       $$ BEGIN LOCK TABLE public.silence IN ACCESS SHARE MODE; RETURN NULL; END $$;
                   CREATE TRIGGER silence BEFORE INSERT ON howdah.ready
                       FOR EACH STATEMENT EXECUTE FUNCTION public.be_silent()";
    broker.sql(trigger).await;
    let mut silence = broker.database.connect().await;
    let silence = silence.transaction().await.unwrap();
    silence.batch_execute("LOCK TABLE public.silence IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let first = tokio::spawn(broker.enqueue("first").refused());
    let waiting =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    broker.until("a statement that waits", &format!("SELECT ({waiting}) = 1")).await;
    let second = tokio::spawn(broker.enqueue("second").refused());
    for refused in [first, second] {
        assert_eq!(
            refused.await.unwrap().code,
            Code::Unavailable,
            "the broker must not say whether the job was stored"
        );
    }
    // Postgres still runs the first statement, so its result is unknown. The broker has not sent the second statement.
    assert_eq!(broker.count(waiting).await, 1);
    silence.rollback().await.unwrap();
    broker
        .until(
            "the first job after the end of the silence",
            "SELECT count(*) = 2 FROM howdah.job WHERE task_type = 'first'",
        )
        .await;
    assert_eq!(broker.count("SELECT count(*) FROM howdah.job WHERE task_type = 'second'").await, 1);
}

#[tokio::test]
async fn killing_backends_all_the_time_loses_nothing() {
    let broker = TestBroker::start().await;
    let client = client(&[&broker]).await;
    let worker = client.worker().handle("t", |_: Job| async { Ok::<_, JobError>(()) }).concurrency(20).build().start();
    // Kills one database connection for each enqueue, while the connections execute enqueues and acks.
    let (count, mut stored) = watch::channel(0_usize);
    let killer = broker.database.connect().await;
    let killer = tokio::spawn(async move {
        let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                   WHERE datname = current_database() AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1";
        while stored.changed().await.is_ok() {
            killer.simple_query(sql).await.expect(sql);
        }
    });
    let producer = client.producer();
    let mut ids = HashSet::new();
    for _ in 0..40 {
        let jobs = (0..50).map(|_| NewJob::new("t"));
        if let Ok(stored) = with_timeout("an enqueue", producer.enqueue_all(jobs)).await {
            ids.extend(stored.iter().map(|e| e.id));
            count.send_modify(|n| *n += 1);
        }
    }
    drop(count);
    // Waits for the last kill, because it could hit the connection that the check below uses.
    with_timeout("the killer's end", killer).await.expect("no panic");
    assert_eq!(ids.len(), 2_000);
    check_all_done(&broker.database, &ids).await;
    with_timeout("the worker's end", worker.stop()).await.expect("a good end");
}

#[tokio::test]
async fn a_broker_told_to_stop_ends_well_and_a_second_signal_ends_it_at_once() {
    let database = database().await;
    let mut polite = Program::serve(&database, &[]).await.program;
    polite.signal(Signal::TERM);
    assert!(polite.ended().await.success());
    let mut held = Program::serve(&database, &["--drain-deadline", "60s"]).await;
    let mut worker = held.worker("x").window(1).await;
    let held = &mut held.program;
    held.signal(Signal::TERM);
    // The worker stays when the broker drains, so the drain would take a minute.
    worker.drained().await;
    held.signal(Signal::TERM);
    assert!(!held.ended().await.success());
    let left = "SELECT count(*) FROM howdah.broker WHERE expires > now() + interval '16 s'";
    assert_eq!(database.count(left).await, 0);
}

#[tokio::test]
async fn a_worker_told_to_stop_while_its_broker_is_away_ends_and_says_what_is_not_confirmed() {
    let database = database().await;
    let mut broker = Program::serve(&database, &SHORT_GRACE).await;
    let server = broker.grpc.clone();
    let id = client(&[&broker]).await.enqueue(NewJob::new("away")).await.unwrap().id;
    let args = ["work", "away", "--server", &server, "--exec", "echo $PPID >&3; sleep infinity"];
    let away = async {
        let begun = "SELECT count(*) = 1 FROM howdah.leased WHERE options ? 'progress_text'";
        until(&database, "a running command", begun).await;
        let pid = database.count("SELECT (options ->> 'progress_text')::bigint FROM howdah.leased").await;
        broker.kill().await;
        let pid = rustix::process::Pid::from_raw(pid as i32).expect("pid");
        rustix::process::kill_process(pid, Signal::TERM).expect("kill");
    };
    let ((status, _, errors), ()) = tokio::join!(run(&args, b""), away);
    assert_eq!(status.code(), Some(69), "{errors}");
    assert!(errors.contains(&format!("{id} released")) && errors.contains("not confirmed"), "{errors}");
}

#[tokio::test]
async fn the_jobs_of_a_killed_broker_come_back_in_time_though_the_database_clock_goes_back() {
    let database = database().await;
    let (mut killed, left) = (Program::serve(&database, &QUICK).await, Program::serve(&database, &QUICK).await);
    let mut held = killed.worker("t").await;
    let id = killed.enqueue("t").await;
    held.next().await;
    killed.kill().await;
    // Moves the expiry of the killed broker ahead by an hour, as if the database's clock had gone back by an hour.
    database.sql("UPDATE howdah.broker SET expires = expires + interval '1 h'").await;
    let mut worker = left.worker("t").await;
    assert_eq!(worker.next().await.id, id);
    let has_one_row = "SELECT count(*) = 1 FROM howdah.broker";
    until(&database, "the deletion of the killed broker's row", has_one_row).await;
}
