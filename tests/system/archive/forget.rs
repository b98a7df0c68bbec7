//! Tests that `howdah archive forget` removes the selected jobs from every file and keeps all others, even if it is killed at
//! any step.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, UNIX_EPOCH},
};

use howdah_engine::{
    archive::{ForgetProgress, ForgetQuery, Forgotten, Step},
    store::Actor,
};
use howdah_proto::v1::GetJobRequest;
use tonic::Code;

use super::{DAY, Setting, archiver};
use crate::support::*;

/// Environment variable with the arguments of the child process: database, URL, day, number of the step at which to kill it,
/// occurrence of the step.
const ARGUMENTS: &str = "HOWDAH_TEST_FORGET";

/// Runs in the child process that `forget_in_and_kill` starts. Does nothing in a normal test run.
#[tokio::test]
#[ignore = "run by the others"]
async fn the_process_that_is_killed() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else { return };
    let [database, url, day, step, nth] = arguments.split('|').collect::<Vec<_>>()[..] else { panic!("{arguments}") };
    let (step, nth) = (Step::ALL[step.parse::<usize>().unwrap()], nth.parse::<usize>().unwrap());
    let reached = AtomicUsize::new(0);
    let archiver = archiver(database, url).await.on_step(Arc::new(move |at| {
        if at == step && reached.fetch_add(1, Ordering::Relaxed) + 1 == nth {
            let pid = rustix::process::getpid();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("kill");
        }
    }));
    let _ = archiver.forget(day, &early(day), &Actor::of_session("a test")).await;
}

/// Returns a query that selects jobs 1 to 500: jobs of all task types, in several files.
fn early(day: &str) -> ForgetQuery {
    let parts: Vec<u64> = day.split('-').map(|part| part.parse().expect("a number")).collect();
    // Counts years from March, so that the leap day is the last day of a year.
    let (year, month) = if parts[1] > 2 { (parts[0], parts[1] - 3) } else { (parts[0] - 1, parts[1] + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + parts[2] - 1 - 719_468;
    let before = UNIX_EPOCH + Duration::from_secs(days * 86_400) + Duration::from_millis(1_501);
    ForgetQuery { before: Some(before), ..ForgetQuery::default() }
}

impl Setting {
    async fn forget(&self, args: &[&str]) -> (bool, String, String) {
        let all = [&["archive", "forget"], args, &["--database-url", &self.database.url]].concat();
        let (status, out, err) = run(&all, b"").await;
        (status.success(), out, err)
    }

    /// Forgets jobs 1 to 500 in this process, and only in the files.
    pub async fn forget_early(&self) -> Option<Forgotten> {
        let by = Actor::of_session("a test");
        self.archiver().await.forget(&self.day, &early(&self.day), &by).await.expect("forgotten")
    }

    async fn forget_and_kill(&self, step: Step, nth: usize) {
        self.forget_in_and_kill(&self.files.url(), Vec::new(), step, nth).await;
    }

    /// Forgets jobs 1 to 500 in a child process that is killed at the `nth` time it reaches `step`. `url` is the archive, and
    /// `variables` are the environment of the process.
    pub async fn forget_in_and_kill(&self, url: &str, variables: Vec<(&str, String)>, step: Step, nth: usize) {
        use std::os::unix::process::ExitStatusExt as _;
        let number = Step::ALL.iter().position(|known| *known == step).expect("a step");
        let arguments = format!("{}|{url}|{}|{number}|{nth}", self.database.url, self.day);
        let mut command = tokio::process::Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "archive::forget::the_process_that_is_killed", "--ignored", "--test-threads=1"]);
        command.envs(variables).env(ARGUMENTS, arguments).kill_on_drop(true).stdout(std::process::Stdio::null());
        let status = with_timeout("the end of the process", command.status()).await.expect("run");
        assert_eq!(status.signal(), Some(9), "{step:?} was not reached");
        // The process is dead, so expire its exclusive hold on the day.
        self.database.sql("UPDATE howdah.archive SET held_until = now() WHERE held_until IS NOT NULL").await;
    }

    /// Asserts that the files, the manifest and the database contain each of the jobs 501 to `last` once, and no other
    /// jobs.
    async fn assert_early_are_gone(&self, last: i64) {
        assert_eq!(self.files.ids(), (501..=last).collect::<Vec<_>>());
        assert_eq!(self.files.staged(), 0);
        let manifest = self.files.manifest(&self.day);
        assert_eq!((manifest.sums.rows, manifest.parts.len()), (last - 500, self.files.parquet().len()));
        for part in &manifest.parts {
            howdah_archive::check(&self.files.location(), &part.path, part).await.expect("a good file");
        }
        let known = "SELECT count(*) FROM howdah.archive a WHERE rewrite IS NULL AND held_until IS NULL AND files = \
                     (SELECT count(*) FROM howdah.archive_file f WHERE f.day = a.day) AND jobs = \
                     (SELECT sum(jobs) FROM howdah.archive_file f WHERE f.day = a.day AND NOT f.ids @> 500::bigint)";
        assert_eq!(self.count(known).await, 1);
        let (status, _, err) =
            run(&["archive", "verify", "--url", &self.files.url(), "--database-url", &self.database.url], b"").await;
        assert!(status.success(), "{err}");
    }
}

