//! Tests that a caller cannot distinguish jobs without permission from jobs that do not exist.

use std::time::Duration;

use howdah_proto::v1::{self, JobState, SettleStatus};
use tonic::Code;

use super::fixture::Guarded;
use crate::support::*;

#[tokio::test]
async fn a_foreign_job_is_like_a_missing_one_byte_for_byte() {
    let guarded = Guarded::start().await;
    let mine = guarded.caller("ann", &["enqueue:mine", "read:mine", "operate:mine"]).await;
    let foreign = guarded.admin.enqueue(new_job("theirs", "secret")).await;
    let own = mine.enqueue("mine").await;
    // No job has the id `missing`. It has as many digits as the foreign id, so both errors have the same length.
    let missing = foreign + 5;
    let normal = |text: String, id: i64| text.replace(&id.to_string(), "ID");
    let get = async |id| {
        let refused = mine.jobs().get_job(v1::GetJobRequest { id }).await.expect_err("not found");
        (normal(format!("{:?} {}", refused.code(), refused.message()), id), refused.details().len())
    };
    assert_eq!(get(foreign).await, get(missing).await);
    let wait = async |id| {
        let request = v1::WaitJobsRequest { ids: vec![id], ..Default::default() };
        let mut answers = mine.jobs().wait_jobs(request).await.expect("a stream").into_inner();
        let refused = with_timeout("an answer", answers.message()).await.expect_err("not found");
        normal(format!("{:?} {}", refused.code(), refused.message()), id)
    };
    assert_eq!(wait(foreign).await, wait(missing).await);
    let after = async |id| {
        let refused = mine.enqueue("mine").after(&[id]).refused().await;
        normal(format!("{refused}"), id)
    };
    assert_eq!(after(foreign).await, after(missing).await);
    assert_eq!(mine.cancel(&[foreign, missing, own]).await, [own]);
    assert!(mine.retry(&[foreign, missing]).await.is_empty());
    assert_eq!(guarded.admin.state(foreign).await, JobState::Ready);
}

#[tokio::test]
async fn a_retry_revives_foreign_dependents_without_a_scope_and_does_not_list_their_ids() {
    let guarded = Guarded::start().await;
    let ann = guarded.caller("ann", &["operate:mine"]).await;
    let parent = guarded.admin.enqueue("mine").await;
    let foreign = guarded.admin.enqueue(new_job("theirs", "").after(&[parent])).await;
    let own = guarded.admin.enqueue(new_job("mine", "").after(&[parent])).await;
    let mut worker = guarded.admin.worker("mine").await;
    let job = worker.next().await;
    worker.nack(&job, "no").no_retry().await;
    assert_eq!(guarded.admin.state(foreign).await, JobState::Cancelled);
    let filter = Some(v1::JobFilter { ids: vec![parent, foreign], ..Default::default() });
    let request = v1::RetryJobsRequest { filter, ..Default::default() };
    let answer = with_timeout("an answer", ann.jobs().retry_jobs(request)).await.expect("a retry").into_inner();
    assert_eq!((answer.retried_ids, answer.revived_ids), (vec![parent], vec![own]));
    // Retrying the parent also makes this foreign job wait again, because its producer made it depend on the parent.
    assert_eq!(guarded.admin.state(foreign).await, JobState::Waiting);
}

#[tokio::test]
async fn payloads_are_shown_only_to_callers_with_the_payload_scope() {
    let guarded = Guarded::start().await;
    let id = guarded.admin.enqueue(new_job("t", "secret")).await;
    let (reader, full) = (guarded.caller("r", &["read:t"]).await, guarded.caller("f", &["read:t", "payload:t"]).await);
    assert_eq!(&reader.job(id).await.payload[..], b"");
    assert_eq!(&full.job(id).await.payload[..], b"secret");
    let list = v1::ListJobsRequest { task_type: "t".into(), include_payload: true, ..Default::default() };
    let refused = reader.jobs().list_jobs(list.clone()).await.expect_err("payloads");
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().contains("payload:t"), "{refused}");
    assert_eq!(&full.jobs().list_jobs(list).await.expect("list").into_inner().jobs[0].payload[..], b"secret");
}

#[tokio::test]
async fn outcomes_of_a_foreign_lease_are_answered_lease_lost_and_the_lease_stays_with_its_worker() {
    let guarded = Guarded::start().await;
    guarded.admin.enqueue("theirs").await;
    let mut theirs = guarded.admin.worker("theirs").await;
    let job = theirs.next().await;
    let thief = guarded.caller("thief", &["work:mine"]).await;
    assert_eq!(thief.settle(vec![ack(&job)]).await, [SettleStatus::LeaseLost]);
    let mut stream = thief.worker("mine").await;
    assert_eq!(stream.ack(&job).status().await, SettleStatus::LeaseLost);
    assert_eq!(stream.extend(&job, secs(60)).await, SettleStatus::LeaseLost);
    let mut resumed = thief.worker("mine").resumes(&stream.welcome.session_id, &[&job]).await;
    assert_eq!((resumed.lost(1).await.len(), resumed.welcome.kept.len()), (1, 0));
    // The lease still belongs to the job's own worker.
    theirs.ack(&job).await;
    assert_eq!(guarded.admin.state(job.id).await, JobState::Succeeded);
}

