//! Tests `ListJobs` ordered by attempts, which returns the started, unfinished jobs of a type with the most attempts.

use howdah_proto::v1::{Job, JobOrder, JobState, ListJobsRequest, ListJobsResponse};
use serde_json::Value;
use tonic::Status;

use crate::{support::*, ui::client::Browser};

async fn most(broker: &TestBroker, state: JobState, page_size: i32) -> ListJobsResponse {
    list_by_attempts(broker, state, page_size).await.expect("a list")
}

async fn list_by_attempts(broker: &TestBroker, state: JobState, page_size: i32) -> Result<ListJobsResponse, Status> {
    let mut request = ListJobsRequest { task_type: "t".into(), page_size, ..ListJobsRequest::default() };
    request.set_state(state);
    request.set_order(JobOrder::Attempts);
    Ok(with_timeout("a list", broker.jobs().list_jobs(request)).await?.into_inner())
}

fn attempts(jobs: &[Job]) -> Vec<(i64, u32)> {
    jobs.iter().map(|job| (job.id, job.attempt)).collect()
}

/// Inserts jobs of a type into a table. `attempt` is a SQL expression in `i`, which counts from 1.
async fn store(broker: &TestBroker, table: &str, task_type: &str, jobs: i32, attempt: &str) {
    let (column, value) = match table {
        "scheduled" => (", run_at", ", now() + interval '1 day'"),
        "dead" => (", died", ", now()"),
        _ => ("", ""),
    };
    let sql = format!(
        "INSERT INTO howdah.{table} (id, rank, created, type_id, attempt, max_attempts, priority, payload{column})
         SELECT nextval('howdah.job_id'), i, now(), t.id, {attempt}, 99, 0, 'p'{value}
         FROM howdah.task_type t, generate_series(1, {jobs}) i WHERE t.name = '{task_type}'"
    );
    broker.sql(&sql).await;
}

#[tokio::test]
async fn jobs_of_every_state_but_the_finished_ones_come_with_the_most_attempts_first() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("t").window(1).await;
    let dead = broker.enqueue("t").max_attempts(3).await;
    for _ in 0..3 {
        let job = worker.next().await;
        worker.nack(&job, "no route").at_once().await;
    }
    broker.until_state(dead, JobState::Dead).await;
    let backing_off = broker.enqueue("t").max_attempts(9).await;
    let job = worker.next().await;
    worker.nack(&job, "busy").at_once().await;
    let job = worker.next().await;
    worker.nack(&job, "still busy").retry_after(HOUR).await;
    broker.until_state(backing_off, JobState::Scheduled).await;
    let finished = broker.enqueue("t").await;
    let job = worker.next().await;
    worker.ack(&job).await;
    broker.until_state(finished, JobState::Succeeded).await;
    let leased = broker.enqueue(new_job("t", "work")).await;
    assert_eq!(worker.next().await.id, leased);
    // Two jobs that have never started must not be listed.
    broker.enqueue("t").await;
    broker.enqueue("t").delay(HOUR).await;

    let list = most(&broker, JobState::Unspecified, 10).await;
    assert_eq!(attempts(&list.jobs), [(dead, 3), (backing_off, 2), (leased, 1)]);
    assert!(!list.partial && !list.has_more && list.next_page_token.is_empty(), "{list:?}");
    // The scan read one leased, one ready and two scheduled jobs. It finds the dead job by an index, without a scan.
    assert_eq!(list.scanned_count, 4);
    assert_eq!(list.jobs[1].failures.len(), 1, "the list has only the last failure of a job");
    assert!(!list.jobs[2].broker.is_empty() && list.jobs[2].payload.is_empty());
    for (state, id) in [(JobState::Dead, dead), (JobState::Scheduled, backing_off), (JobState::Leased, leased)] {
        let list = most(&broker, state, 10).await;
        assert_eq!(list.jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [id], "{state:?}");
    }
    let mut request = ListJobsRequest { task_type: "t".into(), include_payload: true, ..Default::default() };
    request.set_order(JobOrder::Attempts);
    let list = broker.jobs().list_jobs(request).await.expect("a list").into_inner();
    assert_eq!((list.jobs[1].failures.len(), &list.jobs[2].payload[..]), (2, &b"work"[..]));
}

