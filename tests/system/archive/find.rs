//! Tests that `GetJob` finds a job in the archive by its id after the job has left the database.

use howdah_proto::v1::{GetJobRequest, Job, JobState};
use tonic::Code;

use super::{DAY, Setting};
use crate::{support::*, ui::client::Browser};

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
