//! Tests `kill -9` at each step of an archive run, followed by another run.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use howdah_engine::archive::Step;

use super::{Setting, archiver};
use crate::support::*;

/// Environment variable with the arguments of the child process: database, URL, day, number of the step at which to kill it,
/// occurrence of the step.
const ARGUMENTS: &str = "HOWDAH_TEST_ARCHIVE";

/// Runs in the child process that `archive_to_and_kill` starts. Does nothing in a normal test run.
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
    let _ = archiver.archive(day).await;
}

impl Setting {
    /// Archives the day in a child process that is killed at the `nth` time it reaches `step`. Returns false if the process
    /// ended before that.
    pub async fn archive_and_kill(&self, step: Step, nth: usize) -> bool {
        self.archive_to_and_kill(&self.files.url(), Vec::new(), step, nth).await
    }

    /// Archives the day to `url` in a child process that is killed at the `nth` time it reaches `step`, with these environment
    /// variables. Returns false if the process ended before that.
    pub async fn archive_to_and_kill(&self, url: &str, variables: Vec<(&str, String)>, step: Step, nth: usize) -> bool {
        use std::os::unix::process::ExitStatusExt as _;
        let number = Step::ALL.iter().position(|known| *known == step).expect("a step");
        let arguments = format!("{}|{url}|{}|{number}|{nth}", self.database.url, self.day);
        let mut command = tokio::process::Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "archive::kill::the_process_that_is_killed", "--ignored", "--test-threads=1"]);
        command.envs(variables).env(ARGUMENTS, arguments).kill_on_drop(true).stdout(std::process::Stdio::null());
        let status = with_timeout("the end of the process", command.status()).await.expect("run");
        // The process is dead, so expire its exclusive hold on the day.
        self.database.sql("UPDATE howdah.archive SET held_until = now() WHERE held_until IS NOT NULL").await;
        status.signal() == Some(9)
    }

    /// Asserts that readers of the archive see only complete files, and no job twice.
    fn assert_no_reader_is_misled(&self, last: i64) {
        let ids = self.files.ids();
        assert!(ids.windows(2).all(|two| two[0] < two[1]), "a job is in two files");
        assert!(ids.iter().all(|id| (1..=last).contains(id)));
    }
}

#[tokio::test]
async fn a_run_that_is_killed_at_any_step_leaves_no_job_missing_and_none_twice() {
    for step in Step::ALL {
        let setting = Setting::with(2_000).await;
        setting.turn_on().await;
        assert!(setting.archive_and_kill(step, 1).await, "{step:?} was not reached");
        setting.assert_no_reader_is_misled(2_000);
        let dropped = setting.drop_old().await;
        assert_eq!(
            dropped,
            i64::from(step == Step::Archived),
            "{step:?}: a partition is dropped only after its day is archived"
        );
        let again = setting.archive().await;
        assert_eq!(again.is_some(), step != Step::Archived, "{step:?}");
        setting.assert_all_once(2_000).await;
        assert_eq!(setting.drop_old().await + dropped, 1, "{step:?}");
        let states = "SELECT count(*) FROM howdah.archive WHERE state = 'dropped' AND jobs = 2000";
        assert_eq!(setting.count(states).await, 1);
    }
}

#[tokio::test]
async fn runs_that_are_killed_one_after_the_other_leave_no_job_missing_and_none_twice() {
    let setting = Setting::with(2_000).await;
    setting.turn_on().await;
    for (step, nth) in [
        (Step::Taken, 1),
        (Step::PartStaged, 3),
        (Step::PartStaged, 1),
        (Step::AllStaged, 1),
        (Step::Compared, 1),
        (Step::PartStaged, 2),
        (Step::Noted, 1),
        (Step::Named, 1),
        (Step::ManifestWritten, 1),
        (Step::Named, 1),
    ] {
        assert!(setting.archive_and_kill(step, nth).await, "{step:?} was not reached");
        setting.assert_no_reader_is_misled(2_000);
        assert_eq!(setting.drop_old().await, 0);
    }
    setting.archive().await.expect("archived");
    setting.assert_all_once(2_000).await;
    assert_eq!(setting.drop_old().await, 1);
}

#[tokio::test]
async fn a_run_that_was_thought_dead_changes_nothing_any_more() {
    let setting = Setting::with(1_000).await;
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
    // Runs on a separate thread, because the archive run blocks at the step until the test continues it.
    let slow = tokio::task::spawn_blocking(move || {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        runtime.block_on(slow.archive(&day)).map(|_| ()).map_err(|error| error.to_string())
    });
    tokio::task::spawn_blocking(move || there.recv().expect("the run has reached the step")).await.expect("a thread");
    setting.database.sql("UPDATE howdah.archive SET held_until = now()").await;
    setting.archive().await.expect("archived by another run");
    go_on.send(()).expect("the run waits at the step");
    let error = with_timeout("the end of the blocked run", slow)
        .await
        .expect("no panic")
        .expect_err("the blocked run has lost its hold on the day");
    assert!(error.contains("another run"), "{error}");
    setting.assert_all_once(1_000).await;
}
