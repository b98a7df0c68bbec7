//! Tests dead jobs and jobs in backoff: they are retried, discarded and cancelled, by id, type and error group.

use howdah_proto::v1::{
    CancelJobsRequest, DiscardJobsRequest, JobFilter, JobState, RetryJobsRequest, retry_jobs_request::Start,
};
use serde_json::Value;

use super::{RETRY, add_dead_jobs, of_ids, of_type, retry};
use crate::support::*;

#[tokio::test]
async fn a_retried_dead_job_has_its_attempts_anew_and_keeps_its_errors() {
    let (a, b) = TestBroker::pair().await;
    let mut worker = a.worker("t").window(1).await;
    let id = a.enqueue(new_job("t", "p").max_attempts(1)).await;
    let job = worker.next().await;
    worker.nack(&job, "first").await;
    assert_eq!(a.state(id).await, JobState::Dead);
    let answer = retry(&b, RetryJobsRequest { filter: of_ids(&[id, i64::MAX]), ..RETRY }).await;
    assert_eq!((answer.retried_ids, answer.key_held_ids.len(), answer.next_page_token.as_str()), (vec![id], 0, ""));
    let job = worker.next().await;
    assert_eq!((job.id, job.attempt, job.max_attempts, &job.payload[..]), (id, 1, 1, &b"p"[..]));
    worker.nack(&job, "second").await;
    let dead = a.job(id).await;
    assert_eq!(dead.failures.iter().map(|f| f.error.as_str()).collect::<Vec<_>>(), ["first", "second"]);
}

#[tokio::test]
async fn a_delayed_job_runs_now_by_its_id_but_not_by_its_type() {
    let broker = TestBroker::start().await;
    let id = broker.enqueue("t").delay(HOUR).await;
    assert!(retry(&broker, RetryJobsRequest { filter: Some(of_type("t")), ..RETRY }).await.retried_ids.is_empty());
    assert_eq!(broker.retry(&[id]).await, [id]);
    let mut worker = broker.worker("t").window(1).await;
    assert_eq!(worker.next().await.attempt, 1);
}

#[tokio::test]
async fn a_job_is_retried_at_a_time_or_after_a_delay_and_the_past_is_now() {
    let broker = TestBroker::start().await;
    add_dead_jobs(&broker.database, "t", 3, "no").await;
    let ids = broker.database.connect().await.query("SELECT id FROM howdah.dead ORDER BY id", &[]).await.unwrap();
    let ids: Vec<i64> = ids.iter().map(|row| row.get(0)).collect();
    let later = at(2_000_000_000);
    let clock = "SELECT clock_timestamp()::text";
    let before: String = broker.database.connect().await.query_one(clock, &[]).await.expect(clock).get(0);
    for (id, start) in
        [(ids[0], Start::RunAt(later)), (ids[1], Start::Delay(wire(10 * MINUTE))), (ids[2], Start::RunAt(at(1)))]
    {
        let request = RetryJobsRequest { start: Some(start), ..RetryJobsRequest { filter: of_ids(&[id]), ..RETRY } };
        assert_eq!(retry(&broker, request).await.retried_ids, [id]);
    }
    assert_eq!(broker.job(ids[0]).await.run_time, Some(later));
    // The delay counts from the time of the call, which is between `before` and now.
    let delayed = format!("SELECT count(*) FROM howdah.scheduled WHERE id = {}
                           AND run_at BETWEEN '{before}'::timestamptz + interval '10 min' AND now() + interval '10 min'", ids[1]);
    assert_eq!(broker.count(&delayed).await, 1);
    assert_eq!(broker.state(ids[2]).await, JobState::Ready);
    // Retrying a scheduled job only changes its start time.
    let earlier = at(1_999_999_999);
    let request = RetryJobsRequest { start: Some(Start::RunAt(earlier)), filter: of_ids(&ids[..1]), ..RETRY };
    assert_eq!(retry(&broker, request).await.retried_ids, ids[..1]);
    let job = broker.job(ids[0]).await;
    assert_eq!((job.run_time, job.state()), (Some(earlier), JobState::Scheduled));
    // A retry by type without a start time makes dead and scheduled jobs ready now.
    let mut retried = retry(&broker, RetryJobsRequest { filter: Some(of_type("t")), ..RETRY }).await.retried_ids;
    retried.sort_unstable();
    assert_eq!(retried, ids[..2]);
    let mut worker = broker.worker("t").window(3).await;
    for _ in 0..3 {
        assert_eq!(worker.next().await.attempt, 1);
    }
}

#[tokio::test]
async fn a_job_is_retried_with_another_payload_whether_the_old_or_new_one_is_large() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("t").window(1).await;
    let (small, large) = (vec![b's'; 10], vec![b'l'; 50_000]);
    for (before, after) in [(&small, &large), (&large, &small), (&large, &Vec::new())] {
        let id = broker.enqueue(new_job("t", before.clone())).await;
        let job = worker.next().await;
        worker.nack(&job, "typo").no_retry().await;
        let request = RetryJobsRequest { filter: of_ids(&[id]), payload: Some(after.clone().into()), ..RETRY };
        assert_eq!(retry(&broker, request).await.retried_ids, [id]);
        assert_eq!(broker.job(id).await.payload[..], after[..]);
        let job = worker.next().await;
        assert_eq!((job.id, &job.payload[..]), (id, &after[..]));
        worker.ack(&job).await;
        assert_eq!(broker.count(&format!("SELECT count(*) FROM howdah.payload WHERE id = {id}")).await, 0);
    }
}

