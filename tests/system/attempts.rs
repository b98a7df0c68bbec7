//! Tests how an attempt ends (ack, failure, snooze, timeout), and the token of each attempt.

use std::collections::HashMap;

use howdah_core::config::WakeMode;
use howdah_proto::v1::{
    CancelReason, EndLeasesRequest, JobFilter, JobState, LeasedJob, RetryPolicy, SettleJobsRequest, SettleStatus,
};

use crate::support::*;

#[tokio::test]
async fn a_failed_job_is_tried_again_until_its_attempts_are_used_up_and_keeps_its_errors() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("fails").window(1).await;
    let id = broker.enqueue(new_job("fails", "p").max_attempts(3)).await;
    for attempt in 1..=3 {
        let job = worker.next().await;
        assert_eq!((job.id, job.attempt), (id, attempt));
        worker.nack(&job, &format!("error {attempt}")).at_once().await;
    }
    let job = broker.wait(id).await;
    assert_eq!(job.state(), JobState::Dead);
    let errors: Vec<_> = job.failures.iter().map(|f| f.error.as_str()).collect();
    assert_eq!(errors, ["error 1", "error 2", "error 3"]);
    assert_eq!(&job.payload[..], b"p");
}

#[tokio::test]
async fn a_nack_without_retry_is_dead_at_once_and_a_backoff_is_scheduled() {
    let broker = TestBroker::start().await;
    // The trigger keeps jobs in `scheduled`, because on a slow machine the backoff of 5 s may pass before the test has checked
    // the jobs.
    let stay = "CREATE FUNCTION stay() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
                CREATE TRIGGER stay BEFORE DELETE ON howdah.scheduled FOR EACH ROW EXECUTE FUNCTION stay()";
    broker.sql(stay).await;
    let mut worker = broker.worker("f").window(2).await;
    let ids = broker.enqueue_all(["f", "f"]).await;
    let (first, second) = (worker.next().await, worker.next().await);
    worker.nack(&first, "no").no_retry().await;
    worker.nack(&second, "no").await;
    assert_eq!(broker.state(ids[0]).await, JobState::Dead);
    let waiting = broker.job(ids[1]).await;
    assert_eq!(waiting.state(), JobState::Scheduled);
    let wait = waiting.run_time.unwrap().seconds - waiting.failures[0].finish_time.unwrap().seconds;
    assert!((4..=6).contains(&wait), "the default backoff is 5 s, not {wait} s");
}

#[tokio::test]
async fn a_snoozed_or_released_job_has_not_used_up_an_attempt() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("s").window(1).await;
    broker.enqueue("s").max_attempts(1).await;
    let job = worker.next().await;
    assert_eq!(job.attempt, 1);
    worker.snooze(&job, millis(10)).await;
    let job = worker.next().await;
    assert_eq!(job.attempt, 1);
    worker.release(&job).await;
    let job = worker.next().await;
    assert_eq!(job.attempt, 1);
    worker.ack(&job).await;
}

#[tokio::test]
async fn settling_twice_with_the_same_token_is_ok_twice_and_with_another_one_changes_nothing() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("t").await;
    broker.enqueue_all(["t", "t"]).await;
    let (first, second) = (worker.next().await, worker.next().await);
    worker.ack(&first).await;
    worker.ack(&first).await;
    let mut forged = second.clone();
    forged.token ^= 1;
    assert_eq!(worker.ack(&forged).status().await, SettleStatus::LeaseLost);
    // A repeated nack also succeeds while the job waits for its next attempt.
    worker.nack(&second, "no").at_once().await;
    worker.nack(&second, "no").at_once().await;
    let again = worker.next().await;
    assert_eq!((again.id, again.attempt), (second.id, 2));
    worker.ack(&again).await;
}

#[tokio::test]
async fn ack_and_nack_of_one_job_in_one_message_the_first_counts() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("t").await;
    let id = broker.enqueue("t").await;
    let job = worker.next().await;
    worker.settle(vec![ack(&job), nack(&job, "no").at_once()]).await;
    let mut statuses = [worker.settled().await.status(), worker.settled().await.status()];
    statuses.sort();
    assert_eq!(statuses, [SettleStatus::Ok, SettleStatus::LeaseLost]);
    assert_eq!(broker.state(id).await, JobState::Succeeded);
}

