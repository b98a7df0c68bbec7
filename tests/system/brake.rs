//! Tests the brake of a task type: after failed attempts in a row, one job at a time is tried until one succeeds.

use howdah_proto::v1::{Brake, LeasedJob, ListTaskTypesRequest, SettleStatus, TaskType, TaskTypeSettings};

use crate::support::*;

/// A brake that starts after three failed attempts in a row. Its first pause is so long that only a test ends it.
fn brake() -> TaskTypeSettings {
    of(Brake { failures: 3, initial_delay: Some(wire(HOUR)), max_delay: Some(wire(5 * HOUR)) })
}

fn of(brake: Brake) -> TaskTypeSettings {
    TaskTypeSettings { brake: Some(brake), ..TaskTypeSettings::default() }
}

/// Waits until the type `b` has this number of failed attempts in a row, and is braked or not.
async fn until_failures(broker: &Service, failures: i64, is_braked: bool) {
    let of = if is_braked { "IS NOT NULL" } else { "IS NULL" };
    let counted = format!("SELECT EXISTS (SELECT FROM howdah.brake WHERE failures = {failures} AND since {of})");
    broker.until(&format!("{failures} failures in a row"), &counted).await;
}

async fn until_released(broker: &Service) {
    broker.until("the end of the brake", "SELECT NOT EXISTS (SELECT FROM howdah.brake)").await;
}

/// Ends the pause before the next trial.
async fn end_pause(broker: &Service) {
    broker.sql("UPDATE howdah.brake SET next_at = now()").await;
}

/// Fails all jobs, which are scheduled for later.
async fn fail(worker: &mut Worker, jobs: &[LeasedJob]) {
    for job in jobs {
        worker.nack(job, "the service is down").retry_after(HOUR).await;
    }
}

/// Asserts that the worker gets no job of the type `b`, although jobs are ready: it gets a later job of another type.
async fn gets_none(broker: &Service, worker: &mut Worker) {
    broker.enqueue("other").await;
    let job = worker.next().await;
    assert_eq!((job.task_type.as_str(), worker.buffered()), ("other", 0));
    worker.ack(&job).await;
}

async fn listed(broker: &Service) -> TaskType {
    let request = ListTaskTypesRequest { task_type: "b".into(), ..Default::default() };
    let answer = with_timeout("an answer", broker.task_types().list_task_types(request)).await.expect("types");
    answer.into_inner().task_types.remove(0)
}

#[tokio::test]
async fn after_failures_in_a_row_one_job_at_a_time_is_tried_until_one_succeeds() {
    let broker = TestBroker::start().await;
    broker.set("b", brake()).await;
    let mut worker = broker.worker("b").window(10).and("other").await;
    broker.enqueue_all(["b"; 3]).await;
    let first = worker.take(3).await;
    fail(&mut worker, &first).await;
    until_failures(&broker, 3, true).await;
    broker.enqueue_all(["b"; 5]).await;
    gets_none(&broker, &mut worker).await;
    // The pause doubles with each trial, up to the longest one.
    for (trial, hours) in [(1, 2), (2, 4), (3, 5)] {
        end_pause(&broker).await;
        let job = worker.next().await;
        // No second job is tried while the first one runs, even if the pause is over, and no job is tried right after it.
        end_pause(&broker).await;
        gets_none(&broker, &mut worker).await;
        fail(&mut worker, &[job]).await;
        until_failures(&broker, 3 + trial, true).await;
        let pause = format!(
            "SELECT count(*) FROM howdah.brake WHERE next_at BETWEEN now() + interval '{hours} hours' - interval '4 minutes'
                 AND now() + interval '{hours} hours'"
        );
        assert_eq!(broker.count(&pause).await, 1, "after trial {trial}");
    }
    end_pause(&broker).await;
    let job = worker.next().await;
    worker.ack(&job).await;
    until_released(&broker).await;
    assert_eq!(worker.next().await.attempt, 1);
}

#[tokio::test]
async fn a_success_starts_the_count_again_and_snoozes_and_lost_workers_do_not_count() {
    let broker = TestBroker::start().await;
    broker.set("b", brake()).await;
    broker.enqueue_all(["b"; 7]).await;
    let mut worker = broker.worker("b").window(10).await;
    let jobs = worker.take(7).await;
    fail(&mut worker, &jobs[..2]).await;
    until_failures(&broker, 2, false).await;
    worker.ack(&jobs[2]).await;
    until_released(&broker).await;
    worker.snooze(&jobs[3], HOUR).await;
    worker.release(&jobs[4]).await;
    fail(&mut worker, &jobs[5..]).await;
    until_failures(&broker, 2, false).await;
}