#[tokio::test]
async fn a_dead_job_takes_its_key_again_unless_another_job_has_it() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("t").window(1).await;
    let keyed = || new_job("t", "").key("ann");
    let first = broker.enqueue(keyed()).await;
    let job = worker.next().await;
    worker.nack(&job, "no").no_retry().await;
    let second = broker.enqueue(keyed()).await;
    assert_ne!(first, second);
    let answer = retry(&broker, RetryJobsRequest { filter: of_ids(&[first]), ..RETRY }).await;
    assert_eq!((answer.retried_ids.len(), answer.key_held_ids), (0, vec![first]));
    assert_eq!(broker.state(first).await, JobState::Dead);
    let job = worker.next().await;
    worker.ack(&job).await;
    let answer = retry(&broker, RetryJobsRequest { filter: of_ids(&[first]), ..RETRY }).await;
    assert_eq!(answer.retried_ids, [first]);
    assert_eq!(broker.enqueue(keyed()).await, first, "the retried job holds its key");
}

#[tokio::test]
async fn retrying_5000_dead_jobs_of_one_group_leaves_the_other_group_dead() {
    let (a, b) = TestBroker::pair().await;
    add_dead_jobs(&a.database, "t", 5_000, "no host #").await;
    add_dead_jobs(&a.database, "t", 300, "out of paper").await;
    add_dead_jobs(&a.database, "other", 300, "no host #").await;
    let filter = Some(JobFilter { error_group: "no host #".into(), state: JobState::Dead as i32, ..of_type("t") });
    // Two concurrent calls must together retry each job once.
    let request = || RetryJobsRequest { filter: filter.clone(), ..RETRY };
    let (one, two) = tokio::join!(retry(&a, request()), retry(&b, request()));
    let mut ids = [one.retried_ids, two.retried_ids].concat();
    assert_eq!(ids.len(), 5_000);
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 5_000, "a job was retried twice");
    assert_eq!(a.count("SELECT count(*) FROM howdah.dead").await, 600);
    assert_eq!(a.count("SELECT count(*) FROM howdah.ready WHERE attempt = 0").await, 5_000);
    let mut worker = b.worker("t").await;
    assert!(worker.next().await.id > 0);
}

#[tokio::test]
async fn a_retry_handles_10000_jobs_and_the_next_call_continues_with_the_page_token() {
    let broker = TestBroker::start().await;
    add_dead_jobs(&broker.database, "t", 12_500, "no").await;
    let first = retry(&broker, RetryJobsRequest { filter: Some(of_type("t")), ..RETRY }).await;
    assert_eq!(first.retried_ids.len(), 10_000);
    let rest = RetryJobsRequest { filter: Some(of_type("t")), page_token: first.next_page_token, ..RETRY };
    let second = retry(&broker, rest).await;
    assert_eq!((second.retried_ids.len(), second.next_page_token.as_str()), (2_500, ""));
    // Cancels all ready jobs of the type, which also needs several pages.
    let filter = Some(JobFilter { state: JobState::Ready as i32, ..of_type("t") });
    let mut request = CancelJobsRequest { filter, ..Default::default() };
    let mut jobs = broker.jobs();
    let mut cancelled = 0;
    loop {
        let answer = jobs.cancel_jobs(request.clone()).await.unwrap().into_inner();
        cancelled += answer.cancelled_ids.len();
        if answer.next_page_token.is_empty() {
            break;
        }
        request.page_token = answer.next_page_token;
    }
    assert_eq!(cancelled, 12_500);
    assert_eq!(broker.count("SELECT count(*) FROM howdah.history WHERE outcome = 'cancelled'").await, 12_500);
}

