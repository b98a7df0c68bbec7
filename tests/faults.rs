//! Processes are killed in the middle of load; nothing is lost, and attempts are right.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use howdah_cli::postgres::{Cluster, StopMode};
use howdah_client::{Client, Job, JobError, NewJob};
use howdah_proto::v1::{SettleStatus, Subscribe, work_response};
use rustix::process::Signal;

use crate::support::{Program, TestBroker, TestDatabase, Worker, cluster_config, database, run, soon, until};

/// Short lives, so that the tests need not wait for the defaults.
const QUICK: [&str; 6] = ["--set", "broker_lease=2s", "--set", "renew_interval=500ms", "--set", "session_grace=1s"];

/// Workers are given up soon, the broker is not: one that is only slow keeps its leases.
const SHORT_GRACE: [&str; 2] = ["--set", "session_grace=1s"];

async fn client(addresses: &[&str]) -> Client {
    let builder = Client::builder().endpoints(addresses.iter().map(|a| format!("http://{a}")));
    soon("a connection", builder.connect()).await.expect("connect")
}

/// Everything that was accepted is in history, and nothing else anywhere.
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
    let (_broker, grpc) = Program::serve(&database.url, &SHORT_GRACE).await;
    let server = format!("http://{grpc}");
    let producer = client(&[&grpc]).await;
    let jobs: Vec<NewJob> = (0..60).map(|n| NewJob::new("slow").payload(n.to_string())).collect();
    let ids: HashSet<i64> = producer.enqueue_all(jobs).await.expect("enqueue").iter().map(|e| e.id).collect();
    // One that never finishes a job, and is killed with four in hand.
    let endless = "cat >/dev/null; echo begun >&3; sleep 600";
    let doomed = Program::start(&["work", "slow", "--exec", endless, "--jobs", "4", "--server", &server]);
    // It has them: what is leased and not sent yet would go back without an attempt.
    let begun = "SELECT count(*) = 4 FROM howdah.leased WHERE options ? 'progress_text'";
    until(&database, "four running commands", begun).await;
    let held = database.connect().await.query("SELECT id FROM howdah.leased", &[]).await.unwrap();
    let held: HashSet<i64> = held.iter().map(|r| r.get(0)).collect();
    doomed.signal(Signal::KILL);
    let mut good =
        Program::start(&["work", "slow", "--exec", "cat", "--jobs", "4", "--max-jobs", "60", "--server", &server]);
    assert!(good.ended().await.success());
    check_all_done(&database, &ids).await;
    let twice = database.connect().await.query("SELECT id FROM howdah.history WHERE attempt = 2", &[]).await.unwrap();
    assert_eq!(twice.iter().map(|r| r.get(0)).collect::<HashSet<i64>>(), held);
    let results = "SELECT count(*) FROM howdah.history WHERE result = payload";
    assert_eq!(database.count(results).await, 60, "stdout is the result");
}

#[tokio::test]
async fn a_killed_broker_loses_nothing_and_its_workers_go_on_at_the_other() {
    let database = database().await;
    let (mut a, a_grpc) = Program::serve(&database.url, &QUICK).await;
    let (_b, b_grpc) = Program::serve(&database.url, &QUICK).await;
    let done = Arc::new(AtomicUsize::new(0));
    let mut workers = Vec::new();
    for order in [[&a_grpc, &b_grpc], [&b_grpc, &a_grpc]] {
        let done = done.clone();
        let handler = move |_: Job| {
            done.fetch_add(1, Ordering::Relaxed);
            async { Ok::<_, JobError>(()) }
        };
        let client = client(&[order[0], order[1]]).await;
        workers.push(client.worker().handle("k", handler).concurrency(50).build().start());
    }
    let producer = client(&[&a_grpc, &b_grpc]).await.producer();
    let mut ids = HashSet::new();
    for round in 0..20 {
        let jobs = (0..250).map(|_| NewJob::new("k").payload("x"));
        let stored = soon("an enqueue", producer.enqueue_all(jobs)).await.expect("enqueue");
        ids.extend(stored.iter().map(|e| e.id));
        if round == 8 {
            a.signal(Signal::KILL);
            a.ended().await;
        }
    }
    assert_eq!(ids.len(), 5_000, "an enqueue that was answered twice has the same ids");
    check_all_done(&database, &ids).await;
    assert!(done.load(Ordering::Relaxed) >= 5_000);
    for worker in workers {
        soon("the worker's end", worker.stop()).await.expect("a good end");
    }
}

#[tokio::test]
async fn a_stopped_worker_that_wakes_up_late_has_lost_its_leases() {
    let database = database().await;
    let broker = TestBroker::start_with(&database, |c| c.session_grace = Duration::from_millis(100)).await;
    let id = client(&[broker.grpc.trim_start_matches("http://")]).await.enqueue(NewJob::new("z")).await.unwrap().id;
    let mut worker = Worker::connect(&broker.grpc, "z", 1).await;
    let stale = worker.job().await;
    worker.vanish();
    until(&database, "the end of the grace time", "SELECT count(*) = 1 FROM howdah.ready").await;
    let mut worker = Worker::connect(&broker.grpc, "z", 1).await;
    let fresh = worker.job().await;
    assert_eq!(worker.ack(&stale).await.status(), SettleStatus::LeaseLost);
    assert_eq!(worker.ack(&fresh).await.status(), SettleStatus::Ok);
    assert_eq!(worker.ack(&stale).await.status(), SettleStatus::LeaseLost);
    assert_eq!(database.count(&format!("SELECT attempt::bigint FROM howdah.history WHERE id = {id}")).await, 2);
}

