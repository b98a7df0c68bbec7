use std::{collections::HashSet, future::pending};

use futures::future::join_all;
use tokio::sync::oneshot;

use super::{super::reports::Report, *};

/// Returns a command that answers each job with `answer`, in which $id is the id of the job. The command ends at the end of its
/// input.
fn answering(answer: &str) -> String {
    format!("while read -r line; do id=${{line#*:}}; id=${{id%%[,\\}}]*}}; {answer}; done")
}

/// Creates a worker that gives processes enough time to end, even on slow machines.
fn lines(command: &str) -> Lines {
    let lines = Lines::new(Program::shell(command), false, 1, Replace::default(), StopTokens::default());
    killed_after(lines, Duration::from_mins(1))
}

fn killed_after(mut lines: Lines, kill_after: Duration) -> Lines {
    lines.settings = Arc::new(Settings { kill_after, ..Settings::clone(&lines.settings) });
    lines
}

fn attempt(id: i64) -> Attempt {
    Attempt { id, task_type: "t".into(), attempt: 1, max_attempts: 10, payload: "p".into(), ..Attempt::default() }
}

async fn run(lines: &Lines, id: i64) -> Ending {
    lines.run(&attempt(id), &Arc::default(), pending()).await
}

fn text(ending: Ending) -> String {
    match ending {
        Ending::Done(result) => String::from_utf8(result.to_vec()).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn one_process_serves_many_jobs_at_once() {
    // The process answers pairs of jobs in reverse order.
    let command = answering(
        "if [ -n \"$other\" ]; then for n in $id $other; do echo \"{\\\"id\\\":$n,\\\"result\\\":\\\"$n by $$\\\"}\"; done; \
         other=; else other=$id; fi",
    );
    let lines = lines(&command);
    let results = join_all((1..=100).map(|id| run(&lines, id))).await;
    let mut processes = HashSet::new();
    for (id, ending) in (1..).zip(results) {
        let result = text(ending);
        let (job, process) = result.split_once(" by ").unwrap();
        assert_eq!(job, id.to_string());
        processes.insert(process.to_owned());
    }
    assert_eq!(processes.len(), 1);
    lines.close().await;
}

#[tokio::test]
async fn a_process_that_dies_fails_the_jobs_it_had_and_the_next_job_gets_a_new_one() {
    let dir = tempfile::tempdir().unwrap();
    let flag = dir.path().join("died");
    let command = format!(
        "if [ -e {0} ]; then {1}; else read -r line; read -r line; touch {0}; echo no luck >&2; exit 3; fi",
        flag.display(),
        answering("echo \"{\\\"id\\\":$id}\"")
    );
    let lines = lines(&command);
    for ending in join_all([run(&lines, 1), run(&lines, 2)]).await {
        let expected = "the process ended while it had this job: no luck (exit status 3)";
        assert_eq!(ending, Ending::Failed(expected.into()));
    }
    assert_eq!(run(&lines, 1).await, Ending::Done("".into()));
    lines.close().await;
}

#[tokio::test]
async fn an_answer_that_makes_no_sense_ends_the_process_and_says_why() {
    let lines = lines("read -r line; echo '{\"id\":1,\"resutl\":\"\"}'; sleep 1000");
    let Ending::Failed(error) = run(&lines, 1).await else { panic!() };
    assert!(error.contains("is invalid: unknown field `resutl`"), "{error}");
}

#[tokio::test]
async fn a_line_that_is_no_object_is_ignored_and_progress_is_passed_on() {
    let answer = "echo hello; echo \"{\\\"id\\\":$id,\\\"progress\\\":{\\\"fraction\\\":0.5,\\\"checkpoint\\\":\\\"row 7\\\"}}\"; \
                  echo \"{\\\"id\\\":$id,\\\"error\\\":\\\"no\\\",\\\"retry\\\":2}\"";
    let lines = lines(&answering(answer));
    let reports = Arc::new(Reports::default());
    let ending = lines.run(&attempt(1), &reports, pending()).await;
    assert_eq!(ending, Ending::RetryAfter("no".into(), Duration::from_secs(2)));
    let report = Report { fraction: Some(0.5), text: None, checkpoint: Some("row 7".into()) };
    assert_eq!(reports.unsent(), Some(report));
}

#[tokio::test]
async fn an_answer_for_a_job_that_the_process_does_not_have_ends_it_and_fails_its_jobs() {
    for wrong in ["{\\\"id\\\":99}", "{\\\"id\\\":\\\"99\\\"}", "{\\\"id\\\":99,\\\"progress\\\":{\\\"fraction\\\":1}}"]
    {
        let lines = lines(&format!("read -r line; echo \"{wrong}\"; sleep 1000"));
        let Ending::Failed(error) = run(&lines, 1).await else { panic!() };
        assert!(error.contains("it answered for job 99, which it does not have"), "{error}");
    }
}

/// Runs a job until the process reports progress, then cancels the job.
async fn cancel_when_begun(lines: &Lines, id: i64) -> Ending {
    let (cancel, cancelled) = oneshot::channel::<()>();
    let reports = Arc::new(Reports::default());
    let job = attempt(id);
    let running = lines.run(&job, &reports, async { drop(cancelled.await) });
    let begun = async {
        while reports.unsent().is_none() {
            tokio::task::yield_now().await;
        }
        drop(cancel);
        pending::<()>().await;
    };
    tokio::select! {
        ending = running => ending,
        () = begun => unreachable!(),
    }
}

const BEGUN: &str = "echo \"{\\\"id\\\":$id,\\\"progress\\\":{\\\"text\\\":\\\"begun\\\"}}\"";

#[tokio::test]
async fn a_process_that_answers_a_cancel_goes_on() {
    // The process answers a job when it receives the cancel line, such as {"cancel":1}.
    let answer = format!(
        "case $line in *cancel*) echo \"{{\\\"id\\\":$id,\\\"error\\\":\\\"cancelled\\\"}}\" ;; \
         *'\"id\":9,'*) echo \"{{\\\"id\\\":9,\\\"result\\\":\\\"$$\\\"}}\" ;; *) {BEGUN} ;; esac"
    );
    let lines = lines(&answering(&answer));
    let before = text(run(&lines, 9).await);
    assert_eq!(cancel_when_begun(&lines, 1).await, Ending::Cancelled);
    assert_eq!(text(run(&lines, 9).await), before, "the same process");
    lines.close().await;
}

#[tokio::test]
async fn a_cancelled_job_may_be_answered_twice() {
    let twice = "echo \"{\\\"id\\\":$id}\"; echo \"{\\\"id\\\":$id}\"";
    let answer = format!(
        "case $line in *cancel*) {twice} ;; *'\"id\":9,'*) echo \"{{\\\"id\\\":9,\\\"result\\\":\\\"$$\\\"}}\" ;; *) {BEGUN} ;; esac"
    );
    let lines = lines(&answering(&answer));
    let before = text(run(&lines, 9).await);
    assert_eq!(cancel_when_begun(&lines, 1).await, Ending::Cancelled);
    assert_eq!(text(run(&lines, 9).await), before, "the same process");
    lines.close().await;
}

#[tokio::test]
async fn a_process_that_does_not_answer_a_cancel_is_ended_and_its_other_jobs_go_back() {
    let lines = lines(&format!("trap '' TERM; {}", answering(BEGUN)));
    let lines = killed_after(lines, Duration::from_millis(20));
    let (other, cancelled) = tokio::join!(run(&lines, 1), cancel_when_begun(&lines, 2));
    assert_eq!((other, cancelled), (Ending::Released, Ending::Cancelled));
}

#[tokio::test]
async fn a_process_is_replaced_after_its_share_of_jobs() {
    let replace = Replace { after_jobs: Some(2), after: None };
    let command = answering("echo \"{\\\"id\\\":$id,\\\"result\\\":\\\"$$\\\"}\"");
    let lines = Lines::new(Program::shell(command), false, 1, replace, StopTokens::default());
    let mut processes = Vec::new();
    for id in 1..=4 {
        processes.push(text(run(&lines, id).await));
    }
    assert!(processes[0] == processes[1] && processes[1] != processes[2] && processes[2] == processes[3]);
    lines.close().await;
}

#[tokio::test]
async fn on_close_the_input_of_the_process_ends_and_it_has_time_to_clean_up() {
    let dir = tempfile::tempdir().unwrap();
    let cleaned = dir.path().join("cleaned");
    let command = format!("{}; echo yes > {}", answering("echo \"{\\\"id\\\":$id}\""), cleaned.display());
    let lines = lines(&command);
    assert_eq!(run(&lines, 1).await, Ending::Done("".into()));
    lines.close().await;
    assert_eq!(std::fs::read_to_string(cleaned).unwrap(), "yes\n");
}

#[tokio::test]
async fn a_program_that_is_not_there_fails_the_job() {
    let lines = lines("./no-such-program");
    let Ending::Failed(error) = run(&lines, 1).await else { panic!() };
    assert!(error.ends_with("(exit status 127)"), "{error}");
}
