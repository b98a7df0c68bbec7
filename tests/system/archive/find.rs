//! Tests that `GetJob` finds a job in the archive by its id, and `SearchJobs` by its key, after the job has left the
//! database.

use howdah_proto::v1::{GetJobRequest, Job, JobConditions, JobState, SearchJobsRequest};
use tonic::Code;

use super::{DAY, Setting};
use crate::{
    search::{all, by_key},
    support::*,
    ui::client::Browser,
};

impl Setting {
    /// Archives all days that are over and drops their partitions.
    pub async fn archive_and_drop(&self) {
        self.turn_on().await;
        let archiver = self.archiver().await;
        for day in archiver.days(false).await.expect("days") {
            archiver.archive(&day).await.expect("archived");
        }
        self.drop_old().await;
    }
}

async fn refused(broker: &Service, id: i64) -> (Code, String) {
    let refused = broker.jobs().get_job(GetJobRequest { id }).await.expect_err("no job");
    (refused.code(), refused.message().to_owned())
}

#[tokio::test]
async fn a_job_whose_day_was_dropped_is_shown_as_before() {
    let setting = Setting::with(3_000).await;
    // The jobs have stages, tags, failures, a fallback, a result and a payload stored in `howdah.payload`.
    setting.database.sql(EVERYTHING).await;
    let broker = TestBroker::on(&setting.database).await;
    let ids = [1, 7, 35, 50, 100, 1_234, 3_000];
    let mut before: Vec<Job> = Vec::new();
    for id in ids {
        before.push(broker.job(id).await);
    }
    assert!(before[1].completed_stages.len() == 1 && before[1].tags.len() == 2 && before[1].failures.len() == 1);
    assert_eq!(before[1].payload.len(), 100_000);
    setting.archive_and_drop().await;
    assert_eq!(setting.count("SELECT count(*) FROM howdah.history").await, 0);
    for (id, before) in ids.into_iter().zip(before) {
        assert_eq!(broker.job(id).await, before);
    }
    // Looks up ids that no job has: one above all ids in the files, and the highest possible id.
    for id in [3_001, i64::MAX] {
        assert_eq!(refused(&broker, id).await.0, Code::NotFound);
    }
    Browser::at(&broker).get("/ui/job?id=7").await.has(&["succeeded", "batch-17"]);
    let (status, out, err) = run(&["--server", broker.address(), "job", "7", "--json"], b"").await;
    assert!(status.success() && out.contains("\"state\":\"JOB_STATE_SUCCEEDED\""), "{out} {err}");
    let (status, out, err) = run(&["--server", broker.address(), "explain", "50"], b"").await;
    assert!(status.success() && out.contains("The job was cancelled") && out.contains("in the archive"), "{out} {err}");
    let (status, out, err) = run(&["--server", broker.address(), "search", "--id", "1234", "--json"], b"").await;
    assert!(status.success() && out.contains("\"id\":\"1234\"") && !out.contains("payload"), "{out} {err}");
}

/// SQL that gives a job every optional field.
const EVERYTHING: &str = "
    UPDATE howdah.history SET payload = '', result = 'done',
        failures = '[{\"attempt\": 1, \"error\": \"no\", \"started\": \"2026-01-01T00:00:00Z\", \"failed\": \"2026-01-01T00:00:01Z\"}]',
        options = jsonb_build_object('payload_bytes', 100000, 'tags', '[\"batch-17\", \"b\"]'::jsonb, 'limit_key', 'l',
            'completed_stages', jsonb_build_array(jsonb_build_object('type', type_id, 'attempt', 2)), 'fallback_from', type_id)
    WHERE id = 7;
    INSERT INTO howdah.payload (id, created, data) VALUES (7, now(), convert_to(repeat('x', 100000), 'UTF8'))";