#[tokio::test]
async fn a_worker_with_a_scope_settles_what_it_was_given_also_after_its_stream_broke() {
    let guarded = Guarded::start().await;
    let caller = guarded.caller("ann", &["work:t"]).await;
    let ids = guarded.admin.enqueue_all(["t", "t"]).await;
    let mut worker = caller.worker("t").await;
    let jobs = worker.take(2).await;
    worker.ack(&jobs[0]).await;
    let session = worker.welcome.session_id.clone();
    worker.vanish();
    let mut again = caller.worker("t").resumes(&session, &[&jobs[1]]).await;
    assert_eq!(again.welcome.kept.len(), 1);
    // Repeats an outcome whose response may have been lost.
    assert_eq!(again.ack(&jobs[0]).status().await, SettleStatus::Ok);
    again.ack(&jobs[1]).await;
    for id in ids {
        assert_eq!(guarded.admin.state(id).await, JobState::Succeeded);
    }
}

#[tokio::test]
async fn another_principals_session_and_request_key_are_unknown() {
    let guarded = Guarded::start().await;
    let (ann, bob) =
        (guarded.caller("ann", &["enqueue:t", "work:t"]).await, guarded.caller("bob", &["enqueue:t", "work:t"]).await);
    let first = ann.enqueue("t").request_key("k").await;
    assert_eq!(ann.enqueue("t").request_key("k").await, first);
    assert_ne!(bob.enqueue("t").request_key("k").await, first);
    let reused = ann.enqueue("u").request_key("k").refused().await;
    assert_eq!(reused.code, Code::PermissionDenied);
    let reused = ann.enqueue(new_job("t", "other")).request_key("k").refused().await;
    assert!(reused.message.starts_with("request_key \"k\""), "{reused}");

    let mut worker = ann.worker("t").await;
    let job = worker.next().await;
    // A worker of Bob that presents the id of Ann's session does not get the session: Ann's stream continues.
    let _bobs = bob.worker("t").window(1).resumes(&worker.welcome.session_id, &[]).await;
    worker.ack(&job).await;
}

#[tokio::test]
async fn fallback_types_and_stage_types_need_the_enqueue_scope_too() {
    let guarded = Guarded::start().await;
    let caller = guarded.caller("ann", &["enqueue:a.*"]).await;
    caller.enqueue("a.1").fallback("a.2").await;
    for refused in [
        caller.enqueue("a.1").fallback("b").refused().await,
        caller.enqueue("a.1").next_stages(&["a.2", "b"]).refused().await,
        caller.enqueue("b").refused().await,
    ] {
        assert_eq!(refused.code, Code::PermissionDenied, "{refused}");
        assert!(refused.message.contains("enqueue:b"), "{refused}");
    }
    assert_eq!(guarded.broker.count("SELECT count(*) FROM howdah.task_type WHERE name = 'b'").await, 0);
}

#[tokio::test]
async fn a_worker_chooses_only_stages_where_it_may_enqueue() {
    let guarded = Guarded::start().await;
    let caller = guarded.caller("ann", &["work:a", "enqueue:c"]).await;
    let ids = guarded.admin.enqueue_all(["a", "a"]).await;
    let mut worker = caller.worker("a").window(2).await;
    let jobs = worker.take(2).await;
    worker.settle(vec![ack(&jobs[0]).next_stage("b")]).await;
    let refused = worker.settled().await;
    assert_eq!(refused.status(), SettleStatus::Invalid);
    assert!(refused.message.contains("enqueue:b"), "{refused:?}");
    let request = v1::SettleJobsRequest { outcomes: vec![ack(&jobs[0]).next_stage("b")] };
    let refused = caller.workers().settle_jobs(request).await.expect_err("refused");
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert_eq!(guarded.broker.count("SELECT count(*) FROM howdah.task_type WHERE name = 'b'").await, 0);
    worker.ack(&jobs[0]).next_stage("c").await;
    assert_eq!(caller.settle(vec![ack(&jobs[1]).next_stage("c")]).await, [SettleStatus::Ok]);
    for id in ids {
        assert_eq!(guarded.admin.job(id).await.task_type, "c");
    }
}

#[tokio::test]
async fn a_made_up_session_id_is_refused_or_starts_a_new_session() {
    let broker = TestBroker::start().await;
    broker.enqueue("t").await;
    let mut worker = broker.worker("t").await;
    let job = worker.next().await;
    for guess in ["worker-1", "0", &worker.welcome.session_id[1..]] {
        let refused: Refusal = broker.worker("t").resumes(guess, &[]).answer().await.err().expect(guess).into();
        refused.names("session_id");
    }
    // A guessed session id in the right format creates a new session and releases no jobs.
    let guess = "0".repeat(40);
    let _other = broker.worker("t").window(1).resumes(&guess, &[]).await;
    assert_eq!(broker.state(job.id).await, JobState::Leased);
    assert_eq!(worker.ack(&job).status().await, SettleStatus::Ok);
}

