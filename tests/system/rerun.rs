//! Tests that `RerunJobs` runs finished jobs again, as new jobs.

mod kept; // what history keeps of a job
mod rights; // permissions, stores, quotas

use howdah_proto::v1::{
    Job, JobState, RerunJob, RerunJobsRequest, RerunOutcome, TaskTypeSettings, rerun_jobs_request::Start,
};
use tonic::Code;

use crate::support::*;

fn of(ids: &[i64]) -> RerunJobsRequest {
    RerunJobsRequest { ids: ids.to_vec(), ..RerunJobsRequest::default() }
}

/// Runs one job again, and returns the new job.
async fn rerun_one(broker: &Service, request: RerunJobsRequest) -> Job {
    let jobs = broker.rerun(request.clone()).await;
    let [job] = &jobs[..] else { panic!("{jobs:?}") };
    assert_eq!((job.outcome(), job.id, &*job.problem), (RerunOutcome::New, request.ids[0], ""), "{job:?}");
    broker.job(job.new_id).await
}

fn outcomes(jobs: &[RerunJob]) -> Vec<(i64, RerunOutcome)> {
    jobs.iter().map(|job| (job.id, job.outcome())).collect()
}

/// Enqueues a job of a type, and lets it succeed.
async fn succeeded(broker: &Service, job: impl IntoNewJob) -> i64 {
    let job = job.into_new_job();
    let task_type = job.task_type.clone();
    let id = broker.enqueue(job).await;
    let jobs = broker.pull(&task_type).await;
    broker.settle(vec![ack(&jobs[0])]).await;
    broker.until_state(id, JobState::Succeeded).await;
    id
}

#[tokio::test]
async fn a_job_of_each_finished_state_runs_again_as_a_new_job_and_stays_in_history() {
    let (a, b) = TestBroker::pair().await;
    let done = succeeded(&a, new_job("t", "done")).await;
    let cancelled = a.enqueue(new_job("t", "cancelled")).await;
    a.cancel(&[cancelled]).await;
    let discarded = a.enqueue(new_job("t", "discarded").max_attempts(1)).await;
    let jobs = a.pull("t").await;
    a.settle(vec![nack(&jobs[0], "no")]).await;
    a.until_state(discarded, JobState::Dead).await;
    let filter = Some(howdah_proto::v1::JobFilter { ids: vec![discarded], ..Default::default() });
    a.jobs().discard_jobs(howdah_proto::v1::DiscardJobsRequest { filter, ..Default::default() }).await.unwrap();
    let expired = a.enqueue(new_job("u", "expired").expire_after(millis(1))).await;
    a.until_state(expired, JobState::Expired).await;
    let states = [
        (done, JobState::Succeeded),
        (cancelled, JobState::Cancelled),
        (discarded, JobState::Discarded),
        (expired, JobState::Expired),
    ];
    let mut new_ids = Vec::new();
    for (id, state) in states {
        let new = rerun_one(&b, of(&[id])).await;
        let old = a.job(id).await;
        assert_eq!((old.state(), new.state(), new.parent_id), (state, JobState::Ready, id));
        assert_eq!((&new.payload, &new.task_type, new.attempt), (&old.payload, &old.task_type, 0));
        assert!(new.expire_time.is_none() && new.failures.is_empty() && new.id > id, "{new:?}");
        new_ids.push(new.id);
    }
    assert!(b.metrics().await.contains("howdah_enqueued_total 4"), "reruns count as enqueues");
    let mut worker = a.worker("t").await;
    let jobs = worker.take(3).await;
    assert_eq!(
        jobs.iter().map(|job| (job.id, job.attempt)).collect::<Vec<_>>(),
        [0, 1, 2].map(|nth| (new_ids[nth], 1))
    );
}