#[tokio::test]
async fn an_attempt_that_began_before_the_brake_was_set_neither_counts_as_failed_nor_as_succeeded() {
    let broker = TestBroker::start().await;
    broker.set("b", brake()).await;
    broker.enqueue_all(["b"; 5]).await;
    let jobs = broker.pull("b").up_to(5).await;
    // Simulates two claims by a broker that has not read the brake yet: such claims do not mark their leases. Deletes the limit
    // change, so that no scan marks them later.
    let unmarked = format!("UPDATE howdah.leased SET limited = NULL WHERE id IN ({}, {})", jobs[0].id, jobs[1].id);
    broker.sql(&format!("DELETE FROM howdah.limit_change; {unmarked}")).await;
    let failed = |job| nack(job, "down").retry_after(HOUR);
    broker.settle(vec![failed(&jobs[0]), failed(&jobs[2]), failed(&jobs[3])]).await;
    until_failures(&broker, 2, false).await;
    broker.settle(vec![ack(&jobs[1])]).await;
    broker.settle(vec![failed(&jobs[4])]).await;
    until_failures(&broker, 3, true).await;
}

#[tokio::test]
async fn a_late_success_of_a_lost_worker_starts_the_count_again() {
    let broker = TestBroker::start_with(|config| config.session_grace = millis(1)).await;
    broker.set("b", brake()).await;
    broker.enqueue_all(["b"; 3]).await;
    let failed = broker.pull("b").up_to(2).await;
    broker.settle(failed.iter().map(|job| nack(job, "down").retry_after(HOUR)).collect()).await;
    until_failures(&broker, 2, false).await;
    let mut worker = broker.worker("b").window(1).await;
    let job = worker.next().await;
    worker.vanish();
    broker.until("the end of the lease", "SELECT count(*) = 0 FROM howdah.leased").await;
    assert_eq!(broker.settle(vec![ack(&job)]).await, [SettleStatus::Ok]);
    until_released(&broker).await;
}

#[tokio::test]
async fn a_brake_that_another_transaction_has_locked_delays_no_other_brake() {
    let broker = TestBroker::start().await;
    let after_two = Brake { failures: 2, initial_delay: Some(wire(HOUR)), ..Brake::default() };
    broker.set("b", of(after_two)).await;
    broker.set("c", of(after_two)).await;
    broker.enqueue_all(["b", "b", "c", "c"]).await;
    let jobs = broker.pull("b").up_to(2).await;
    broker.settle(vec![nack(&jobs[0], "down").retry_after(HOUR)]).await;
    until_failures(&broker, 1, false).await;
    let locks = broker.database.connect().await;
    locks.batch_execute("BEGIN; SELECT FROM howdah.brake FOR UPDATE").await.expect("a lock");
    let others = broker.pull("c").up_to(2).await;
    let all = [&jobs[1], &others[0], &others[1]];
    broker.settle(all.map(|job| nack(job, "down").retry_after(HOUR)).into()).await;
    let braked = |name: &str| {
        format!(
            "SELECT EXISTS (SELECT FROM howdah.brake k JOIN howdah.task_type t ON t.id = k.type_id
                            WHERE t.name = '{name}' AND k.since IS NOT NULL)"
        )
    };
    broker.until("the brake of the other type", &braked("c")).await;
    locks.batch_execute("ROLLBACK").await.expect("rollback");
    broker.until("the brake of the type that was locked", &braked("b")).await;
}

#[tokio::test]
async fn failures_at_all_brokers_and_in_sql_count_together() {
    let (a, b) = TestBroker::pair().await;
    a.set("b", brake()).await;
    a.settings_reach(&b).await;
    a.enqueue_all(["b"; 4]).await;
    let mut on_a = a.worker("b").window(2).await;
    let mut on_b = b.worker("b").window(2).await;
    let (of_a, of_b) = (on_a.take(2).await, on_b.take(2).await);
    fail(&mut on_a, &of_a[..1]).await;
    fail(&mut on_b, &of_b[..1]).await;
    until_failures(&a, 2, false).await;
    let LeasedJob { id, token, .. } = of_a[1];
    a.sql(&format!("SELECT howdah.fail({id}, {token}, 'down', interval '1 hour')")).await;
    until_failures(&a, 3, true).await;
    let LeasedJob { id, token, .. } = of_b[1];
    a.sql(&format!("SELECT howdah.complete({id}, {token})")).await;
    until_released(&a).await;
}

