//! `howdah archive`.

use super::Setting;
use crate::support::*;

async fn archive(setting: &Setting, args: &[&str]) -> (bool, String, String) {
    let all = [&["archive"], args, &["--database-url", &setting.database.url]].concat();
    let (status, out, err) = run(&all, b"").await;
    (status.success(), out, err)
}

#[tokio::test]
async fn days_are_archived_listed_and_verified_by_hand() {
    let setting = Setting::with(1_000).await;
    let url = setting.files.url();
    let (good, _, err) = archive(&setting, &["now"]).await;
    assert!(!good && err.contains("no archive given"), "{err}");
    let (good, out, err) = archive(&setting, &["now", "--url", &url]).await;
    assert!(good, "{err}");
    assert!(out.contains(&format!("{}: archived 1000 jobs", setting.day)), "{out}");
    let (good, out, _) = archive(&setting, &["now", "--url", &url, "--json"]).await;
    assert!(good && out.is_empty(), "a day was archived twice: {out}");
    setting.assert_all_once(1_000).await;

    let (_, out, _) = archive(&setting, &["list"]).await;
    assert!(out.lines().any(|line| line.starts_with(&setting.day) && line.contains("archived")), "{out}");
    let (_, out, _) = archive(&setting, &["list", "--files"]).await;
    let files: Vec<_> = setting.files.parquet().iter().map(|(path, _)| format!("file://{}", path.display())).collect();
    let mut listed: Vec<_> = out.lines().map(str::to_owned).collect();
    listed.sort();
    assert_eq!(listed, files);
    let (_, out, _) = archive(&setting, &["list", "--json", "--limit", "1"]).await;
    assert_eq!(serde_json::from_str::<serde_json::Value>(&out).expect("JSON")["state"], "archived");

    let (good, _, err) = archive(&setting, &["verify", "--url", &url]).await;
    assert!(good && err.contains("(1000 jobs)"), "{err}");
    // Flips one bit of a payload in a file, and removes another file.
    let (path, mut data) = setting.files.parquet().remove(0);
    data[300] ^= 1;
    std::fs::write(&path, data).expect("damaged");
    let (good, out, _) = archive(&setting, &["verify", "--url", &url, "--day", &setting.day]).await;
    assert!(!good && out.contains("SHA-256 mismatch"), "{out}");
    std::fs::remove_file(&path).expect("removed");
    let (good, out, _) = archive(&setting, &["verify", "--url", &url]).await;
    assert!(!good && out.lines().count() == 1 && out.contains("not found"), "{out}");
}

#[tokio::test]
async fn the_archive_is_turned_off_by_hand_and_that_is_recorded() {
    let setting = Setting::with(10).await;
    setting.turn_on().await;
    assert_eq!(setting.drop_old().await, 0);
    let (good, out, err) = archive(&setting, &["off", "--reason", "we move"]).await;
    assert!(good && out.contains(&setting.files.url()), "{out} {err}");
    let audit = "SELECT count(*) FROM howdah.audit WHERE method = 'howdah archive off' AND reason = 'we move'";
    assert_eq!(setting.count(audit).await, 1);
    assert_eq!(setting.drop_old().await, 1);
    let (good, _, err) = archive(&setting, &["off"]).await;
    assert!(good && err.contains("the archive is already off"), "{err}");
}

#[tokio::test]
async fn an_archive_run_with_a_cpu_share_archives_every_job() {
    let setting = Setting::with(5_000).await;
    let url = setting.files.url();
    let (good, _, err) = archive(&setting, &["now", "--url", &url, "--share", "2"]).await;
    assert!(!good && err.contains("must be a number from 0.001 to 1"), "{err}");
    let (good, out, err) = archive(&setting, &["now", "--url", &url, "--share", "0.2"]).await;
    assert!(good && out.contains("archived 5000 jobs"), "{out} {err}");
    setting.assert_all_once(5_000).await;
}

#[tokio::test]
async fn the_archive_load_has_the_jobs_the_changed_rows_and_the_seconds_left_of_a_day() {
    let setting = Setting::with(3_000).await;
    setting.database.sql("ANALYZE howdah.history").await;
    let (store, hours) = (setting.store(), |hours: u64| std::time::Duration::from_secs(hours * 3_600));
    let before = store.archive_load(&setting.day, hours(18)).await.expect("the load");
    assert_eq!(before.jobs, 3_000.0);
    // The archive deadline, one day after the end of `DAY`, passed less than 30 hours ago.
    assert!(before.seconds_left < 0.0 && before.seconds_left > -30.0 * 3_600.0, "{before:?}");
    assert!(store.archive_load(&setting.day, hours(72)).await.expect("the load").seconds_left > 0.0);
    setting.finish(3_001, 2_000).await;
    // Polls the load, because Postgres updates its table statistics with a delay.
    eventually("the changed rows in the statistics", async || {
        let now = store.archive_load(&setting.day, hours(18)).await.expect("the load");
        now.changed_rows >= before.changed_rows + 2_000
    })
    .await;
}

#[tokio::test]
async fn a_url_with_credentials_is_refused_and_not_shown() {
    let setting = Setting::with(1).await;
    let (good, out, err) = archive(&setting, &["now", "--url", "s3://id:very-secret@bucket/x"]).await;
    assert!(!good && out.is_empty());
    assert!(err.contains("without credentials"), "{err}");
}