#[tokio::test]
async fn results_of_dependencies_are_for_workers_of_the_dependent_and_for_callers_who_may_see_its_payload() {
    let guarded = Guarded::start().await;
    let parent = guarded.admin.enqueue(new_job("theirs", "")).await;
    let child = guarded.admin.enqueue(new_job("mine", "").after(&[parent])).await;
    let mut worker = guarded.admin.worker("theirs").await;
    let job = worker.next().await;
    worker.ack(&job).result("secret").await;
    let allowed: [&[&str]; 2] = [&["work:mine"], &["read:mine", "payload:mine"]];
    for scopes in allowed {
        let caller = guarded.caller("yes", scopes).await;
        let answer = caller.workers().get_results(v1::GetResultsRequest { id: child, start: 0 }).await;
        assert_eq!(&answer.expect("results").into_inner().results[0].result[..], b"secret", "{scopes:?}");
    }
    let refused: [&[&str]; 3] = [&["work:theirs"], &["payload:mine"], &["read:theirs", "payload:theirs"]];
    for scopes in refused {
        let caller = guarded.caller("no", scopes).await;
        let error = caller.workers().get_results(v1::GetResultsRequest { id: child, start: 0 }).await;
        assert_eq!(error.expect_err("refused").code(), Code::NotFound, "{scopes:?}");
    }
}

#[tokio::test]
async fn a_producer_must_be_allowed_to_see_the_results_that_it_passes_on_to_a_worker() {
    let guarded = Guarded::start().await;
    let parent = guarded.admin.enqueue(new_job("theirs", "")).await;
    let reader = guarded.caller("r", &["enqueue:mine", "read:theirs"]).await;
    let refused = reader.enqueue("mine").after(&[parent]).refused().await;
    assert_eq!(refused.code, Code::PermissionDenied, "{refused}");
    assert!(refused.message.contains("payload:theirs"), "{refused}");
    let full = guarded.caller("f", &["enqueue:mine", "read:theirs", "payload:theirs"]).await;
    full.enqueue("mine").after(&[parent]).await;
    // Jobs of the same request are the caller's own.
    let producer = guarded.caller("p", &["enqueue:mine", "enqueue:theirs"]).await;
    producer.enqueue_all([new_job("theirs", "").local_name("a"), new_job("mine", "").after_local(&["a"])]).await;
}

#[tokio::test]
async fn a_replaced_job_passes_no_results_and_no_errors_on_to_types_that_the_replacement_names() {
    let guarded = Guarded::start().await;
    let parent = guarded.admin.enqueue(new_job("theirs", "")).await;
    let holder = guarded.admin.enqueue(new_job("mine", "").key("k").after(&[parent])).await;
    let failing = guarded.admin.enqueue(new_job("mine", "").key("failing")).await;
    let mut theirs = guarded.admin.worker("theirs").await;
    let mut mine = guarded.admin.worker("mine").await;
    let job = mine.next().await;
    mine.nack(&job, "secret error").retry_after(Duration::from_secs(3600)).await;
    let bob = guarded.caller("bob", &["enqueue:mine", "enqueue:bobs", "work:bobs", "read:bobs"]).await;
    for key in ["k", "failing"] {
        bob.enqueue(new_job("mine", "").key(key).replace().next_stages(&["bobs"])).await;
    }
    let job = theirs.next().await;
    theirs.ack(&job).result("secret").await;
    let mut bobs = bob.worker("bobs").await;
    for _ in 0..2 {
        let job = mine.next().await;
        mine.ack(&job).await;
        assert_eq!(bobs.next().await.after, [], "results of a job of another type");
    }
    let answer = bob.workers().get_results(v1::GetResultsRequest { id: holder, start: 0 }).await;
    assert_eq!(answer.expect("results").into_inner().results, []);
    assert_eq!(bob.job(failing).await.failures, []);
}

#[tokio::test]
async fn a_retry_with_another_payload_needs_the_scope_to_enqueue() {
    let guarded = Guarded::start().await;
    let id = guarded.admin.enqueue(new_job("mine", "").delay(Duration::from_secs(3600))).await;
    let retry = |payload: Option<&str>| v1::RetryJobsRequest {
        filter: Some(v1::JobFilter { ids: vec![id], ..Default::default() }),
        payload: payload.map(|payload| payload.as_bytes().to_vec().into()),
        ..Default::default()
    };
    let operator = guarded.caller("o", &["operate:mine", "enqueue:theirs"]).await;
    let refused = operator.jobs().retry_jobs(retry(Some("other"))).await.expect_err("refused");
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    assert!(refused.message().contains("enqueue:mine"), "{refused}");
    let both = guarded.caller("b", &["operate:mine", "enqueue:mine"]).await;
    let answer = both.jobs().retry_jobs(retry(Some("other"))).await.expect("a retry").into_inner();
    assert_eq!(answer.retried_ids, [id]);
    let answer = operator.jobs().retry_jobs(retry(None)).await.expect("a retry").into_inner();
    assert!(answer.retried_ids.is_empty());
    assert_eq!(guarded.admin.job(id).await.payload, b"other"[..]);
}