#[tokio::test]
async fn postgres_killed_under_load_loses_nothing() {
    let mut config = cluster_config();
    config.fsync = true;
    let mut cluster = Cluster::start(config).await.expect("Postgres");
    cluster.create_database("app").await.expect("database");
    let database = TestDatabase { url: cluster.url("app") };
    let broker = TestBroker::start_with(&database, |c| c.broker_lease = Duration::from_secs(60)).await;
    let address = broker.grpc.trim_start_matches("http://").to_owned();
    let client = client(&[&address]).await;
    let worker = client.worker().handle("p", |_: Job| async { Ok::<_, JobError>(()) }).concurrency(100).build().start();
    let stop = Arc::new(AtomicBool::new(false));
    let stored = Arc::new(AtomicUsize::new(0));
    let producing = tokio::spawn({
        let (producer, stop, stored) = (client.producer(), stop.clone(), stored.clone());
        async move {
            let mut ids = HashSet::new();
            while !stop.load(Ordering::Relaxed) {
                // The producer repeats what failed, with the same request key.
                if let Ok(more) = producer.enqueue_all((0..50).map(|_| NewJob::new("p").payload("x"))).await {
                    ids.extend(more.iter().map(|e| e.id));
                    stored.fetch_add(more.len(), Ordering::Relaxed);
                }
            }
            ids
        }
    });
    for _ in 0..3 {
        let before = stored.load(Ordering::Relaxed);
        soon("progress", async {
            while stored.load(Ordering::Relaxed) < before + 500 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        cluster.stop(StopMode::Immediate).await;
        cluster.restart().await.expect("restart");
    }
    stop.store(true, Ordering::Relaxed);
    let ids = soon("the producer's end", producing).await.expect("no panic");
    // What a failed enqueue left may be there as well: 0 or 1 of each; so only the accepted are checked.
    until(&database, "the end of all jobs", "SELECT NOT EXISTS (SELECT FROM howdah.job WHERE state <> 'succeeded')")
        .await;
    let rows = database.connect().await.query("SELECT id FROM howdah.history", &[]).await.unwrap();
    let done: HashSet<i64> = rows.iter().map(|r| r.get(0)).collect();
    assert_eq!(rows.len(), done.len(), "a job is in history twice");
    assert!(ids.is_subset(&done), "{} accepted jobs are lost", (&ids - &done).len());
    soon("the worker's end", worker.stop()).await.expect("a good end");
    broker.stop().await;
}

#[tokio::test]
async fn with_postgres_away_calls_answer_unavailable_and_it_goes_on_when_it_is_back() {
    let mut config = cluster_config();
    // It is stopped hard, and must remember what was committed.
    config.fsync = true;
    let mut cluster = Cluster::start(config).await.expect("Postgres");
    cluster.create_database("app").await.expect("database");
    let database = TestDatabase { url: cluster.url("app") };
    let broker = TestBroker::start_with(&database, |c| c.database_timeout = Duration::from_secs(5)).await;
    cluster.stop(StopMode::Immediate).await;
    let mut jobs = crate::support::jobs_client(&broker.grpc).await;
    let request =
        || howdah_proto::v1::EnqueueJobsRequest { jobs: vec![crate::support::new_job("u", "")], ..Default::default() };
    let refused = soon("an answer", jobs.enqueue_jobs(request())).await.expect_err("it cannot be stored");
    assert_eq!(refused.code(), tonic::Code::Unavailable);
    cluster.restart().await.expect("restart");
    // Until the broker has found Postgres again, and while that is slow, it is right to say that it cannot.
    let mut worker = soon("a welcome", async {
        loop {
            let subscribe = Subscribe { task_type: "u".into(), window: 1, ..Default::default() };
            match Worker::try_subscribe(&broker.grpc, subscribe).await {
                Ok(worker) => return worker,
                Err(status) => assert_eq!(status.code(), tonic::Code::Unavailable, "{status:?}"),
            }
        }
    })
    .await;
    soon("an accepted enqueue", async { while jobs.enqueue_jobs(request()).await.is_err() {} }).await;
    let job = worker.job().await;
    let mut acked = worker.ack(&job).await.status();
    while acked == SettleStatus::Unavailable {
        acked = worker.ack(&job).await.status();
    }
    assert_eq!(acked, SettleStatus::Ok);
}

#[tokio::test]
async fn with_postgres_silent_an_enqueue_waits_for_it_once_and_not_behind_others() {
    let database = database().await;
    let broker = TestBroker::start_with(&database, |c| c.database_timeout = Duration::from_secs(3)).await;
    let enqueue = |task_type: &'static str| {
        let grpc = broker.grpc.clone();
        async move {
            let request = howdah_proto::v1::EnqueueJobsRequest {
                jobs: vec![crate::support::new_job(task_type, "")],
                ..Default::default()
            };
            crate::support::jobs_client(&grpc).await.enqueue_jobs(request).await
        }
    };
    for task_type in ["first", "second"] {
        enqueue(task_type).await.expect("the type is known");
    }
    let mut silence = database.connect().await;
    let silence = silence.transaction().await.unwrap();
    silence.batch_execute("LOCK TABLE howdah.ready IN EXCLUSIVE MODE").await.unwrap();
    let first = tokio::spawn(enqueue("first"));
    let waiting =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    until(&database, "a statement that waits", &format!("SELECT ({waiting}) = 1")).await;
    let second = tokio::spawn(enqueue("second"));
    for refused in [first, second] {
        let status = soon("an answer", refused).await.unwrap().expect_err("it is not known to be stored");
        assert_eq!(status.code(), tonic::Code::Unavailable);
    }
    // Postgres still has the first, and nobody knows what becomes of it. The second was not sent.
    assert_eq!(database.count(waiting).await, 1);
    silence.rollback().await.unwrap();
    until(&database, "the first", "SELECT count(*) = 2 FROM howdah.job WHERE task_type = 'first'").await;
    assert_eq!(database.count("SELECT count(*) FROM howdah.job WHERE task_type = 'second'").await, 1);
}

#[tokio::test]
async fn killing_backends_all_the_time_loses_nothing() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let client = client(&[broker.grpc.trim_start_matches("http://")]).await;
    let worker = client.worker().handle("t", |_: Job| async { Ok::<_, JobError>(()) }).concurrency(20).build().start();
    let stop = Arc::new(AtomicBool::new(false));
    let killer = tokio::spawn({
        let (killer, stop) = (database.connect().await, stop.clone());
        async move {
            let sql = "SELECT pg_terminate_backend(pid), pg_sleep(0.1) FROM pg_stat_activity
                       WHERE datname = current_database() AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1";
            while !stop.load(Ordering::Relaxed) {
                drop(killer.simple_query(sql).await);
            }
        }
    });
    let producer = client.producer();
    let mut ids = HashSet::new();
    for _ in 0..40 {
        let jobs = (0..50).map(|_| NewJob::new("t"));
        if let Ok(stored) = soon("an enqueue", producer.enqueue_all(jobs)).await {
            ids.extend(stored.iter().map(|e| e.id));
        }
    }
    stop.store(true, Ordering::Relaxed);
    // To its end: what it has begun might kill the connection that looks.
    soon("the killer's end", killer).await.expect("no panic");
    assert_eq!(ids.len(), 2_000);
    check_all_done(&database, &ids).await;
    soon("the worker's end", worker.stop()).await.expect("a good end");
}