#[tokio::test]
async fn forgetting_a_key_removes_its_jobs_from_the_archive_and_the_database() {
    let setting = Setting::with(2_000).await;
    setting.turn_on().await;
    // Job 2004 has a large payload, and its day is not archived yet.
    setting.finish_yesterday(2_001).await;
    let large = "UPDATE howdah.history SET key = 'key-8', payload = '', options = '{\"payload_bytes\": 100000}' WHERE id = 2004;
                 INSERT INTO howdah.payload (id, created, data) VALUES (2004, now(), convert_to(repeat('x', 100000), 'UTF8'))";
    setting.database.sql(large).await;
    setting.archive().await.expect("archived");
    // Job 8 is on a day that is archived and whose partition still exists.
    let (good, out, err) = setting.forget(&["--key", "key-8"]).await;
    assert!(!good && out.is_empty() && err.contains("--yes"), "{err}");
    assert!(err.contains("archive: 1 job in 1 files of 1 days") && err.contains("database: 2 jobs"), "{err}");
    assert_eq!(setting.files.ids().len(), 2_000);
    let (good, out, err) = setting.forget(&["--key", "key-8", "--yes", "--reason", "asked for"]).await;
    assert!(good && out.contains("database: forgot 2 jobs"), "{out} {err}");
    assert!(out.contains(&format!("{}: forgot 1 job, rewrote 1 files", setting.day)), "{out}");
    let ids: Vec<i64> = (1..=2_000).filter(|id| *id != 8).collect();
    assert_eq!(setting.files.ids(), ids);
    let rows = "SELECT count(*) FROM howdah.history WHERE key = 'key-8' OR id IN (8, 2004)";
    assert_eq!(setting.count(rows).await + setting.count("SELECT count(*) FROM howdah.payload").await, 0);
    let audit = "SELECT count(*) FROM howdah.audit WHERE method = 'howdah archive forget' AND reason = 'asked for' AND '8' = ANY (ids)";
    assert_eq!(setting.count(audit).await, 2, "audit entries for the database and for the archived day");
    assert_eq!(setting.count("SELECT count(*) FROM howdah.audit a WHERE a::text LIKE '%key-8%'").await, 0);
    // Retention still drops the day's partition, and the remaining jobs are found by id.
    assert_eq!(setting.drop_old().await, 1);
    let broker = TestBroker::on(&setting.database).await;
    let gone = broker.jobs().get_job(GetJobRequest { id: 8 }).await.expect_err("gone");
    assert_eq!(gone.code(), Code::NotFound);
    for id in [1, 7, 9, 10, 1_234, 2_000, 2_005] {
        assert_eq!(broker.job(id).await.id, id);
    }
    let (good, out, err) = setting.forget(&["--key", "key-8", "--yes", "--json"]).await;
    assert!(good && out.lines().count() == 1 && out.contains("\"jobs\":0"), "{out} {err}");
}