#[tokio::test]
async fn timeouts_count_and_a_job_that_goes_to_its_fallback_counts_for_the_type_that_failed() {
    let broker = TestBroker::start().await;
    broker.set("b", brake()).await;
    let failed = |failures: i64| {
        format!(
            "SELECT EXISTS (SELECT FROM howdah.brake k JOIN howdah.task_type t ON t.id = k.type_id
                            WHERE t.name = 'b' AND k.failures = {failures})"
        )
    };
    broker.enqueue(new_job("b", "").timeout(millis(1)).max_attempts(1)).await;
    assert_eq!(broker.pull("b").await.len(), 1);
    broker.until("a failure", &failed(1)).await;
    broker.enqueue(new_job("b", "").fallback("f")).await;
    let jobs = broker.pull("b").await;
    broker.settle(vec![nack(&jobs[0], "no").no_retry()]).await;
    broker.until("two failures", &failed(2)).await;
}

#[tokio::test]
async fn a_braked_type_is_shown_and_is_free_once_it_has_no_brake() {
    let broker = TestBroker::start().await;
    broker.set("b", brake()).await;
    let mut worker = broker.worker("b").window(10).await;
    broker.enqueue_all(["b"; 3]).await;
    assert_eq!(listed(&broker).await.braked, None);
    let jobs = worker.take(3).await;
    fail(&mut worker, &jobs).await;
    until_failures(&broker, 3, true).await;
    let braked = listed(&broker).await.braked.expect("a brake");
    assert_eq!(braked.failures_in_a_row, 3);
    let (since, next) = (braked.since_time.expect("a time").seconds, braked.next_attempt_time.expect("a time").seconds);
    assert!((3599..=3900).contains(&(next - since)), "{braked:?}");
    let server = ["--server", &broker.grpc];
    let (_, types, _) = run(&[&["types"][..], &server].concat(), b"").await;
    assert!(types.contains("braked since") && types.contains("3 failures in a row, next attempt in"), "{types}");
    eventually("the metric", async || broker.metrics().await.contains("howdah_braked{task_type=\"b\"} 1")).await;
    let id = broker.enqueue("b").await;
    broker.set("b", TaskTypeSettings::default()).await;
    assert_eq!(worker.next().await.id, id);
    assert_eq!(listed(&broker).await.braked, None);
}

#[tokio::test]
async fn a_brake_out_of_bounds_is_refused_and_gets_default_pauses() {
    let broker = TestBroker::start().await;
    let d = Brake { failures: 1, ..Brake::default() };
    for (field, brake) in [
        ("failures", Brake { failures: 0, ..d }),
        ("failures", Brake { failures: 1_000_001, ..d }),
        ("initial_delay", Brake { initial_delay: Some(wire(secs(0))), ..d }),
        ("max_delay", Brake { max_delay: Some(wire(secs(31 * 24 * 3600))), ..d }),
        ("max_delay", Brake { initial_delay: Some(wire(HOUR)), max_delay: Some(wire(MINUTE)), ..d }),
    ] {
        broker.set("b", of(brake)).refused().await.names(&format!("settings.brake.{field}"));
    }
    let pauses =
        |initial, max| Some(Brake { failures: 1, initial_delay: Some(wire(initial)), max_delay: Some(wire(max)) });
    assert_eq!(broker.set("b", of(d)).await.brake, pauses(secs(1), MINUTE));
    let long = Brake { initial_delay: Some(wire(HOUR)), ..d };
    assert_eq!(broker.set("b", of(long)).await.brake, pauses(HOUR, HOUR));
    let set = ["type", "set", "b", "--brake-failures", "20", "--brake-max-delay", "2h", "--server", &broker.grpc];
    let (_, words, err) = run(&set, b"").await;
    assert_eq!(words, "brake-failures 20, brake-initial-delay 1h, brake-max-delay 2h\n", "{err}");
    // The pause doubles with each trial. A high number of trials does not overflow.
    let pause =
        |trials| format!("SELECT extract(epoch FROM howdah.brake_pause(t, {trials}))::bigint FROM howdah.task_type t");
    for (trials, seconds) in [(0, 3600), (1, 7200), (2, 7200), (2_000_000_000, 7200)] {
        assert_eq!(broker.count(&pause(trials)).await, seconds, "after {trials} trials");
    }
}
