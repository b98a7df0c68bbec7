//! Tests sessions: a worker that reconnects in time keeps its leases; otherwise it loses them.

use std::collections::HashSet;

use howdah_core::{
    config::{Config, WakeMode},
    job::Chosen,
};
use howdah_engine::store::{Actor, ClaimRequest, Store, Want};
use howdah_proto::v1::{CancelReason, JobState, LeasedJob, SettleStatus, work_response};

use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::support::*;

/// Sets a grace time, a liveness and a broker lease that do not expire during a test.
pub fn without_expiry(config: &mut Config) {
    (config.session_grace, config.liveness, config.broker_lease) = (HOUR, HOUR, HOUR);
}

#[tokio::test]
async fn a_worker_that_lost_its_stream_resumes_on_the_other_broker_and_its_ack_counts() {
    let a = TestBroker::start_with(without_expiry).await;
    let b = a.another().await;
    let mut worker = a.worker("r").await;
    a.enqueue("r").await;
    let job = worker.next().await;
    let mut forged = job.clone();
    forged.token ^= 1;
    let back = b.worker("r").resumes(&worker.welcome.session_id, &[&job]);
    worker.vanish();
    let mut worker = back.await;
    assert_eq!((&worker.welcome.kept[..], worker.welcome.lost.len()), (&[lease(&job)][..], 0));
    // When it stops, the first broker releases nothing, because the lease belongs to the second broker.
    a.stop().await;
    worker.ack(&job).await;
    assert_eq!(b.worker("r").holds(&[&forged]).await.welcome.lost, [lease(&forged)]);
}

#[tokio::test]
async fn jobs_that_a_resuming_worker_does_not_list_are_released_without_using_up_an_attempt() {
    let broker = TestBroker::start_with(without_expiry).await;
    let mut worker = broker.worker("r").await;
    broker.enqueue_all(["r", "r"]).await;
    let (first, second) = (worker.next().await, worker.next().await);
    let back = broker.worker("r").resumes(&worker.welcome.session_id, &[&first]);
    worker.vanish();
    let mut worker = back.await;
    let again = worker.next().await;
    assert_eq!((again.id, again.attempt), (second.id, 1));
    assert_ne!(again.token, second.token);
    assert_eq!(worker.ack(&second).status().await, SettleStatus::LeaseLost);
    worker.ack(&first).await;
}

#[tokio::test]
async fn a_worker_that_does_not_come_back_loses_its_jobs_after_the_grace_time_and_the_attempt_counts() {
    let broker = TestBroker::start_with(|c| c.session_grace = millis(200)).await;
    let mut worker = broker.worker("g").window(1).await;
    let id = broker.enqueue("g").await;
    let first = worker.next().await;
    worker.vanish();
    let mut other = broker.worker("g").window(1).await;
    let again = other.next().await;
    assert_eq!((again.id, again.attempt), (id, 2));
    assert_eq!(other.ack(&first).status().await, SettleStatus::LeaseLost);
    other.ack(&again).await;
    let job = broker.job(id).await;
    assert!(job.failures[0].error.contains("was lost"), "{:?}", job.failures);
}

#[tokio::test]
async fn a_job_whose_workers_all_vanish_is_dead_after_max_attempts() {
    let broker = TestBroker::start_with(|c| c.session_grace = millis(1)).await;
    let id = broker.enqueue("deadly").max_attempts(3).await;
    for attempt in 1..=3 {
        let mut worker = broker.worker("deadly").window(1).await;
        assert_eq!(worker.next().await.attempt, attempt);
    }
    let job = broker.wait(id).await;
    assert_eq!((job.state(), job.attempt), (JobState::Dead, 3));
}