#[tokio::test]
async fn forget_removes_all_jobs_of_a_type_or_only_those_before_a_time() {
    let setting = Setting::with(2_000).await;
    setting.archive_and_drop().await;
    setting.finish_yesterday(2_001).await;
    let (good, out, err) = setting.forget(&["--type", "rare", "--yes"]).await;
    assert!(good && out.contains("database: forgot 1 job\n"), "{out} {err}");
    let before = format!("{}T00:00:03Z", setting.day);
    let (good, _, err) = setting.forget(&["--type", "mail", "--before", &before, "--yes"]).await;
    assert!(good, "{err}");
    let stays = |id: &i64| id % 100 != 7 && (id % 3 == 0 || *id >= 1_000);
    assert_eq!(setting.files.ids(), (1..=2_000).filter(stays).collect::<Vec<_>>());
    let (_, out, _) = run_history(&setting).await;
    assert_eq!(out.lines().count(), (1..=2_010).filter(stays).count());
    // Forgets all remaining jobs of the archived day.
    let (good, _, err) = setting.forget(&["--before", "1d", "--yes"]).await;
    assert!(good, "{err}");
    assert!(setting.files.ids().is_empty() && run_history(&setting).await.1.lines().count() <= 10);
    let (status, _, err) =
        run(&["archive", "verify", "--url", &setting.files.url(), "--database-url", &setting.database.url], b"").await;
    assert!(status.success(), "{err}");
}

async fn run_history(setting: &Setting) -> (bool, String, String) {
    let (status, out, err) = run(&["history", "--all", "--json", "--database-url", &setting.database.url], b"").await;
    (status.success(), out, err)
}

#[tokio::test]
async fn a_forget_that_is_killed_at_any_step_leaves_no_job_missing_and_none_twice() {
    for step in Step::ALL {
        let setting = Setting::with(2_000).await;
        setting.archive_and_drop().await;
        setting.forget_and_kill(step, 1).await;
        // Readers see all jobs, each once, until the database refers to the new files. From then on they see only the remaining
        // jobs.
        let (good, out, err) = run_history(&setting).await;
        assert!(good, "{step:?}: {err}");
        let expected = if step == Step::Archived { 1_500 } else { 2_000 };
        let lines: std::collections::BTreeSet<&str> = out.lines().collect();
        assert_eq!((out.lines().count(), lines.len()), (expected, expected), "{step:?}");
        // Once the database has a note of the new files, the next `archive forget` or the next archive run of a broker
        // completes the killed one.
        let decided = matches!(step, Step::Noted | Step::Named | Step::ManifestWritten | Step::Archived);
        if decided && step != Step::Named {
            let archiver = setting.archiver().await;
            assert_eq!(archiver.days(false).await.expect("days"), std::slice::from_ref(&setting.day), "{step:?}");
            assert_eq!(setting.archive().await.expect("finished").jobs, 0);
        } else {
            let done = setting.forget_early().await.expect("free");
            assert_eq!(done.jobs, if decided { 0 } else { 500 }, "{step:?}");
        }
        setting.assert_early_are_gone(2_000).await;
        assert!(setting.archiver().await.days(false).await.expect("days").is_empty(), "{step:?}");
        let audit = "SELECT count(*) FROM howdah.audit WHERE method = 'a test' AND count = 500";
        assert_eq!(setting.count(audit).await, 1, "{step:?}: audit entries of the forget");
        let broker = TestBroker::on(&setting.database).await;
        assert_eq!(broker.job(501).await.id, 501);
        let gone = broker.jobs().get_job(GetJobRequest { id: 500 }).await.expect_err("gone");
        assert_eq!(gone.code(), Code::NotFound);
    }
}

#[tokio::test]
async fn a_forget_reports_its_progress_after_each_file() {
    let setting = Setting::with(2_000).await;
    setting.archive().await.expect("archived");
    let reports = std::sync::Arc::<std::sync::Mutex<Vec<ForgetProgress>>>::default();
    let sink = reports.clone();
    let on_forget = std::sync::Arc::new(move |progress| sink.lock().expect("reports").push(progress));
    let by = Actor::of_session("a test");
    let archiver = setting.archiver().await.on_forget(on_forget);
    let done = archiver.forget(&setting.day, &early(&setting.day), &by).await.expect("forgotten").expect("a day");
    let reports = reports.lock().expect("reports").clone();
    let (written, scanned): (Vec<_>, Vec<_>) = reports.into_iter().partition(|progress| progress.is_writing);
    for (all, jobs) in [(&scanned, done.jobs), (&written, written.last().expect("files").jobs)] {
        let numbers: Vec<usize> = all.iter().map(|progress| progress.done).collect();
        assert_eq!(numbers, (1..=all[0].files).collect::<Vec<_>>());
        assert_eq!(all.last().expect("files").jobs, jobs);
    }
    assert_eq!((scanned.last().expect("files").jobs, written.len()), (500, done.files));
    assert!(scanned.len() > written.len(), "every file was rewritten, although some have no selected jobs");
}