#[tokio::test]
async fn an_attempt_over_its_timeout_is_ended_and_an_extended_one_is_not() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("slow").window(2).await;
    // A timed-out job waits an hour for its next attempt, so that the test finds it scheduled.
    let policy = RetryPolicy { initial_delay: Some(wire(HOUR)), ..RetryPolicy::default() };
    let slow = |timeout| new_job("slow", "").timeout(timeout).retry_policy(policy.clone());
    broker.enqueue_all([slow(HOUR), slow(HOUR)]).await;
    let (first, second) = (worker.next().await, worker.next().await);
    assert_eq!(worker.extend(&first, 2 * HOUR).await, SettleStatus::Ok);
    // Moves all deadlines back by an hour, instead of waiting for a timeout.
    broker.sql("UPDATE howdah.leased SET deadline = deadline - interval '1 hour'").await;
    assert_eq!(worker.cancelled().await.id, second.id);
    assert_eq!(worker.ack(&second).status().await, SettleStatus::LeaseLost);
    worker.ack(&first).await;
    let ended = broker.job(second.id).await;
    assert_eq!(ended.state(), JobState::Scheduled);
    assert!(ended.failures[0].error.contains("timeout"), "{:?}", ended.failures);
    // Waits for a real timeout of 400 ms, which passes whether or not the worker has received the job.
    let short = broker.enqueue(slow(millis(400))).await;
    let over = "failures::text LIKE '%timeout%'";
    let over = format!("SELECT EXISTS (SELECT FROM howdah.scheduled WHERE id = {short} AND {over})");
    broker.until("the timed-out job in the table of scheduled jobs", &over).await;
}

#[tokio::test]
async fn a_timeout_found_by_another_broker_reaches_the_worker_as_a_timeout() {
    // Broker `a` has no notifications and polls once an hour, so it does not find the timeout itself.
    let a = TestBroker::start_with(|config| (config.wake, config.poll_interval) = (WakeMode::Poll, HOUR)).await;
    let mut worker = a.worker("slow").window(1).await;
    a.enqueue("slow").timeout(HOUR).await;
    let job = worker.next().await;
    let _b = a.another().await;
    a.sql("UPDATE howdah.leased SET deadline = deadline - interval '1 hour'").await;
    let cancelled = worker.cancelled().await;
    assert_eq!((cancelled.id, cancelled.reason()), (job.id, CancelReason::Timeout));
    assert_eq!(worker.ack(&job).status().await, SettleStatus::LeaseLost);
}

#[tokio::test]
async fn a_broker_that_missed_a_timeout_tells_the_worker_when_it_renews_its_leases() {
    // The broker has no notifications and polls once an hour, so only its lease renewal finds the ended lease.
    let a = TestBroker::start_with(|config| {
        (config.wake, config.poll_interval) = (WakeMode::Poll, HOUR);
        config.renew_interval = millis(50);
    })
    .await;
    let mut worker = a.worker("slow").window(1).await;
    a.enqueue("slow").timeout(HOUR).await;
    let job = worker.next().await;
    // Expires the broker and ends its lease in one transaction. Otherwise another broker could see the expired broker and
    // rescue its job.
    let away = "BEGIN;
                UPDATE howdah.broker SET expires = now() - interval '1 s';
                WITH ended AS (DELETE FROM howdah.leased RETURNING *)
                INSERT INTO howdah.scheduled (id, rank, created, last_token, run_at, leased_at, type_id, attempt, max_attempts, priority, payload)
                SELECT id, rank, created, token # 5, now() + interval '1 hour', leased_at, type_id, attempt, max_attempts, priority, payload
                FROM ended;
                COMMIT";
    a.sql(away).await;
    let cancelled = worker.cancelled().await;
    assert_eq!((cancelled.id, cancelled.reason()), (job.id, CancelReason::Timeout));
}

#[tokio::test]
async fn an_outcome_that_contradicts_the_stored_one_is_answered_lease_lost_at_every_broker() {
    let (a, b) = TestBroker::pair().await;
    let kinds =
        |job: &LeasedJob| [ack(job), nack(job, "no"), nack(job, "no").no_retry(), snooze(job, HOUR), release(job)];
    let mut worker = a.worker("t").window(50).await;
    a.enqueue_all(["t"; 28]).await;
    let mut jobs = worker.take(28).await;
    // Closes the window, so that jobs that are released or nacked are not delivered again.
    worker.window("t", 0).await;
    let mut unary = b.workers();
    for first in 0..5 {
        for second in 0..5 {
            let job = jobs.pop().expect("a job");
            for (kind, expected) in [(first, true), (second, first == second), (first, true), (second, first == second)]
            {
                let outcome = kinds(&job)[kind].clone();
                let expected = if expected { SettleStatus::Ok } else { SettleStatus::LeaseLost };
                let request = SettleJobsRequest { outcomes: vec![outcome.clone()] };
                worker.settle(vec![outcome]).await;
                assert_eq!(worker.settled().await.status(), expected, "{first}, then {second}: {kind}");
                let answer =
                    with_timeout("an answer", unary.settle_jobs(request)).await.expect("an answer").into_inner();
                assert_eq!(answer.results[0].status(), expected, "{first}, then {second}: {kind}, at the other broker");
            }
        }
    }
    // SQL settles the job first. After that, a worker's outcome succeeds only if it is the same outcome.
    for (sql, same) in [("complete({})", 0), ("fail({}, 'no', '1 hour')", 1), ("fail({}, 'no', no_retry => true)", 2)] {
        let job = jobs.pop().expect("a job");
        let call = sql.replace("{}", &format!("{}, {}", job.id, job.token));
        a.sql(&format!("SELECT howdah.{call}")).await;
        for (kind, outcome) in kinds(&job).into_iter().enumerate() {
            let answer =
                with_timeout("an answer", unary.settle_jobs(SettleJobsRequest { outcomes: vec![outcome] })).await;
            let expected = if kind == same { SettleStatus::Ok } else { SettleStatus::LeaseLost };
            assert_eq!(answer.expect("an answer").into_inner().results[0].status(), expected, "{sql}, then {kind}");
        }
    }
}