#[tokio::test]
async fn a_worker_that_does_not_read_gets_a_bounded_part_and_the_rest_goes_to_others() {
    let broker = TestBroker::start().await;
    // Enqueues 64 MiB of jobs for a worker that reads nothing, but whose window has room for all of them.
    let stuck = broker.worker("big").window(1_000).bytes(1 << 30).await;
    for _ in 0..16 {
        broker.enqueue_all((0..64).map(|_| new_job("big", vec![0; 64 << 10]))).await;
    }
    // The broker sends the worker only as many jobs as the HTTP/2 flow-control windows hold. The other jobs are released
    // without counting an attempt.
    broker.until("the unsent jobs", "SELECT count(*) > 900 AND max(attempt) = 0 FROM howdah.ready").await;
    let mut other = broker.worker("big").window(100).await;
    for _ in 0..900 {
        let job = other.next().await;
        assert_eq!(job.attempt, 1);
        other.ack(&job).sent().await;
    }
    drop(stuck);
}

#[tokio::test]
async fn unsent_jobs_of_workers_that_do_not_read_stay_within_the_memory_budget() {
    const JOB: usize = 64 << 10;
    let broker = TestBroker::start_with(|c| c.limits.answer_bytes = 8 << 20).await;
    // Enqueues 160 MiB of jobs, for which the windows of six workers have room.
    for _ in 0..40 {
        broker.enqueue_all((0..64).map(|_| new_job("big", vec![0; JOB]))).await;
    }
    let mut stuck = Vec::new();
    for _ in 0..6 {
        stuck.push(broker.worker("big").window(2_000).bytes(1 << 30).await);
    }
    // Waits until the broker has released jobs that the workers do not read. The HTTP/2 windows hold up to 8 MiB per worker.
    let mut most = 0;
    eventually("released jobs in the metrics", async || {
        most = most.max(broker.count("SELECT count(*) FROM howdah.leased").await);
        broker.metrics().await.lines().any(|line| {
            line.strip_prefix("howdah_unsent_total ").is_some_and(|jobs| jobs.parse::<u64>().is_ok_and(|n| n > 0))
        })
    })
    .await;
    assert!(most as usize * JOB <= (8 << 20) * 8, "{most} jobs were leased at once");
    let mut other = broker.worker("big").window(10).await;
    for _ in 0..100 {
        let job = other.next().await;
        assert_eq!(job.attempt, 1);
        other.ack(&job).sent().await;
    }
    drop(stuck);
}

#[tokio::test]
async fn with_notifications_lost_a_job_is_picked_up_within_the_poll_interval() {
    let (a, b) = TestBroker::pair_with(|c| c.wake = WakeMode::Poll).await;
    let mut worker = b.worker("p").window(1).await;
    a.enqueue("p").await;
    // A poll finds the job, although on a slow machine later than the poll interval.
    let job = worker.next().await;
    worker.ack(&job).await;
}

#[tokio::test]
async fn a_broker_whose_row_was_deleted_registers_again_and_cancels_lost_jobs() {
    let broker = TestBroker::start_with(|c| c.renew_interval = millis(200)).await;
    let mut worker = broker.worker("x").window(2).await;
    broker.enqueue_all(["x", "x"]).await;
    let (kept, lost) = (worker.next().await, worker.next().await);
    // Simulates that the broker was stopped for longer than its lease: its row is gone, and another broker has rescued one of
    // its two jobs.
    let take = format!(
        "UPDATE howdah.broker SET expires = now() - interval '1 s';
         DELETE FROM howdah.leased WHERE id = {}; DELETE FROM howdah.broker",
        lost.id
    );
    broker.sql(&take).await;
    let cancelled = worker.cancelled().await;
    assert_eq!((cancelled.id, cancelled.reason()), (lost.id, CancelReason::LeaseLost));
    worker.ack(&kept).await;
    assert_eq!(worker.ack(&lost).status().await, SettleStatus::LeaseLost);
}

#[tokio::test]
async fn a_listed_lease_that_the_broker_cannot_keep_at_a_resume_uses_up_an_attempt() {
    let broker = TestBroker::start_with(without_expiry).await;
    let mut worker = broker.worker("r").window(1).await;
    broker.enqueue("r").await;
    let job = worker.next().await;
    // Reports three forged tokens of the job before the right one, more than the broker checks for one job.
    let forged: Vec<_> = (0..3).map(|n| LeasedJob { token: i64::MIN + n, ..job.clone() }).collect();
    let held: Vec<&LeasedJob> = forged.iter().chain([&job]).collect();
    let back = broker.worker("none").resumes(&worker.welcome.session_id, &held).await;
    assert_eq!((back.welcome.kept.len(), back.welcome.lost.len()), (0, 4));
    let mut worker = broker.worker("r").window(1).await;
    assert_eq!(worker.next().await.attempt, 2, "the attempt may have begun, so it counts");
}