#[tokio::test]
async fn only_dead_jobs_can_be_discarded_and_discarded_jobs_are_in_history() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("t").window(1).await;
    let ids = broker.enqueue_all([new_job("t", "p"), new_job("t", "q")]).await;
    let job = worker.next().await;
    worker.nack(&job, "no").no_retry().await;
    let mut jobs = broker.jobs();
    let request = DiscardJobsRequest { filter: of_ids(&ids), ..Default::default() };
    assert_eq!(jobs.discard_jobs(request).await.unwrap().into_inner().discarded_ids, ids[..1]);
    let job = broker.job(ids[0]).await;
    assert_eq!((job.state(), &job.payload[..], job.failures[0].error.as_str()), (JobState::Discarded, &b"p"[..], "no"));
    add_dead_jobs(&broker.database, "t", 1_500, "no host #").await;
    add_dead_jobs(&broker.database, "t", 10, "out of paper").await;
    let filter = Some(JobFilter { error_group: "no host 5".into(), ..of_type("t") });
    let request = DiscardJobsRequest { filter, ..Default::default() };
    let answer = jobs.discard_jobs(request).await.unwrap().into_inner();
    assert_eq!((answer.discarded_ids.len(), answer.next_page_token.as_str()), (1_500, ""));
    assert_eq!(broker.count("SELECT count(*) FROM howdah.history WHERE outcome = 'discarded'").await, 1_501);
    assert_eq!(broker.count("SELECT count(*) FROM howdah.dead").await, 10);
}

#[tokio::test]
async fn a_types_jobs_are_cancelled_by_state_or_error_group_and_workers_are_told() {
    let (a, b) = TestBroker::pair().await;
    let mut worker = b.worker("t").window(2).await;
    // With a backoff of an hour, failed jobs stay scheduled until the test cancels them, even on a slow machine.
    let job = || new_job("t", "").retry_after_each(HOUR);
    let ids = a.enqueue_all((0..4).map(|_| job())).await;
    let (first, second) = (worker.next().await, worker.next().await);
    let other = a.enqueue("other").await;
    let mut jobs = a.jobs();
    let by = |state: JobState, group: &str| CancelJobsRequest {
        filter: Some(JobFilter { state: state as i32, error_group: group.into(), ..of_type("t") }),
        ..Default::default()
    };
    let answer = jobs.cancel_jobs(by(JobState::Ready, "")).await.unwrap().into_inner();
    assert_eq!(answer.cancelled_ids, ids[2..], "running jobs are not selected");
    worker.nack(&first, "no host 3").await;
    assert!(
        jobs.cancel_jobs(by(JobState::Unspecified, "another")).await.unwrap().into_inner().cancelled_ids.is_empty()
    );
    let answer = jobs.cancel_jobs(by(JobState::Unspecified, "no host #")).await.unwrap().into_inner();
    assert_eq!(answer.cancelled_ids, [first.id]);
    let answer = jobs.cancel_jobs(by(JobState::Unspecified, "")).await.unwrap().into_inner();
    assert_eq!(answer.cancelled_ids, [second.id]);
    let cancel = worker.cancelled().await;
    assert_eq!(cancel.id, second.id);
    assert_eq!(a.state(other).await, JobState::Ready);
}

#[tokio::test]
async fn a_filter_that_names_no_jobs_or_contradicts_itself_is_refused_and_nothing_moves() {
    let broker = TestBroker::start().await;
    add_dead_jobs(&broker.database, "t", 3, "no").await;
    let mut jobs = broker.jobs();
    let ids = |count| Some(JobFilter { ids: vec![1; count], ..Default::default() });
    for (field, request) in [
        ("filter", RETRY),
        (
            "filter",
            RetryJobsRequest { filter: Some(JobFilter { error_group: "no".into(), ..Default::default() }), ..RETRY },
        ),
        ("filter.ids", RetryJobsRequest { filter: ids(10_001), ..RETRY }),
        ("filter.task_type", RetryJobsRequest { filter: Some(of_type("a b")), ..RETRY }),
        ("filter.state", RetryJobsRequest { filter: Some(JobFilter { state: 1, ..of_type("t") }), ..RETRY }),
        (
            "filter.error_group",
            RetryJobsRequest { filter: Some(JobFilter { error_group: "\0".into(), ..of_type("t") }), ..RETRY },
        ),
        ("payload", RetryJobsRequest { filter: Some(of_type("t")), payload: Some("p".into()), ..RETRY }),
        ("payload", RetryJobsRequest { filter: ids(1), payload: Some(vec![0; (1 << 20) + 1].into()), ..RETRY }),
        ("page_token", RetryJobsRequest { filter: Some(of_type("t")), page_token: "00".into(), ..RETRY }),
    ] {
        let error = jobs.retry_jobs(request).await.expect_err(field);
        assert_eq!(error.code(), tonic::Code::InvalidArgument);
        assert!(error.message().starts_with(&format!("{field} ")), "{field}: {error}");
    }
    let error = jobs.discard_jobs(DiscardJobsRequest::default()).await.unwrap_err();
    assert!(error.message().starts_with("filter "), "{error}");
    let filter = Some(JobFilter { state: JobState::Succeeded as i32, ..of_type("t") });
    let error = jobs.cancel_jobs(CancelJobsRequest { filter, ..Default::default() }).await.unwrap_err();
    assert!(error.message().starts_with("filter.state "), "{error}");
    assert_eq!(broker.count("SELECT count(*) FROM howdah.dead").await, 3);
}