#[tokio::test]
async fn a_job_with_many_attempts_is_found_behind_thousands_with_few() {
    let broker = TestBroker::start().await;
    broker.cancel(&[broker.enqueue("t").await, broker.enqueue("other").await]).await;
    store(&broker, "dead", "t", 3_000, "CASE WHEN i = 2900 THEN 9 ELSE 1 + i % 3 END").await;
    store(&broker, "dead", "other", 10, "50").await;
    store(&broker, "ready", "t", 3_000, "CASE WHEN i = 2800 THEN 8 ELSE 0 END").await;
    store(&broker, "scheduled", "other", 3_000, "20").await;
    store(&broker, "scheduled", "t", 3_000, "CASE WHEN i = 2700 THEN 7 ELSE i % 2 END").await;
    store(&broker, "waiting", "t", 1, "6").await;
    let list = most(&broker, JobState::Unspecified, 5).await;
    assert_eq!(list.jobs.iter().map(|job| job.attempt).collect::<Vec<_>>(), [9, 8, 7, 6, 3]);
    assert!(list.has_more && !list.partial, "{list:?}");
    assert_eq!(list.scanned_count, 9_001);
    let browser = Browser::at(&broker);
    let page = browser.get("/ui/jobs?type=t&sort=attempts").await;
    page.has(&["9/99", "8/99", "7/99", "6/99", "3/99", "The 100 jobs with the most attempts."])
        .has_no(&["Scanned", "50/99"]);
    browser.get("/ui/jobs?type=t&sort=attempts&state=waiting").await.has(&["6/99", "All jobs that have started"]);
    browser
        .get("/ui/jobs?type=t&sort=attempts&state=succeeded")
        .await
        .has(&["Finished jobs cannot be ordered by attempts"]);

    let args = ["jobs", "t", "--sort", "attempts", "--limit", "2", "--json", "--server", &broker.grpc];
    let (status, out, err) = run(&args, b"").await;
    assert!(status.success(), "{err}");
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.iter().map(|job| &job["attempt"]).collect::<Vec<_>>(), [9, 8]);
    assert!(err.contains("only the first 2 jobs: --limit allows up to 1,000"), "{err}");
}

#[tokio::test]
async fn a_list_by_attempts_that_runs_out_of_time_is_marked_as_partial() {
    let broker = TestBroker::start().await;
    broker.cancel(&[broker.enqueue("t").await]).await;
    store(&broker, "scheduled", "t", 45_000, "1").await;
    store(&broker, "dead", "t", 1, "5").await;
    let list = held_up(&broker, async || list_by_attempts(&broker, JobState::Unspecified, 2).await.ok()).await;
    assert!(list.partial && list.has_more, "{list:?}");
    assert_eq!(list.scanned_count, 20_000);
    assert_eq!(list.jobs.iter().map(|job| job.attempt).collect::<Vec<_>>(), [5, 1]);
    let args = ["jobs", "t", "--sort", "attempts", "--server", &broker.grpc];
    let (_, out, err) = held_up(&broker, async || Some(run(&args, b"").await).filter(|ran| ran.0.success())).await;
    assert!(out.contains("5/99") && err.contains("only 20,000 other jobs"), "{out}{err}");
    let browser = Browser::at(&broker);
    let page = async || Some(browser.get("/ui/jobs?type=t&sort=attempts").await).filter(|page| page.status == 200);
    let page = held_up(&broker, page).await;
    page.has(&["5/99", "Scanned 20,000 jobs, but not all of them"]);
}

/// Runs a scan while `scheduled` is locked until the time limit of the scan has passed, and returns its result. If `look`
/// returns `None`, the scan gave up because the lock was held for too long, and is repeated.
async fn held_up<T>(broker: &TestBroker, look: impl AsyncFn() -> Option<T>) -> T {
    let lock = broker.database.connect().await;
    let waits = "SELECT EXISTS (
        SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
               AND query LIKE '%howdah.scheduled%LIMIT 20000%' AND clock_timestamp() - query_start > interval '200 ms')";
    for _ in 0..20 {
        lock.batch_execute("BEGIN; LOCK TABLE howdah.scheduled").await.expect("a lock");
        let mut listing = std::pin::pin!(look());
        let given_up = tokio::select! {
            () = broker.until("a scan that waits for the lock", waits) => false,
            _ = &mut listing => true,
        };
        lock.batch_execute("ROLLBACK").await.expect("no lock");
        if !given_up && let Some(answer) = listing.await {
            return answer;
        }
    }
    panic!("each scan gave up")
}
