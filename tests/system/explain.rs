//! Tests every reason for which a job does not run. Each test creates the cause and checks the explanation.

mod position; // the reported order, compared with actual deliveries
mod pulls; // types with pulled jobs
mod rate; // estimated start of a job
mod no_obstacle; // jobs without an obstacle; coverage of all reasons

use howdah_proto::v1::{
    Brake, DependencyFailure, DiscardJobsRequest, ExplainJobRequest, ExplainJobResponse, JobFilter, JobReason,
    JobState, Rate, ReasonKind, TaskTypeSettings,
};
use serde_json::Value;
use tonic::Code;

use crate::{access::Guarded, support::*};

/// Explains a job with `ExplainJob`, and asserts that every sentence ends with a full stop.
async fn explain(broker: &Service, id: i64) -> ExplainJobResponse {
    let answer = with_timeout("an answer", broker.jobs().explain_job(ExplainJobRequest { id })).await;
    let explained = answer.expect("an explanation").into_inner();
    assert!(!explained.reasons.is_empty());
    for reason in &explained.reasons {
        assert!(reason.text.ends_with('.') && !reason.text.contains("  "), "{reason:?}");
        assert!(reason.remedy.is_empty() || reason.remedy.ends_with('.'), "{reason:?}");
        assert_ne!(reason.kind(), ReasonKind::Unspecified);
    }
    explained
}

async fn kinds(broker: &Service, id: i64) -> Vec<ReasonKind> {
    explain(broker, id).await.reasons.iter().map(JobReason::kind).collect()
}

/// Asserts that the explanation of a job has exactly one reason of this kind, and returns the reason.
async fn reason(broker: &Service, id: i64, kind: ReasonKind) -> JobReason {
    let mut explained = explain(broker, id).await;
    assert_eq!(explained.reasons.iter().map(JobReason::kind).collect::<Vec<_>>(), [kind], "{explained:?}");
    explained.reasons.remove(0)
}

#[tokio::test]
async fn a_job_that_runs_names_its_holder_and_its_deadline() {
    let broker = TestBroker::start_with(|config| (config.name, config.broker_lease) = ("b1".into(), HOUR)).await;
    let mut worker = broker.worker("r").await;
    let id = broker.enqueue("r").timeout(HOUR).await;
    worker.next().await;
    let running = reason(&broker, id, ReasonKind::Running).await;
    assert_eq!((running.broker.as_str(), running.worker_id.len()), ("b1", 16));
    assert!(running.since.is_some() && running.until.is_some());
    assert!(running.text.contains(&running.worker_id) && running.text.contains("attempt 1 of 10"), "{running:?}");
    worker.vanish();
    eventually("the end of the stream", async || {
        reason(&broker, id, ReasonKind::Running).await.text.contains(", which is disconnected from broker b1,")
    })
    .await;
    // Assigns the lease to an expired broker. The running broker does not rescue the lease during the test: a broker rescues
    // only after it has renewed its own row for `broker_lease`, here an hour.
    broker
        .sql(
            "INSERT INTO howdah.broker (id, name, expires) VALUES (1000, 'gone', now() - interval '1 s');
             UPDATE howdah.leased SET broker_id = 1000",
        )
        .await;
    let gone = reason(&broker, id, ReasonKind::BrokerGone).await;
    assert_eq!(gone.broker, "gone");

    let pulled = broker.enqueue("p").await;
    broker.pull("p").await;
    let held = reason(&broker, pulled, ReasonKind::Running).await;
    assert!(held.text.contains("PullJobs") && held.broker.is_empty(), "{held:?}");
}

