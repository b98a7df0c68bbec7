//! Tests that `howdah archive restore` enqueues archived jobs again, as new jobs.

use howdah_core::config::ArchivePayloads;
use howdah_engine::archive::Archiver;
use howdah_proto::v1::JobState;
use serde_json::Value;

use super::Setting;
use crate::support::*;

impl Setting {
    async fn restore(&self, args: &[&str]) -> (bool, String, String) {
        let all = [&["archive", "restore"], args, &["--database-url", &self.database.url]].concat();
        let (status, out, err) = run(&all, b"").await;
        (status.success(), out, err)
    }

    /// Ids of the archived jobs that were restored as live jobs, sorted.
    async fn restored(&self) -> Vec<i64> {
        let client = self.database.connect().await;
        let sql = "SELECT (headers ->> 'howdah-restored-from')::bigint FROM howdah.ready ORDER BY 1";
        client.query(sql, &[]).await.expect("jobs").iter().map(|row| row.get(0)).collect()
    }
}

#[tokio::test]
async fn chosen_jobs_are_restored_as_new_jobs_with_their_original_options() {
    let setting = Setting::with(1_000).await;
    let everything = "
        UPDATE howdah.history SET payload = '', priority = -3, max_attempts = 7, options = jsonb_build_object('payload_bytes', 100000,
            'tags', '[\"batch-17\"]'::jsonb, 'limit_key', 'l', 'retry_policy', '{\"max_delay_ms\": 5000}'::jsonb, 'fallback_from', type_id,
            'progress_fraction', 0.5)
        WHERE id = 770;
        INSERT INTO howdah.payload (id, created, data) VALUES (770, now(), convert_to(repeat('x', 100000), 'UTF8'))";
    setting.database.sql(everything).await;
    setting.database.skip_ids(10_000).await;
    setting.archive_and_drop().await;
    let (good, out, err) =
        setting.restore(&["--id", "770", "--id", "3", "--id", "5000", "--yes", "--json", "--reason", "lost"]).await;
    assert!(!good && err.contains("1 job not restored"), "{err}");
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let outcome = |id: i64| lines.iter().find(|line| line["id"] == id).expect("a line");
    assert_eq!(outcome(5_000)["outcome"], "missing");
    assert_eq!(outcome(3)["outcome"], "restored");
    let id = outcome(770)["job"].as_i64().expect("an id");
    assert!(id > 10_000);
    let broker = TestBroker::on(&setting.database).await;
    let (old, new) = (broker.job(770).await, broker.job(id).await);
    assert_eq!(new.state(), JobState::Ready);
    assert_eq!(new.headers["howdah-restored-from"], "770");
    assert_eq!(new.headers.len(), old.headers.len() + 1);
    assert_eq!((new.payload.len(), new.priority, new.max_attempts, new.attempt), (100_000, -3, 7, 0));
    assert_eq!((&new.task_type, &new.key, &new.tags), (&old.task_type, &old.key, &old.tags));
    assert_eq!((&*new.limit_key, &new.limit_key), ("l", &old.limit_key));
    assert!(old.progress.is_some() && new.progress.is_none() && new.finish_time.is_none());
    let policy =
        format!("SELECT (options #>> '{{retry_policy,max_delay_ms}}')::bigint FROM howdah.ready WHERE id = {id}");
    assert_eq!(setting.count(&policy).await, 5_000);
    // A worker can run the restored job.
    let mut worker = broker.worker(&new.task_type).await;
    loop {
        let job = worker.next().await;
        worker.ack(&job).await;
        if job.id == id {
            break;
        }
    }
    broker.until_state(id, JobState::Succeeded).await;
    let audit =
        "SELECT count(*) FROM howdah.audit WHERE method = 'howdah archive restore' AND reason = 'lost' AND count = 2";
    assert_eq!(setting.count(audit).await, 1);
}