#[tokio::test]
async fn an_expired_broker_refuses_a_resume_instead_of_reporting_leases_as_lost() {
    let a = TestBroker::start_with(without_expiry).await;
    // The second broker renews its row only once an hour, so it does not notice that its row has expired, as after SIGSTOP.
    let expired = a
        .another_with(|config| {
            without_expiry(config);
            config.renew_interval = HOUR;
        })
        .await;
    let mut worker = a.worker("r").window(1).await;
    a.enqueue("r").await;
    let job = worker.next().await;
    let session_id = worker.welcome.session_id.clone();
    let expire =
        "UPDATE howdah.broker SET expires = now() - interval '1 s' WHERE id = (SELECT max(id) FROM howdah.broker)";
    a.sql(expire).await;
    worker.vanish();
    for lock in [false, true] {
        let mut application = a.database.connect().await;
        let transaction = application.transaction().await.expect("begin");
        if lock {
            transaction.batch_execute("SELECT FROM howdah.leased FOR UPDATE").await.expect("lock");
        }
        let refused = expired.worker("r").resumes(&session_id, &[&job]).answer().await.err().expect("a refusal");
        assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
        assert!(refused.message().contains("has expired"), "{refused:?}");
    }
    let mut back = a.worker("r").resumes(&session_id, &[&job]).await;
    assert_eq!(back.welcome.kept, [lease(&job)]);
    back.ack(&job).await;
}

#[tokio::test]
async fn a_lease_that_its_broker_is_about_to_end_is_not_adopted_again() {
    let broker = TestBroker::start_with(|c| c.session_grace = millis(1)).await;
    let mut worker = broker.worker("r").window(1).await;
    let id = broker.enqueue("r").await;
    let job = worker.next().await;
    let session = worker.welcome.session_id.clone();
    // The worker reconnects without a window for the type. Its grace time has passed, but a lock prevents the release of its
    // job.
    let mut application = broker.database.connect().await;
    let lock = application.transaction().await.unwrap();
    lock.batch_execute("SELECT FROM howdah.leased FOR UPDATE").await.unwrap();
    worker.vanish();
    eventually("a refusal", async || {
        let back = broker.worker("none").resumes(&session, &[&job]).answer().await;
        back.is_err_and(|status| status.message().contains("is ending a lease of this session"))
    })
    .await;
    lock.rollback().await.unwrap();
    // After the test releases the lock, the lease ends. No worker gets the job, because no worker has a window for it.
    eventually("a Welcome that lists the lease as lost", async || {
        let back = broker.worker("none").resumes(&session, &[&job]).answer().await;
        back.is_ok_and(|back| back.welcome.lost == [lease(&job)])
    })
    .await;
    broker.until("the end of the lease", "SELECT count(*) = 1 FROM howdah.ready").await;
    let mut worker = broker.worker("r").window(1).await;
    let again = worker.next().await;
    assert_eq!((again.id, again.attempt), (id, 2));
    worker.ack(&again).await;
}