#[tokio::test]
async fn a_scheduled_job_says_until_when_and_why() {
    let broker = TestBroker::start().await;
    let delayed = broker.enqueue("s").delay(HOUR).await;
    let until = reason(&broker, delayed, ReasonKind::Delayed).await.until.expect("a time");
    assert_eq!(Some(until), broker.job(delayed).await.run_time);
    assert!(explain(&broker, delayed).await.expected_in.expect("a time").seconds > 3_500);

    let mut worker = broker.worker("s").await;
    let jobs = [(); 3].map(|()| new_job("s", "").retry_after_each(HOUR));
    let [failed, snoozed, both] = broker.enqueue_all(jobs).await[..] else { panic!("three") };
    for job in worker.take(3).await {
        if job.id == snoozed {
            worker.snooze(&job, HOUR).await;
        } else {
            worker.nack(&job, "no route\nto host").await;
        }
    }
    let backing_off = reason(&broker, failed, ReasonKind::BackingOff).await;
    assert_eq!(backing_off.error, "no route\nto host");
    reason(&broker, snoozed, ReasonKind::Snoozed).await;
    broker.retry(&[both]).await;
    let again = worker.next().await;
    worker.snooze(&again, HOUR).await;
    let snoozed_later = reason(&broker, both, ReasonKind::Snoozed).await;
    assert_eq!(snoozed_later.error, "no route\nto host");
    broker.set("s", TaskTypeSettings { paused: true, ..Default::default() }).await;
    assert_eq!(kinds(&broker, delayed).await, [ReasonKind::Delayed, ReasonKind::TypePaused]);
}

#[tokio::test]
async fn a_job_that_waits_for_others_names_them_with_their_states() {
    let broker = TestBroker::start().await;
    let first = broker.enqueue("a").max_attempts(1).await;
    let second = broker.enqueue("a").delay(HOUR).await;
    let after =
        broker.enqueue(new_job("b", "").after(&[first, second]).if_dependency_fails(DependencyFailure::Wait)).await;
    let waits = reason(&broker, after, ReasonKind::Dependency).await;
    let states: Vec<_> = waits.jobs.iter().map(|job| (job.id, job.state(), job.task_type.as_str())).collect();
    assert_eq!(states, [(first, JobState::Ready, "a"), (second, JobState::Scheduled, "a")]);
    let mut worker = broker.worker("a").await;
    let job = worker.next().await;
    worker.nack(&job, "no").await;
    broker.until_state(first, JobState::Dead).await;
    let waits = reason(&broker, after, ReasonKind::Dependency).await;
    assert!(waits.remedy.contains("retry"), "{waits:?}");

    let holder = broker.enqueue(new_job("k", "").key("k")).await;
    let mut worker = broker.worker("k").await;
    worker.next().await;
    let next = broker.enqueue(new_job("k", "").key("k").replace()).await;
    let held = reason(&broker, next, ReasonKind::KeyHeld).await;
    assert_eq!((held.jobs[0].id, held.jobs[0].state()), (holder, JobState::Leased));
}

#[tokio::test]
async fn a_job_at_its_limit_key_names_the_jobs_in_the_slots_and_its_place() {
    let broker = TestBroker::start().await;
    let settings = TaskTypeSettings { key_max_running: 1, key_strict_order: true, ..Default::default() };
    broker.set("l", settings.clone()).await;
    let jobs: Vec<_> = (0..3).map(|_| new_job("l", "").limit_key("it's").retry_after_each(HOUR)).collect();
    let [first, _, third] = broker.enqueue_all(jobs).await[..] else { panic!("three") };
    broker.until_state(first, JobState::Ready).await;
    assert_eq!(kinds(&broker, third).await, [ReasonKind::LimitKeyFull, ReasonKind::LimitKeyOrder]);
    let explained = explain(&broker, third).await;
    let full = &explained.reasons[0];
    assert_eq!((full.jobs[0].id, full.used, full.limit, full.key.as_str()), (first, 1, 1.0, "it's"));
    assert_eq!(explained.position.map(|at| (at.jobs_before, at.has_more)), Some((1, false)));
    // The job failed and still holds the slot of its limit key while it waits for a retry.
    let mut worker = broker.worker("l").await;
    let job = worker.next().await;
    worker.nack(&job, "no").await;
    broker.until_state(first, JobState::Scheduled).await;
    let full = explain(&broker, third).await.reasons.remove(0);
    assert_eq!((full.kind(), full.jobs[0].state()), (ReasonKind::LimitKeyFull, JobState::Scheduled));
    broker.pause_key("l", "it's").await;
    assert_eq!(kinds(&broker, third).await[0], ReasonKind::LimitKeyPaused);
    broker.cancel(&[first]).await;
    assert_eq!(kinds(&broker, third).await, [ReasonKind::LimitKeyPaused, ReasonKind::LimitKeyOrder]);
}