#[tokio::test]
async fn of_a_job_that_ended_on_several_days_the_last_end_is_shown() {
    let setting = Setting::with(500).await;
    // Job 50 was cancelled three days ago, then retried, and succeeded two days ago. Another job holds its key now.
    setting.database.sql(&format!("SELECT howdah.make_day_partition('history', 'finished', {DAY} - 1)")).await;
    let earlier =
        "INSERT INTO howdah.history (id, created, finished, type_id, outcome, attempt, max_attempts, priority, key, payload)
         SELECT id, created, finished - interval '1 day', type_id, outcome, attempt, max_attempts, priority, key, payload
         FROM howdah.history WHERE id = 50";
    setting.database.sql(earlier).await;
    let later = "UPDATE howdah.history SET outcome = 'succeeded', attempt = 2, key = NULL
                 WHERE id = 50 AND finished = (SELECT max(finished) FROM howdah.history WHERE id = 50)";
    setting.database.sql(later).await;
    let broker = TestBroker::on(&setting.database).await;
    setting.turn_on().await;
    let archiver = setting.archiver().await;
    for day in archiver.days(false).await.expect("days") {
        archiver.archive(&day).await.expect("archived");
    }
    let drop = "SELECT howdah.drop_history_partitions((now() AT TIME ZONE 'UTC')::date)::bigint";
    setting.database.count_unless_locked(drop).await;
    assert_eq!(setting.count("SELECT count(*) FROM howdah.history").await, 0);
    let job = broker.job(50).await;
    assert_eq!((job.state(), job.attempt), (JobState::Succeeded, 2));
    assert_eq!(broker.job(100).await.state(), JobState::Cancelled);
}

#[tokio::test]
async fn an_unavailable_archive_fails_only_lookups_of_archived_jobs() {
    let setting = Setting::with(500).await;
    setting.archive_and_drop().await;
    let broker = TestBroker::on(&setting.database).await;
    let live = broker.enqueue("live").await;
    setting.files.move_away();
    assert_eq!(broker.job(live).await.state(), JobState::Ready);
    let (code, message) = refused(&broker, 17).await;
    assert_eq!(code, Code::Unavailable);
    assert!(message.contains("job 17") && message.contains("the directory does not exist"), "{message}");
    assert_eq!(refused(&broker, 1 << 40).await.0, Code::NotFound, "no file has such ids");
    setting.files.move_back();
    assert_eq!(broker.job(17).await.id, 17);
    // Cuts the file that contains job 17 in half. Jobs of this file cannot be read, and jobs of other files can.
    let (path, data) = setting.files.parquet().into_iter().find(|(_, data)| ids(data).contains(&17)).expect("a file");
    std::fs::write(&path, &data[..data.len() / 2]).expect("cut");
    let (code, message) = refused(&broker, 17).await;
    assert_eq!(code, Code::Unavailable);
    assert!(message.contains("part-"), "{message}");
    let other = (1..=500).find(|id| !ids(&data).contains(id)).expect("another job");
    assert_eq!(broker.job(other).await.id, other);
}

fn ids(data: &[u8]) -> Vec<i64> {
    howdah_archive::ids_of(bytes::Bytes::copy_from_slice(data)).unwrap_or_default()
}

#[tokio::test]
async fn payloads_in_the_archive_are_for_those_who_may_see_them() {
    let setting = Setting::with(200).await;
    setting.archive_and_drop().await;
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    let mut tokens = Vec::new();
    for scopes in ["read:mail payload:mail", "read:mail", "read:rare"] {
        let token = howdah_engine::access::Token::generate().secret().to_owned();
        std::io::Write::write_all(&mut file, format!("{token} somebody {scopes}\n").as_bytes()).expect("write");
        tokens.push(token);
    }
    let broker = TestBroker::on_with(&setting.database, |config| {
        config.auth.token = true;
        config.auth_token_file = Some(file.path().to_owned());
    })
    .await;
    // Job 1 has the type `mail`, which only the first two callers may read; only the first one may read payloads.
    let callers: Vec<Service> = tokens.iter().map(|token| broker.with_token(token)).collect();
    assert_eq!(callers[0].job(1).await.payload, "payload 1");
    assert_eq!((callers[1].job(1).await.payload.len(), callers[1].job(1).await.task_type.as_str()), (0, "mail"));
    assert_eq!(refused(&callers[2], 1).await.0, Code::NotFound);
}

/// SQL that gives a third of the jobs, of type `mail`, the same key.
const SAME_KEY: &str = "UPDATE howdah.history SET key = 'customer' WHERE id % 3 = 1 AND id % 100 <> 7";