#[tokio::test]
async fn a_day_that_one_run_holds_cannot_be_changed_by_another_run() {
    let setting = Setting::with(2_000).await;
    setting.archive_and_drop().await;
    setting.forget_and_kill(Step::Noted, 1).await;
    // The killed process still holds the day exclusively, so other processes must not change its files.
    setting.database.sql("UPDATE howdah.archive SET held_until = now() + interval '1 hour'").await;
    assert!(setting.archive().await.is_none());
    assert!(setting.forget_early().await.is_none());
    assert!(setting.archiver().await.expire(&setting.day, 1).await.expect("nothing").is_none());
    let (good, _, err) = setting.forget(&["--key", "key-8", "--yes"]).await;
    assert!(
        !good && err.contains("another process is working on this day") && err.contains("run the command again"),
        "{err}"
    );
    // Expires the hold, and adds 50 jobs to the day. The next run completes the killed `archive forget`; the run after it
    // archives the added jobs.
    setting.database.sql("UPDATE howdah.archive SET held_until = now()").await;
    setting.finish(2_001, 50).await;
    assert_eq!(setting.archive().await.expect("finished").jobs, 0);
    assert_eq!(setting.archive().await.expect("archived").jobs, 50);
    assert_eq!(setting.files.ids(), (501..=2_050).collect::<Vec<_>>());
    // An archive run holds the day and has staged its files. `archive forget` must wait, because the staged files may contain
    // the jobs to forget.
    setting.finish(2_051, 50).await;
    assert!(setting.archive_and_kill(Step::AllStaged, 1).await);
    let (good, _, err) = setting.forget(&["--key", "key-2060", "--yes"]).await;
    assert!(!good && err.contains("another process is working on this day"), "{err}");
    setting.archive().await.expect("archived");
    let (good, _, err) = setting.forget(&["--key", "key-2062", "--yes"]).await;
    assert!(good, "{err}");
    let stays = |id: &i64| ![2_060, 2_062].contains(id);
    assert_eq!(setting.files.ids(), (501..=2_100).filter(stays).collect::<Vec<_>>());
    let sql = format!("SELECT count(*) FROM howdah.archive WHERE day = {DAY} AND jobs = 1598");
    assert_eq!(setting.count(&sql).await, 1);
}

#[tokio::test]
async fn a_run_that_was_thought_dead_replaces_nothing() {
    let setting = Setting::with(2_000).await;
    setting.archive_and_drop().await;
    let (is_there, there) = std::sync::mpsc::channel();
    let (go_on, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let slow = setting.archiver().await.on_step(Arc::new(move |step| {
        if step == Step::Compared {
            is_there.send(()).expect("the test");
            let _ = wait.lock().expect("a lock").recv();
        }
    }));
    let day = setting.day.clone();
    // Runs `forget` on a separate thread, because it blocks at a step until the test continues it.
    let slow = tokio::task::spawn_blocking(move || {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let (query, by) = (early(&day), Actor::of_session("a test"));
        runtime.block_on(slow.forget(&day, &query, &by)).map(|_| ()).map_err(|error| error.to_string())
    });
    tokio::task::spawn_blocking(move || there.recv().expect("the forget has reached the step"))
        .await
        .expect("a thread");
    setting.database.sql("UPDATE howdah.archive SET held_until = now()").await;
    assert_eq!(setting.forget_early().await.expect("forgotten").jobs, 500);
    go_on.send(()).expect("the forget waits at the step");
    let error = with_timeout("the end of the blocked forget", slow)
        .await
        .expect("no panic")
        .expect_err("the blocked forget has lost its hold on the day");
    assert!(error.contains("another run"), "{error}");
    setting.assert_early_are_gone(2_000).await;
}