#[tokio::test]
async fn a_gap_and_a_rate_of_a_limit_key_say_when_the_next_may_start() {
    let broker = TestBroker::start().await;
    let slow = Some(Rate { per_second: 0.001, burst: 1 });
    broker.set("gap", TaskTypeSettings { key_min_gap: Some(wire(HOUR)), ..Default::default() }).await;
    broker.set("rate", TaskTypeSettings { key_rate: slow, ..Default::default() }).await;
    for (task_type, kind) in [("gap", ReasonKind::LimitKeyGap), ("rate", ReasonKind::LimitKeyRate)] {
        let jobs = [new_job(task_type, "").limit_key("k"), new_job(task_type, "").limit_key("k")];
        let [first, second] = broker.enqueue_all(jobs).await[..] else { panic!("two") };
        broker.until_state(first, JobState::Ready).await;
        let mut worker = broker.worker(task_type).await;
        let job = worker.next().await;
        worker.ack(&job).await;
        eventually(task_type, async || kinds(&broker, second).await == [kind]).await;
        assert!(reason(&broker, second, kind).await.until.is_some());
    }
}

#[tokio::test]
async fn when_the_time_of_a_gap_or_a_rate_has_come_the_jobs_that_are_ready_must_start_first() {
    let broker = TestBroker::start().await;
    let rate = Some(Rate { per_second: 0.001, burst: 1 });
    broker.set("gap", TaskTypeSettings { key_min_gap: Some(wire(HOUR)), ..Default::default() }).await;
    broker.set("rate", TaskTypeSettings { key_rate: rate, ..Default::default() }).await;
    for (task_type, kind) in [("gap", ReasonKind::LimitKeyGap), ("rate", ReasonKind::LimitKeyRate)] {
        let jobs = [new_job(task_type, "").limit_key("k"), new_job(task_type, "").limit_key("k")];
        let [first, second] = broker.enqueue_all(jobs).await[..] else { panic!("two") };
        broker.until_state(first, JobState::Ready).await;
        broker.sql("UPDATE howdah.limit_state SET gap_from = now() - interval '1 day', tokens = 1").await;
        let behind = reason(&broker, second, kind).await;
        assert_eq!((behind.jobs[0].id, behind.jobs.len(), behind.until), (first, 1, None), "{behind:?}");
    }
}

#[tokio::test]
async fn a_ready_job_says_everything_that_holds_it_back() {
    let broker = TestBroker::start().await;
    let [first, second] = broker.enqueue_all([new_job("t", vec![0; 3_000]), new_job("t", "")]).await[..] else {
        panic!("two")
    };
    assert_eq!(kinds(&broker, second).await, [ReasonKind::NoWorker, ReasonKind::OthersFirst]);
    broker.set("t", TaskTypeSettings { paused: true, ..Default::default() }).await;
    assert_eq!(kinds(&broker, first).await, [ReasonKind::TypePaused, ReasonKind::NoWorker]);
    let mut small = broker.worker("t").bytes(1_000).await;
    assert_eq!(kinds(&broker, first).await, [ReasonKind::TypePaused, ReasonKind::TooLarge]);
    broker.set("t", TaskTypeSettings { max_running: 1, ..Default::default() }).await;
    let job = small.next().await;
    assert_eq!(job.id, second);
    // The broker claimed the job before it knew the limit, and counts such jobs shortly after it has read the limit.
    eventually("the job that counts towards the new limit", async || {
        let limited = explain(&broker, first).await;
        let limit = limited.reasons.iter().find(|reason| reason.kind() == ReasonKind::TypeLimit);
        limit.is_some_and(|limit| (limit.limit, limit.used) == (1.0, 1))
    })
    .await;
    broker.set("t", TaskTypeSettings::default()).await;
    small.vanish();

    let mut full = broker.worker("full").window(1).await;
    let ids = broker.enqueue_all(["full", "full", "full"]).await;
    full.next().await;
    let last = explain(&broker, ids[2]).await;
    let kinds: Vec<_> = last.reasons.iter().map(JobReason::kind).collect();
    assert_eq!(kinds, [ReasonKind::WorkersFull, ReasonKind::OthersFirst]);
    assert_eq!((last.position.expect("a place").jobs_before, last.expected_in), (1, None));
    assert_eq!(last.reasons[0].text, "The worker of the type full holds 1 of at most 1 job.");
    assert!(
        last.reasons[1].text.ends_with(", 1 job goes before this one.")
            && last.reasons[1].remedy.starts_with("That job must start")
    );
}