#[tokio::test]
async fn a_search_by_key_finds_archived_jobs_once_after_those_in_the_database() {
    let setting = Setting::with(3_000).await;
    setting.database.sql(SAME_KEY).await;
    let broker = TestBroker::on(&setting.database).await;
    let search = SearchJobsRequest { page_size: 300, ..by_key("mail", "customer") };
    let (before, _) = all(&broker, search.clone()).await;
    assert_eq!(before.len(), (1..=3_000).filter(|id| id % 3 == 1 && id % 100 != 7).count());
    setting.turn_on().await;
    setting.archive().await.expect("archived");
    assert_eq!(all(&broker, search.clone()).await.0, before, "the jobs are in the database and in the archive");
    assert_eq!(setting.drop_old().await, 1);
    let live = broker.enqueue_all([new_job("mail", "x").key("customer")]).await;
    let (after, last) = all(&broker, search.clone()).await;
    assert_eq!(after, [live.as_slice(), before.as_slice()].concat());
    let mails = (1..=3_000).filter(|id| id % 3 != 0 && id % 100 != 7).count() as i64;
    assert_eq!((last.scanned_count, last.estimated_count), (mails + 1, mails + 1));
    let cancelled = SearchJobsRequest { state: JobState::Cancelled as i32, ..search.clone() };
    let expected: Vec<i64> = before.iter().copied().filter(|id| id % 50 == 0).collect();
    assert_eq!(all(&broker, cancelled).await.0, expected);
    let ready = SearchJobsRequest { state: JobState::Ready as i32, ..search.clone() };
    assert_eq!(all(&broker, ready).await.0, live);
    let conditions = JobConditions { limit_key: "l".into(), attempts_at_least: Some(1), ..JobConditions::default() };
    let limited = SearchJobsRequest { conditions: Some(conditions), ..search };
    let expected: Vec<i64> = before.into_iter().filter(|id| id % 7 == 0).collect();
    assert_eq!(all(&broker, limited).await.0, expected);
    let args = ["--server", broker.address(), "search", "mail", "--key", "key-8", "--json"];
    let (status, out, err) = run(&args, b"").await;
    assert!(status.success() && out.contains("\"id\":\"8\"") && !out.contains("payload"), "{out} {err}");
}

#[tokio::test]
async fn a_search_by_key_finds_an_archived_job_with_its_last_end() {
    let setting = Setting::with(500).await;
    // Jobs 50 and 100 ended three days ago and two days ago. The last end of job 100 has no key.
    setting.database.sql(&format!("SELECT howdah.make_day_partition('history', 'finished', {DAY} - 1)")).await;
    let earlier =
        "INSERT INTO howdah.history (id, created, finished, type_id, outcome, attempt, max_attempts, priority, key, payload)
         SELECT id, created, finished - interval '1 day', type_id, 'discarded', attempt, max_attempts, priority, key, payload
         FROM howdah.history WHERE id IN (50, 100)";
    setting.database.sql(earlier).await;
    let later = "UPDATE howdah.history SET key = NULL WHERE id = 100 AND outcome <> 'discarded'";
    setting.database.sql(later).await;
    setting.turn_on().await;
    let archiver = setting.archiver().await;
    for day in archiver.days(false).await.expect("days") {
        archiver.archive(&day).await.expect("archived");
    }
    let drop = "SELECT howdah.drop_history_partitions((now() AT TIME ZONE 'UTC')::date)::bigint";
    setting.database.count_unless_locked(drop).await;
    // The type of the jobs is deleted, so only the archive names it.
    setting.database.sql("DELETE FROM howdah.task_type WHERE name = 'mail'").await;
    let broker = TestBroker::on(&setting.database).await;
    let (ids, _) = all(&broker, by_key("mail", "key-50")).await;
    assert_eq!(ids, [50]);
    assert_eq!(broker.job(50).await.state(), JobState::Cancelled);
    assert_eq!(all(&broker, by_key("mail", "key-100")).await.0, [0_i64; 0]);
}

#[tokio::test]
async fn an_unavailable_archive_fails_a_search_by_key_after_the_jobs_in_the_database() {
    let setting = Setting::with(100).await;
    setting.archive_and_drop().await;
    let broker = TestBroker::on(&setting.database).await;
    let live = broker.enqueue_all([new_job("mail", "x").key("key-8")]).await;
    setting.files.move_away();
    let search = |page_token| SearchJobsRequest { page_token, ..by_key("mail", "key-8") };
    let first = broker.jobs().search_jobs(search(String::new())).await.expect("found").into_inner();
    assert_eq!(first.jobs.iter().map(|job| job.id).collect::<Vec<_>>(), live);
    let refused = broker.jobs().search_jobs(search(first.next_page_token)).await.expect_err("no archive");
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().contains("a job with this key is not in the database"), "{refused}");
    let args = ["--server", broker.address(), "search", "mail", "--key", "key-8"];
    let (status, out, err) = run(&args, b"").await;
    assert!(!status.success() && out.contains("key-8") && err.contains("the archive"), "{out} {err}");
}