#[tokio::test]
async fn the_command_line_shows_groups_retries_edits_and_discards() {
    let broker = TestBroker::start().await;
    add_dead_jobs(&broker.database, "t", 30, "no host #").await;
    add_dead_jobs(&broker.database, "t", 4, "out of paper").await;
    let call = async |args: &[&str], stdin: &[u8]| {
        let (status, out, err) = run(&[args, &["--server", &broker.grpc]].concat(), stdin).await;
        (status.code().unwrap(), out, err)
    };
    let (code, out, _) = call(&["errors", "t", "--json"], b"").await;
    let group: Value = serde_json::from_str(out.lines().next().unwrap()).unwrap();
    assert_eq!((code, &group["error_group"], &group["dead_count"]), (0, &Value::from("no host #"), &Value::from("30")));
    let (_, out, _) = call(&["errors"], b"").await;
    assert!(stores::own_table(&out).starts_with("TYPE") && out.contains("out of paper"), "{out}");
    let (_, out, _) = call(&["jobs", "t", "--state", "dead", "--error", "out of paper", "--json"], b"").await;
    assert_eq!(out.lines().count(), 4);
    let id = id_of(&serde_json::from_str(out.lines().next().unwrap()).unwrap()).to_string();

    for empty in [
        &["retry"][..],
        &["discard"],
        &["cancel"],
        &["retry", "--error", "x"],
        &["retry", "--type", "t", "--error", ""],
    ] {
        assert_eq!(call(empty, b"").await.0, 2, "{empty:?}");
    }
    let (code, out, _) = call(&["retry", &id, "--payload", "-", "--json"], b"corrected").await;
    assert_eq!((code, out.trim()), (0, format!("{{\"id\":{id},\"retried\":true}}").as_str()));
    let (_, out, _) = call(&["job", &id, "--json"], b"").await;
    assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["payload_text"], "corrected");
    let (code, _, err) = call(&["retry", &id, "--delay", "1h"], b"").await;
    assert!(code == 1 && err.contains("neither dead nor scheduled"), "{err}");
    let (code, out, err) = call(&["discard", "--type", "t", "--error", "out of paper"], b"").await;
    assert_eq!((code, out.lines().count()), (0, 3), "{err}");
    let (code, out, _) =
        call(&["retry", "--type", "t", "--state", "dead", "--run-at", "2033-05-18T03:33:20Z"], b"").await;
    assert_eq!((code, out.lines().count()), (0, 30));
    assert_eq!(broker.count("SELECT count(*) FROM howdah.scheduled WHERE run_at = to_timestamp(2000000000)").await, 30);
    let (code, out, _) = call(&["cancel", "--type", "t", "--state", "scheduled"], b"").await;
    assert_eq!((code, out.lines().count()), (0, 30));

    let (code, out, err) =
        call(&["type", "set", "t", "--retry-delays", "10s,1m", "--fallback", "t.failed", "--json"], b"").await;
    let settings: Value = serde_json::from_str(&out).expect(&err);
    assert_eq!(
        (code, &settings["retry_policy"]["kind"], &settings["fallback"]),
        (0, &Value::from("RETRY_POLICY_KIND_LIST"), &Value::from("t.failed"))
    );
    let (_, out, _) = call(&["type", "set", "t", "--retry-kind", "linear", "--retry-initial-delay", "5m"], b"").await;
    assert_eq!(out.trim(), "retry-kind linear, retry-initial-delay 5m, fallback t.failed");
    let (code, _, err) = call(&["type", "set", "t", "--fallback", "t"], b"").await;
    assert!(code == 65 && err.contains("--fallback is \"t\""), "{err}");
    let (code, id, err) = call(&["enqueue", "u", "x", "--fallback", "u.failed", "--retry-kind", "fixed"], b"").await;
    assert_eq!(code, 0, "{err}");
    let sql =
        format!("SELECT count(*) FROM howdah.ready WHERE id = {} AND options -> 'fallback' IS NOT NULL", id.trim());
    assert_eq!(broker.count(&sql).await, 1);
}