#[tokio::test]
async fn workers_whose_windows_are_0_are_full_at_every_broker_and_their_type_has_workers() {
    let (a, b) = TestBroker::pair_with(|config| config.renew_interval = millis(20)).await;
    let mut worker = a.worker("w").window(1).await;
    a.enqueue("w").await;
    worker.next().await;
    worker.window("w", 0).await;
    let large = a.enqueue(new_job("w", vec![0; 3_000])).await;
    for broker in [&a, &b] {
        eventually("a full worker", async || {
            let reasons = explain(broker, large).await.reasons;
            reasons[0].text == "The worker of the type w is full: its window is 0."
        })
        .await;
        assert_eq!(kinds(broker, large).await, [ReasonKind::WorkersFull]);
    }
    eventually("the metric", async || a.metrics().await.contains("howdah_workers{task_type=\"w\"} 1")).await;
    worker.vanish();
    for broker in [&a, &b] {
        eventually("no worker", async || kinds(broker, large).await == [ReasonKind::NoWorker]).await;
    }
}

#[tokio::test]
async fn a_rate_limit_and_fair_shares_are_named() {
    let broker = TestBroker::start().await;
    let rate = Some(Rate { per_second: 0.001, burst: 1 });
    broker.set("r", TaskTypeSettings { rate, ..Default::default() }).await;
    let mut worker = broker.worker("r").await;
    let jobs: Vec<_> = (0..3).map(|n| new_job("r", "").fair_key(&format!("f{n}"))).collect();
    let mut left = broker.enqueue_all(jobs).await;
    let first = worker.next().await;
    left.retain(|&id| id != first.id);
    let last = explain(&broker, left[1]).await;
    let kinds: Vec<_> = last.reasons.iter().map(JobReason::kind).collect();
    assert_eq!(kinds, [ReasonKind::TypeRate, ReasonKind::OthersFirst, ReasonKind::FairShare]);
    assert!(last.reasons[0].until.is_some());
    // The explanation omits fair sharing, because each job before this one has the same fair key or none.
    let own = new_job("own", "").fair_key("f");
    let ids = broker.enqueue_all([own.clone(), new_job("own", ""), own]).await;
    assert_eq!(self::kinds(&broker, ids[2]).await, [ReasonKind::NoWorker, ReasonKind::OthersFirst]);
}

#[tokio::test]
async fn a_braked_type_is_named_with_its_failures_and_the_time_of_the_next_attempt() {
    let broker = TestBroker::start().await;
    let brake = Some(Brake { failures: 1, initial_delay: Some(wire(HOUR)), max_delay: None });
    broker.set("b", TaskTypeSettings { brake, ..Default::default() }).await;
    let mut worker = broker.worker("b").await;
    broker.enqueue("b").await;
    let job = worker.next().await;
    worker.nack(&job, "down").retry_after(HOUR).await;
    broker.until("the brake", "SELECT EXISTS (SELECT FROM howdah.brake WHERE since IS NOT NULL)").await;
    let id = broker.enqueue("b").await;
    let braked = reason(&broker, id, ReasonKind::TypeBraked).await;
    assert!(
        braked.text.contains("after 1 failed attempt") && braked.text.contains("next attempt starts at"),
        "{braked:?}"
    );
    assert!(braked.since.is_some() && braked.until.is_some() && braked.used == 1);
}