#[tokio::test]
async fn jobs_are_chosen_counted_and_restored_once_however_often_the_command_is_given() {
    let setting = Setting::with(2_000).await;
    setting.database.skip_ids(10_000).await;
    setting.archive_and_drop().await;
    let (good, _, err) = setting.restore(&["--yes"]).await;
    assert!(!good && err.contains("--type"), "{err}");
    // Standard input is not a terminal, so the command cannot prompt: it prints the number of jobs and changes nothing.
    let (good, out, err) = setting.restore(&["--type", "a/b:c", "--state", "cancelled"]).await;
    assert!(!good && out.is_empty() && err.contains("13 jobs in the archive") && err.contains("--yes"), "{err}");
    assert!(setting.restored().await.is_empty());
    let cancelled: Vec<i64> = (1..=2_000).filter(|id| id % 50 == 0 && id % 3 == 0 && id % 100 != 7).collect();
    let choice = ["--type", "a/b:c", "--state", "cancelled", "--yes"];
    let (good, out, err) = setting.restore(&choice).await;
    assert!(good && out.lines().count() == cancelled.len(), "{out} {err}");
    assert_eq!(setting.restored().await, cancelled);
    let (good, out, err) = setting.restore(&choice).await;
    assert!(good && out.is_empty() && err.contains("13 jobs already restored"), "{out} {err}");
    assert_eq!(setting.restored().await, cancelled);
    // Restores by key, without a type. Once the request keys are deleted, a second restore is not recognized, and it fails
    // because the restored job holds the key.
    let (good, _, err) = setting.restore(&["--key", "key-8", "--yes"]).await;
    assert!(good, "{err}");
    setting.database.sql("DELETE FROM howdah.request").await;
    let (good, _, err) = setting.restore(&["--key", "key-8", "--yes"]).await;
    assert!(!good && err.contains("holds its key"), "{err}");
    let (good, _, err) = setting.restore(&["--key", "key-8", "--yes"]).await;
    assert!(
        !good && err.contains("holds its key"),
        "a repeated restore of a job whose key is held must fail again: {err}"
    );
    // Restores 7 jobs, then all jobs: the second run does not restore the first 7 again.
    let (good, out, err) = setting.restore(&["--type", "rare", "--limit", "7", "--yes"]).await;
    assert!(good && out.lines().count() == 7 && err.contains("there may be more"), "{out} {err}");
    let (good, out, err) = setting.restore(&["--type", "rare", "--yes"]).await;
    assert!(good && out.lines().count() == 13 && err.contains("7 jobs already restored"), "{out} {err}");
    let rare: Vec<i64> = (1..=2_000).filter(|id| id % 100 == 7).collect();
    let all: std::collections::BTreeSet<i64> = cancelled.into_iter().chain(rare).chain([8]).collect();
    assert_eq!(setting.restored().await, all.into_iter().collect::<Vec<_>>());
}

#[tokio::test]
async fn a_restore_that_is_killed_and_given_again_restores_each_job_once() {
    let setting = Setting::with(6_000).await;
    setting.database.skip_ids(10_000).await;
    setting.archive_and_drop().await;
    let args = ["archive", "restore", "--since", "10d", "--yes", "--database-url", &setting.database.url];
    let mut command = tokio::process::Command::new(howdah());
    let mut child = command
        .args(args)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("run");
    // Kills the process after its first transaction has committed.
    eventually("the first restored jobs", async || setting.count("SELECT count(*) FROM howdah.ready").await > 0).await;
    child.kill().await.expect("killed");
    let (good, _, err) = setting.restore(&["--since", "10d", "--yes"]).await;
    assert!(good, "{err}");
    assert_eq!(setting.restored().await, (1..=6_000).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_job_that_the_database_refuses_does_not_hold_up_the_others() {
    let setting = Setting::with(300).await;
    setting.database.skip_ids(10_000).await;
    setting.archive_and_drop().await;
    setting.database.sql("UPDATE howdah.task_type SET max_payload_bytes = 1 WHERE name = 'rare'").await;
    // Makes job 17 a dead job in the database, as if it had been retried, without a restore.
    let back = "INSERT INTO howdah.dead (id, rank, created, died, leased_at, type_id, attempt, max_attempts, priority, failures, payload)
                SELECT 17, 0, now(), now(), now(), id, 1, 1, 0, '[]', '' FROM howdah.task_type WHERE name = 'mail'";
    setting.database.sql(back).await;
    let (good, out, err) = setting.restore(&["--since", "10d", "--yes"]).await;
    assert!(!good && err.contains("job 7 was not restored") && err.contains("at most 1 are allowed"), "{err}");
    assert!(err.contains("job 17 was not restored: it was retried") && err.contains("3 jobs not restored"), "{err}");
    // Jobs 7, 17 and 107 are refused. Job 207, also of the type `rare`, is restored because its payload is empty.
    assert_eq!(out.lines().count(), 297);
}

#[tokio::test]
async fn jobs_without_payloads_are_not_restored_and_the_command_says_so() {
    for (payloads, name) in [(ArchivePayloads::Hash, "hash"), (ArchivePayloads::None, "none")] {
        let setting = Setting::with(50).await;
        setting.turn_on().await;
        let store = setting.store();
        let id = store.database_id().await.expect("an identity");
        let archiver = Archiver::new(store, &setting.files.url(), payloads, "a test", &id);
        archiver.archive(&setting.day).await.expect("archived");
        let (good, out, err) = setting.restore(&["--id", "17", "--yes"]).await;
        assert!(!good && out.is_empty() && err.contains(&format!("archive_payloads = \"{name}\"")), "{err}");
    }
}