#[tokio::test]
async fn a_broker_that_registers_again_leaves_leases_that_moved_to_another_broker() {
    let (a, b) = TestBroker::pair_with(|config| {
        without_expiry(config);
        config.wake = WakeMode::Poll;
        config.renew_interval = millis(50);
    })
    .await;
    let mut worker = a.worker("x").window(1).await;
    let id = a.enqueue("x").await;
    let job = worker.next().await;
    // The worker moves to the second broker. The first broker does not know this when it finds that its own row has expired.
    let mut moved = b.worker("x").window(1).resumes(&worker.welcome.session_id, &[&job]).await;
    let owner = a.count("SELECT broker_id::bigint FROM howdah.leased").await;
    a.sql("UPDATE howdah.broker SET expires = now() - interval '1 s' WHERE id = (SELECT min(id) FROM howdah.broker)")
        .await;
    let again = format!(
        "SELECT EXISTS (SELECT FROM howdah.broker WHERE id > {owner} AND expires > started + interval '1 hour')"
    );
    a.until("a broker that has registered and renewed", &again).await;
    assert_eq!(a.count("SELECT broker_id::bigint FROM howdah.leased").await, owner);
    moved.ack(&job).await;
    assert_eq!(b.state(id).await, JobState::Succeeded);
}

#[tokio::test]
async fn an_expired_broker_rescues_no_leases() {
    // The broker renews its row only once an hour, so it does not notice that the row has expired, as after SIGSTOP.
    let broker = TestBroker::start_with(|c| (c.renew_interval, c.broker_lease) = (HOUR, HOUR)).await;
    let mut worker = broker.worker("x").window(2).await;
    broker.enqueue("x").await;
    broker.enqueue("x").limit_key("k").await;
    let jobs = [worker.next().await, worker.next().await];
    let own = broker.count("SELECT id::bigint FROM howdah.broker").await as i32;
    broker.sql("UPDATE howdah.broker SET expires = now() - interval '1 s'").await;
    let store = Store::new(&Config::new(&broker.database.url)).expect("store");
    assert_eq!(store.rescue(10, own).await.expect("rescue").len(), 0);
    assert_eq!(store.lost_coordinated(10, own, false).await.expect("look").len(), 0);
    let other = store.register_broker("other", HOUR).await.expect("register");
    assert_eq!(store.lost_coordinated(10, other, false).await.expect("look").len(), 1);
    assert_eq!(store.rescue(10, other).await.expect("rescue").iter().map(|moved| moved.jobs).sum::<u64>(), 1);
    // No other worker has received the rescued job, so its old lease can still be settled.
    for job in &jobs {
        worker.ack(job).await;
    }
}

#[tokio::test]
async fn leases_of_a_claim_whose_answer_was_lost_are_found_by_its_tokens_and_no_others_are() {
    let broker = TestBroker::start().await;
    broker.enqueue_all(["l"; 6]).await;
    let store = Store::new(&Config::new(&broker.database.url)).expect("store");
    let own = store.register_broker("own", HOUR).await.expect("register");
    let want = Want { type_id: 1, jobs: 3, floor: i64::MIN, largest: i64::MAX };
    let claim = || ClaimRequest { broker_id: Some(own), ..ClaimRequest::new(vec![want], HashSet::new(), 100) };
    let (lost, other) = (claim(), claim());
    let mut leases: Vec<_> = store.claim(&lost).await.expect("claim").jobs.iter().map(|job| job.lease).collect();
    assert_eq!((leases.len(), store.claim(&other).await.expect("claim").jobs.len()), (3, 3));
    leases.sort_unstable();
    assert_eq!(store.lost_claim(own, &lost.tokens).await.expect("look"), leases);
    assert_eq!(store.lost_claim(own, &claim().tokens).await.expect("look"), []);
    let another = store.register_broker("another", HOUR).await.expect("register");
    assert_eq!(store.lost_claim(another, &lost.tokens).await.expect("look"), []);
}