#[tokio::test]
async fn an_ended_job_is_explained_with_its_outcome_and_its_error() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("e").await;
    let succeeded = broker.enqueue("e").await;
    let job = worker.next().await;
    worker.ack(&job).await;
    reason(&broker, succeeded, ReasonKind::Succeeded).await;
    let cancelled = broker.enqueue("c").await;
    broker.cancel(&[cancelled]).await;
    assert!(reason(&broker, cancelled, ReasonKind::Cancelled).await.since.is_some());
    let expired = broker.enqueue("c").expire_after(millis(1)).await;
    broker.until_state(expired, JobState::Expired).await;
    reason(&broker, expired, ReasonKind::Expired).await;

    let dead = broker.enqueue(new_job("e", "").key("k").max_attempts(1)).await;
    let job = worker.next().await;
    worker.nack(&job, "no such user").await;
    broker.until_state(dead, JobState::Dead).await;
    let why = reason(&broker, dead, ReasonKind::Dead).await;
    assert_eq!(why.error, "no such user");
    assert!(why.text.contains("its only attempt has failed"), "{why:?}");
    let holder = broker.enqueue(new_job("e", "").key("k").delay(HOUR)).await;
    let explained = explain(&broker, dead).await;
    assert_eq!(explained.reasons[1].kind(), ReasonKind::DeadKeyHeld);
    assert_eq!(explained.reasons[1].jobs[0].id, holder);
    broker.cancel(&[holder]).await;
    let filter = Some(JobFilter { ids: vec![dead], ..Default::default() });
    broker.jobs().discard_jobs(DiscardJobsRequest { filter, ..Default::default() }).await.expect("discard");
    reason(&broker, dead, ReasonKind::Discarded).await;
}

#[tokio::test]
async fn a_foreign_job_is_like_a_missing_one_and_foreign_jobs_are_named_by_their_ids_alone() {
    let guarded = Guarded::start().await;
    let theirs = guarded.admin.enqueue("theirs").await;
    let mine = guarded.admin.enqueue(new_job("mine.a", "").after(&[theirs])).await;
    let reader = guarded.caller("reader", &["read:mine.*"]).await;
    let refused = async |id: i64| {
        let error = reader.jobs().explain_job(ExplainJobRequest { id }).await.expect_err("a refusal");
        (error.code(), error.message().replace(&id.to_string(), "ID"), error.details().len())
    };
    // No job has the id `theirs + 7`. It has as many digits as the foreign id, so both errors have the same length.
    let missing = refused(theirs + 7).await;
    assert_eq!((missing.0, &refused(theirs).await), (Code::NotFound, &missing));
    let waits = reason(&reader, mine, ReasonKind::Dependency).await;
    let [job] = &waits.jobs[..] else { panic!("{waits:?}") };
    assert_eq!((job.id, job.state(), job.task_type.as_str()), (theirs, JobState::Unspecified, ""));
    assert!(!waits.text.contains("ready"), "{waits:?}");
}

#[tokio::test]
async fn the_command_says_what_to_do_and_by_which_command() {
    let broker = TestBroker::start().await;
    let id = broker.enqueue("email.send").await.to_string();
    let (status, out, errors) = run(&["explain", &id, "--server", &broker.grpc], b"").await;
    assert!(status.success(), "{errors}");
    let expected = format!(
        "job {id} email.send: ready\n\
         No worker takes jobs of the type email.send, at any broker.\n\
         \x20 to do     Start a worker for exactly this type.\n\
         \x20 command   howdah work email.send --exec COMMAND\n\
         jobs before this one: 0\n"
    );
    assert_eq!(out, expected);
    let (_, out, _) = run(&["explain", &id, "--json", "--server", &broker.grpc], b"").await;
    let json: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"));
    assert_eq!(json["reasons"][0]["kind"], "REASON_KIND_NO_WORKER");
    let (status, _, errors) = run(&["explain", "4711", "--server", &broker.grpc], b"").await;
    assert!(!status.success() && errors.contains("does not exist"), "{errors}");
}