#[tokio::test]
async fn contradicting_outcomes_in_one_batch_are_answered_according_to_the_stored_state() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("t").window(100).await;
    broker.enqueue_all(["t"; 100]).await;
    let jobs = worker.take(100).await;
    // Sends all outcomes without waiting for answers, so that contradicting outcomes of a job are written in one batch.
    for job in &jobs {
        worker.settle(vec![ack(job)]).await;
        worker.settle(vec![nack(job, "no").no_retry()]).await;
        worker.settle(vec![ack(job)]).await;
    }
    // Batches are written concurrently, so the nack may be written before the acks. The results of one job agree with its
    // stored state.
    let mut ok: HashMap<i64, usize> = HashMap::new();
    for _ in 0..3 * jobs.len() {
        let settled = worker.settled().await;
        match settled.status() {
            SettleStatus::Ok => *ok.entry(settled.id).or_default() += 1,
            status => assert_eq!(status, SettleStatus::LeaseLost),
        }
    }
    for job in &jobs {
        let expected = match broker.state(job.id).await {
            JobState::Succeeded => 2,
            JobState::Dead => 1,
            state => panic!("{state:?}"),
        };
        assert_eq!(ok.get(&job.id), Some(&expected), "either both acks or the nack succeed, as in the stored state");
    }
}

#[tokio::test]
async fn an_operator_takes_jobs_that_hang_from_their_workers_at_any_broker() {
    let (a, b) = TestBroker::pair().await;
    let job = || new_job("hangs", "").retry_after_each(HOUR);
    let ids = a.enqueue_all([job(), job(), job(), job()]).await;
    let (mut here, mut there) = (a.worker("hangs").window(1).await, b.worker("hangs").window(1).await);
    let (mine, theirs) = (here.next().await, there.next().await);
    for worker in [&mut here, &mut there] {
        worker.window("hangs", 0).await;
        worker.ping().await;
    }
    let pulled = a.pull("hangs").await;
    let end = async |ids: Vec<i64>, error: Option<&str>| {
        let filter = Some(JobFilter { ids, ..Default::default() });
        let request = EndLeasesRequest { filter, error: error.map(str::to_owned), ..Default::default() };
        with_timeout("an answer", a.jobs().end_leases(request)).await.expect("an answer").into_inner().ended_ids
    };
    let mut taken = vec![mine.id, theirs.id, pulled[0].id];
    assert_eq!(end(ids.clone(), Some("it hangs")).await.len(), 3, "the fourth job was not leased");
    taken.sort_unstable();
    for (worker, id) in [(&mut here, mine.id), (&mut there, theirs.id)] {
        let cancelled = worker.cancelled().await;
        assert_eq!((cancelled.id, cancelled.reason()), (id, CancelReason::LeaseLost));
    }
    for id in &taken {
        let job = a.job(*id).await;
        assert_eq!((job.state(), job.attempt, &job.failures[0].error[..]), (JobState::Scheduled, 1, "it hangs"));
    }
    assert_eq!(here.nack(&mine, "late").status().await, SettleStatus::LeaseLost);
    assert_eq!(here.nack(&pulled[0], "late").status().await, SettleStatus::LeaseLost);
    assert_eq!(end(taken, None).await, [0_i64; 0], "leases were ended twice");

    here.window("hangs", 1).await;
    let hung = here.next().await;
    here.window("hangs", 0).await;
    here.ping().await;
    assert_eq!(end(vec![hung.id], None).await, [hung.id]);
    assert_eq!(here.cancelled().await.id, hung.id);
    let job = a.job(hung.id).await;
    assert_eq!((job.state(), job.attempt), (JobState::Ready, 0));
}