#[tokio::test]
async fn of_two_streams_of_a_session_the_older_ends_and_says_why() {
    for wake in [WakeMode::Listen, WakeMode::Poll] {
        let (a, b) = TestBroker::pair_with(|config| {
            without_expiry(config);
            config.wake = wake;
            config.poll_interval = millis(50);
        })
        .await;
        let mut worker = a.worker("r").window(2).await;
        let session_id = worker.welcome.session_id.clone();
        a.enqueue_all(["r", "r"]).await;
        let (kept, never_got) = (worker.next().await, worker.next().await);
        // The worker resumes its session at broker `b` while its stream at broker `a` is still open.
        let mut moved = b.worker("r").window(1).resumes(&session_id, &[&kept]).await;
        assert_eq!((&moved.welcome.kept[..], moved.welcome.lost.len()), (&[lease(&kept)][..], 0));
        assert_resumed(worker.message().await);
        // Broker `a` releases the job that the worker did not report, without counting an attempt. A new worker of `a` gets
        // this job.
        let mut other = a.worker("r").window(1).await;
        let again = other.next().await;
        assert_eq!((again.id, again.attempt), (never_got.id, 1));
        other.ack(&again).await;
        // The worker resumes the session again, at broker `b`.
        let mut back = b.worker("r").resumes(&session_id, &[&kept]).await;
        assert_resumed(moved.message().await);
        assert_eq!(back.welcome.kept, [lease(&kept)]);
        back.ack(&kept).await;
        // The worker then resumes at broker `a`. The window of the other worker there is closed, so that it does not get the
        // next job.
        other.window("r", 0).await;
        other.ping().await;
        b.enqueue("r").await;
        let job = back.next().await;
        let mut home = a.worker("r").resumes(&session_id, &[&job]).await;
        assert_resumed(back.message().await);
        home.ack(&job).await;
    }
}

/// Asserts that a stream ended with the error for a session that another stream has resumed.
fn assert_resumed(end: Result<Option<work_response::Message>, Status>) {
    let status = end.expect_err("an error");
    assert_eq!(status.code(), Code::Aborted, "{status:?}");
    assert_eq!(status.get_error_details().error_info().map(|info| info.reason.as_str()), Some("SESSION_RESUMED"));
}

#[tokio::test]
async fn one_of_two_concurrent_resumes_gets_the_leases_and_the_other_stream_ends() {
    let (a, b) = TestBroker::pair_with(without_expiry).await;
    for _ in 0..10 {
        let mut worker = a.worker("r").window(1).await;
        let id = a.enqueue("r").await;
        let job = worker.next().await;
        let session_id = worker.welcome.session_id.clone();
        worker.vanish();
        let (at_a, at_b) = tokio::join!(
            a.worker("r").window(1).resumes(&session_id, &[&job]).answer(),
            b.worker("r").window(1).resumes(&session_id, &[&job]).answer(),
        );
        // The later of two concurrent resumes wins. Its stream stays open, and the other stream ends, perhaps before
        // its `Welcome`.
        let owner = "SELECT count(*) FROM howdah.leased WHERE broker_id = (SELECT min(id) FROM howdah.broker)";
        let of_a = a.count(owner).await == 1;
        let (winner, loser) = if of_a { (at_a, at_b) } else { (at_b, at_a) };
        let mut winner = winner.expect("a welcome");
        assert_eq!(winner.welcome.kept, [lease(&job)]);
        match loser {
            Ok(mut loser) => assert_resumed(loser.message().await),
            // The first broker may still be releasing leases of the session, and then answers UNAVAILABLE.
            Err(status) if status.code() == Code::Unavailable => {
                assert!(status.message().contains("is ending a lease of this session"), "{status}");
            }
            Err(status) => assert_resumed(Err(status)),
        }
        winner.ack(&job).await;
        assert_eq!(a.state(id).await, JobState::Succeeded);
    }
}

#[tokio::test]
async fn a_call_whose_caller_goes_away_leaves_no_transaction_open_for_others() {
    let database = database().await;
    let store = Store::new(&Config::new(&database.url)).expect("store");
    let (jobs, by) = (Chosen::from(vec![1]), Actor::of_session("test"));
    // Drops the call after `turns` polls: before, during and after its BEGIN.
    for turns in 0..40_i64 {
        tokio::select! {
            biased;
            _ = store.cancel(&jobs, None, &by) => {}
            () = async { for _ in 0..turns { tokio::task::yield_now().await } } => {}
        }
        // A later statement on the same connection must commit, and not be part of the dropped call's transaction.
        store.register_broker(&format!("broker-{turns}"), HOUR).await.expect("register");
        assert_eq!(database.count("SELECT count(*) FROM howdah.broker").await, turns + 1, "after {turns} turns");
    }
}