#[tokio::test]
async fn a_broker_told_to_stop_ends_well_and_a_second_signal_ends_it_at_once() {
    let database = database().await;
    let (mut polite, _) = Program::serve(&database.url, &[]).await;
    polite.signal(Signal::TERM);
    assert!(polite.ended().await.success());
    let (mut held, grpc) = Program::serve(&database.url, &["--drain-deadline", "60s"]).await;
    let mut worker = Worker::connect(&format!("http://{grpc}"), "x", 1).await;
    held.signal(Signal::TERM);
    // It drains now; the worker does not leave, so it would take a minute.
    assert!(matches!(worker.message().await, Ok(Some(work_response::Message::Drain(_)))));
    held.signal(Signal::TERM);
    assert!(!held.ended().await.success());
    let left = "SELECT count(*) FROM howdah.broker WHERE expires > now() + interval '16 s'";
    assert_eq!(database.count(left).await, 0);
}

#[tokio::test]
async fn a_worker_told_to_stop_while_its_broker_is_away_ends_and_says_what_is_not_confirmed() {
    let database = database().await;
    let (mut broker, grpc) = Program::serve(&database.url, &SHORT_GRACE).await;
    let server = format!("http://{grpc}");
    let id = client(&[&grpc]).await.enqueue(NewJob::new("away")).await.unwrap().id;
    let args = ["work", "away", "--server", &server, "--exec", "echo $PPID >&3; sleep 600"];
    let away = async {
        let begun = "SELECT count(*) = 1 FROM howdah.leased WHERE options ? 'progress_text'";
        until(&database, "a running command", begun).await;
        let pid = database.count("SELECT (options ->> 'progress_text')::bigint FROM howdah.leased").await;
        broker.signal(Signal::KILL);
        broker.ended().await;
        let pid = rustix::process::Pid::from_raw(pid as i32).expect("pid");
        rustix::process::kill_process(pid, Signal::TERM).expect("kill");
    };
    let ((status, _, errors), ()) = tokio::join!(run(&args, b""), away);
    assert_eq!(status.code(), Some(69), "{errors}");
    assert!(errors.contains(&format!("{id} given back")) && errors.contains("not confirmed"), "{errors}");
}