#[tokio::test]
async fn unfinished_dead_and_unknown_jobs_are_not_run_again_and_the_answer_says_what_to_do() {
    let broker = TestBroker::start().await;
    let dead = broker.enqueue("t").max_attempts(1).await;
    let jobs = broker.pull("t").await;
    broker.settle(vec![nack(&jobs[0], "no")]).await;
    broker.until_state(dead, JobState::Dead).await;
    let ready = broker.enqueue("t").await;
    let scheduled = broker.enqueue("t").delay(HOUR).await;
    let finished = succeeded(&broker, "u").await;
    // The order of the ids and repeated ids have no effect.
    let jobs = broker.rerun(of(&[i64::MAX, finished, scheduled, ready, dead, finished])).await;
    let expected = [
        (dead, RerunOutcome::Unfinished),
        (ready, RerunOutcome::Unfinished),
        (scheduled, RerunOutcome::Unfinished),
        (finished, RerunOutcome::New),
        (i64::MAX, RerunOutcome::Unknown),
    ];
    assert_eq!(outcomes(&jobs), expected);
    for (job, words) in jobs.iter().zip(["howdah retry", "it is ready", "RetryJobs", "", "does not exist"]) {
        assert!(job.problem.contains(words), "{job:?}");
        assert_eq!(job.new_id != 0, job.problem.is_empty(), "{job:?}");
    }
    assert_eq!(broker.count("SELECT count(*) FROM howdah.ready").await, 2);
}

#[tokio::test]
async fn a_job_runs_again_later_and_with_another_payload() {
    let broker = TestBroker::start().await;
    let id = succeeded(&broker, new_job("t", "old")).await;
    let later = Some(Start::RunAt(at(2_000_000_000)));
    let request = RerunJobsRequest { start: later, payload: Some("new".into()), ..of(&[id]) };
    let new = rerun_one(&broker, request).await;
    assert_eq!(
        (new.state(), new.run_time, &new.payload[..]),
        (JobState::Scheduled, Some(at(2_000_000_000)), &b"new"[..])
    );
    let request = RerunJobsRequest { start: Some(Start::Delay(wire(HOUR))), ..of(&[id]) };
    assert_eq!(rerun_one(&broker, request).await.state(), JobState::Scheduled);
    let empty = rerun_one(&broker, RerunJobsRequest { payload: Some("".into()), ..of(&[id]) }).await;
    assert!(empty.payload.is_empty());
    let other = succeeded(&broker, "u").await;
    let request = RerunJobsRequest { payload: Some("p".into()), ..of(&[id, other]) };
    let refused = broker.jobs().rerun_jobs(request).await.expect_err("two jobs with one payload");
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
}

#[tokio::test]
async fn a_repeated_call_runs_each_job_again_once_and_tries_jobs_whose_key_was_held() {
    let (a, b) = TestBroker::pair().await;
    let plain = succeeded(&a, "t").await;
    let keyed = succeeded(&a, new_job("t", "").key("k")).await;
    let holder = a.enqueue(new_job("t", "").key("k")).await;
    let call = || RerunJobsRequest { request_key: "once".into(), ..of(&[plain, keyed]) };
    let first = a.rerun(call()).await;
    assert_eq!(outcomes(&first), [(plain, RerunOutcome::New), (keyed, RerunOutcome::KeyHeld)]);
    assert_eq!((first[1].holder_id, first[1].new_id), (holder, 0));
    assert!(first[1].problem.contains(&holder.to_string()), "{first:?}");
    a.cancel(&[holder]).await;
    let second = b.rerun(call()).await;
    assert_eq!(outcomes(&second), [(plain, RerunOutcome::Repeated), (keyed, RerunOutcome::New)]);
    assert_eq!(second[0].new_id, first[0].new_id);
    let third = a.rerun(call()).await;
    assert_eq!(outcomes(&third), [(plain, RerunOutcome::Repeated), (keyed, RerunOutcome::Repeated)]);
    assert_eq!(third[1].new_id, second[1].new_id);
    let other = RerunJobsRequest { payload: Some("new".into()), request_key: "once".into(), ..of(&[plain]) };
    let refused = a.jobs().rerun_jobs(other).await.expect_err("another payload");
    assert_eq!(refused.code(), Code::AlreadyExists, "{refused}");
    // An enqueue with the same request key is another request.
    assert!(a.enqueue("t").request_key("once").outcome().await.is_new);
    // Without a request key, each call runs the job again.
    assert_ne!(rerun_one(&a, of(&[plain])).await.id, rerun_one(&a, of(&[plain])).await.id);
}

