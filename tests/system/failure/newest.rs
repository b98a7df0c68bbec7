//! Tests lists of jobs by their failures, and lists of the jobs of all types.

use howdah_proto::v1::{Job, JobOrder, JobState, ListJobsRequest};
use tonic::Code;

use super::add_dead_jobs;
use crate::{access::fixture::Guarded, support::*};

fn by_failure(task_type: &str, state: JobState) -> ListJobsRequest {
    ListJobsRequest {
        task_type: task_type.into(),
        state: state as i32,
        order: JobOrder::Failure as i32,
        ..Default::default()
    }
}

/// Reads all pages of a list, with this number of jobs per page.
async fn pages(service: &Service, request: ListJobsRequest, page_size: i32) -> Vec<Job> {
    let (mut request, mut all) = (ListJobsRequest { page_size, ..request }, Vec::new());
    loop {
        let page =
            with_timeout("a page", service.jobs().list_jobs(request.clone())).await.expect("a page").into_inner();
        assert!(page.jobs.len() <= page_size as usize);
        all.extend(page.jobs);
        if page.next_page_token.is_empty() {
            return all;
        }
        request.page_token = page.next_page_token;
    }
}

/// Creates dead jobs of a type, one for each of these errors.
async fn dead_with(service: &Service, task_type: &str, errors: &[&str]) -> Vec<i64> {
    let mut worker = service.worker(task_type).window(1).await;
    let mut ids = Vec::new();
    for error in errors {
        ids.push(service.enqueue(task_type).max_attempts(1).await);
        let job = worker.next().await;
        worker.nack(&job, error).await;
        service.until_state(job.id, JobState::Dead).await;
    }
    ids
}

fn ids(jobs: &[Job]) -> Vec<i64> {
    jobs.iter().map(|job| job.id).collect()
}

#[tokio::test]
async fn dead_jobs_and_jobs_that_wait_for_a_retry_are_listed_by_their_newest_failures_page_by_page() {
    let broker = TestBroker::start().await;
    let dead = dead_with(&broker, "mail", &["no host 1", "out of paper", "no host 2"]).await;
    let other = dead_with(&broker, "other", &["no host 3"]).await[0];
    let backing_off = broker.enqueue("mail").retry_after_each(HOUR).await;
    broker.enqueue("mail").delay(HOUR).await;
    let mut worker = broker.worker("mail").window(1).await;
    let job = worker.next().await;
    worker.nack(&job, "no host 4").await;
    broker.until_state(backing_off, JobState::Scheduled).await;
    // The job that was created first fails last.
    broker.sql(&format!("UPDATE howdah.dead SET died = now() + interval '1 minute' WHERE id = {}", dead[0])).await;
    let newest = [dead[0], backing_off, dead[2], dead[1]];
    let all = pages(&broker, by_failure("mail", JobState::Unspecified), 1).await;
    assert_eq!(ids(&all), newest);
    assert_eq!(all[1].failures[0].error, "no host 4");
    assert_eq!(ids(&pages(&broker, by_failure("mail", JobState::Dead), 2).await), [dead[0], dead[2], dead[1]]);
    assert_eq!(ids(&pages(&broker, by_failure("mail", JobState::Scheduled), 2).await), [backing_off]);
    let group = ListJobsRequest { error_group: "no host #".into(), ..by_failure("mail", JobState::Dead) };
    assert_eq!(ids(&pages(&broker, group, 1).await), [dead[0], dead[2]]);
    let of_all = pages(&broker, by_failure("", JobState::Dead), 3).await;
    assert_eq!(ids(&of_all), [dead[0], other, dead[2], dead[1]]);
    assert_eq!(of_all[1].task_type, "other");
    assert!(pages(&broker, by_failure("nobody", JobState::Dead), 3).await.is_empty());
}

#[tokio::test]
async fn jobs_that_failed_at_the_same_time_are_on_one_page_each() {
    let broker = TestBroker::start().await;
    add_dead_jobs(&broker.database, "mail", 25, "no host #").await;
    let listed = ids(&pages(&broker, by_failure("mail", JobState::Dead), 10).await);
    assert!(listed.len() == 25 && listed.is_sorted_by(|a, b| a > b), "{listed:?}");
}

#[tokio::test]
async fn the_jobs_of_all_types_are_listed_in_every_state_for_callers_who_may_read_all() {
    let guarded = Guarded::start().await;
    let admin = &guarded.admin;
    let dead = dead_with(admin, "mail.send", &["no host"]).await[0];
    let ready = admin.enqueue_all(["secret", "mail.send", "other"]).await;
    let later = admin.enqueue("secret").delay(HOUR).await;
    let done = admin.enqueue("done").await;
    let mut worker = admin.worker("done").window(1).await;
    let job = worker.next().await;
    worker.ack(&job).await;
    admin.until_state(done, JobState::Succeeded).await;
    let list = |state: JobState| ListJobsRequest { state: state as i32, ..Default::default() };
    let all = pages(admin, list(JobState::Unspecified), 2).await;
    assert_eq!(ids(&all), [ready[0], ready[1], ready[2], later, dead, done]);
    assert_eq!(
        all.iter().map(|job| job.task_type.as_str()).take(3).collect::<Vec<_>>(),
        ["secret", "mail.send", "other"]
    );
    for (state, expected) in [
        (JobState::Ready, &ready[..]),
        (JobState::Scheduled, &[later]),
        (JobState::Dead, &[dead]),
        (JobState::Succeeded, &[done]),
        (JobState::Cancelled, &[]),
    ] {
        assert_eq!(ids(&pages(admin, list(state), 2).await), expected, "{state:?}");
    }
    let reader = guarded.caller("ann", &["read:mail.*", "payload:*"]).await;
    for request in [list(JobState::Ready), by_failure("", JobState::Dead)] {
        let refused = with_timeout("an answer", reader.jobs().list_jobs(request)).await.expect_err("all types");
        assert_eq!(refused.code(), Code::PermissionDenied);
    }
    let reader = guarded.caller("bob", &["read:*", "payload:mail.*"]).await;
    let request = ListJobsRequest { include_payload: true, ..list(JobState::Ready) };
    let refused = with_timeout("an answer", reader.jobs().list_jobs(request)).await.expect_err("payloads of all types");
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert_eq!(pages(&reader, list(JobState::Ready), 10).await.len(), 3);
}