#[tokio::test]
async fn of_two_finished_jobs_with_a_key_the_older_one_takes_it() {
    let broker = TestBroker::start().await;
    let first = succeeded(&broker, new_job("t", "1").key("k")).await;
    let second = succeeded(&broker, new_job("t", "2").key("k")).await;
    let jobs = broker.rerun(of(&[second, first])).await;
    assert_eq!(outcomes(&jobs), [(first, RerunOutcome::New), (second, RerunOutcome::KeyHeld)]);
    assert_eq!(jobs[1].holder_id, jobs[0].new_id);
    let held = succeeded(&broker, new_job("u", "").key("k").key_hold(HOUR)).await;
    let jobs = broker.rerun(of(&[held])).await;
    assert_eq!((jobs[0].outcome(), jobs[0].holder_id), (RerunOutcome::KeyHeld, held));
    assert!(jobs[0].problem.contains("key_hold"), "{jobs:?}");
}

#[tokio::test]
async fn more_jobs_than_fit_into_memory_at_once_run_again_in_the_order_of_their_ids() {
    let broker = TestBroker::start().await;
    let large = vec![b'x'; 300_000];
    let ids = broker.enqueue_all((0..30).map(|_| new_job("t", large.clone()))).await;
    broker.cancel(&ids).await;
    let jobs = broker.rerun(of(&ids)).await;
    assert_eq!(outcomes(&jobs), ids.iter().map(|id| (*id, RerunOutcome::New)).collect::<Vec<_>>());
    assert!(jobs.windows(2).all(|pair| pair[0].new_id < pair[1].new_id), "{jobs:?}");
    let whole = "SELECT count(*) FROM howdah.job WHERE state = 'ready' AND octet_length(payload) = 300000 AND parent_id IS NOT NULL";
    assert_eq!(broker.count(whole).await, 30);
    let few = TaskTypeSettings { max_payload_bytes: 10, ..TaskTypeSettings::default() };
    broker.set("t", few).await;
    let jobs = broker.rerun(of(&ids[..1])).await;
    assert_eq!(jobs[0].outcome(), RerunOutcome::Refused);
    assert!(jobs[0].problem.starts_with("payload has 300000 bytes; t takes at most 10"), "{jobs:?}");
}

#[tokio::test]
async fn a_finished_job_runs_again_by_the_command_line_and_by_the_client() {
    let broker = TestBroker::start().await;
    let id = succeeded(&broker, new_job("t", "old")).await;
    let ready = broker.enqueue("u").await;
    let server = ["--server", broker.address()];
    let (id_text, ready_text) = (id.to_string(), ready.to_string());
    let (status, out, err) = run(&[&["rerun", &*id_text, &ready_text], &server[..]].concat(), b"").await;
    let new: i64 = out.trim().parse().expect("one id");
    assert!(status.code() == Some(1) && err.contains(&format!("job {ready} was not run again: it is ready")), "{err}");
    assert!(err.contains("1 of 2 jobs were not run again"), "{err}");
    assert_eq!(broker.job(new).await.parent_id, id);
    let words =
        ["rerun", &id_text, "--payload", "-", "--delay", "1h", "--request-key", "k", "--json", "--reason", "lost"];
    for outcome in ["new", "repeated"] {
        let (status, out, err) = run(&[&words[..], &server].concat(), b"stdin").await;
        let line: serde_json::Value = serde_json::from_str(&out).expect("JSON");
        assert!(status.success() && line["outcome"] == outcome && line["id"] == id, "{out} {err}");
        let job = broker.job(line["job"].as_i64().expect("an id")).await;
        assert_eq!((job.state(), &job.payload[..]), (JobState::Scheduled, &b"stdin"[..]));
    }
    assert_eq!(
        broker.count("SELECT count(*) FROM howdah.audit WHERE method = 'RerunJobs' AND reason = 'lost'").await,
        1
    );
    let answer = broker.client().await.rerun_jobs(of(&[id])).await.expect("a rerun");
    assert_eq!(answer.jobs[0].outcome(), RerunOutcome::New);
}
