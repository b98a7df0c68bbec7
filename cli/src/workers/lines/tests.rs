use std::{collections::HashSet, future::pending};

use futures::future::join_all;
use howdah_client::NewJob;

use super::*;

/// Returns a command that answers each job with `answer`, in which $id is the id of the job. The command ends at the end of its
/// input.
fn answering(answer: &str) -> String {
    format!("while read -r line; do id=${{line#*:}}; id=${{id%%[,\\}}]*}}; {answer}; done")
}

/// Creates a worker that gives processes enough time to end, even on slow machines.
fn lines(command: &str) -> Lines {
    killed_after(command, Duration::from_mins(1))
}

fn killed_after(command: &str, kill_after: Duration) -> Lines {
    let program = Program { kill_after, ..Program::shell(command) };
    Lines::new(program, 1, Replace::default(), CancellationToken::new())
}

async fn attempt(id: i64) -> Attempt {
    let mut attempt = Attempt::of(NewJob::new("t").payload("p")).await;
    attempt.job.id = id;
    attempt
}

async fn run(lines: &Lines, id: i64) -> Outcome {
    lines.run(&attempt(id).await).await
}

fn text(outcome: Outcome) -> String {
    match outcome {
        Outcome::Ack(result) => String::from_utf8(result.to_vec()).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// Returns the error of a failed attempt that is retried by the retry policy.
fn retried(outcome: Outcome) -> String {
    match outcome {
        Outcome::Retry { error, after: None, .. } => error,
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
    for (id, outcome) in (1..).zip(results) {
        let result = text(outcome);
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
    for outcome in join_all([run(&lines, 1), run(&lines, 2)]).await {
        assert_eq!(retried(outcome), "the process ended while it had this job: no luck (exit status 3)");
    }
    assert_eq!(run(&lines, 1).await, Outcome::ack(""));
    lines.close().await;
}

#[tokio::test]
async fn an_answer_that_makes_no_sense_ends_the_process_and_says_why() {
    let lines = lines("read -r line; echo '{\"id\":1,\"resutl\":\"\"}'; sleep 1000");
    let error = retried(run(&lines, 1).await);
    assert!(error.contains("is invalid: unknown field `resutl`"), "{error}");
}

#[tokio::test]
async fn a_line_that_is_no_object_is_ignored_and_progress_is_passed_on() {
    let answer = "echo hello; echo \"{\\\"id\\\":$id,\\\"progress\\\":{\\\"fraction\\\":0.5,\\\"checkpoint\\\":\\\"row 7\\\"}}\"; \
                  echo \"{\\\"id\\\":$id,\\\"error\\\":\\\"no\\\",\\\"retry\\\":2}\"";
    let lines = lines(&answering(answer));
    let attempt = attempt(1).await;
    assert_eq!(lines.run(&attempt).await, Outcome::retry_after("no", Duration::from_secs(2)));
    let report = attempt.reports.unsent().unwrap();
    assert_eq!((report.fraction, report.text, report.checkpoint), (Some(0.5), None, Some("row 7".into())));
}

#[tokio::test]
async fn an_answer_for_a_job_that_the_process_does_not_have_ends_it_and_fails_its_jobs() {
    for wrong in ["{\\\"id\\\":99}", "{\\\"id\\\":\\\"99\\\"}", "{\\\"id\\\":99,\\\"progress\\\":{\\\"fraction\\\":1}}"]
    {
        let lines = lines(&format!("read -r line; echo \"{wrong}\"; sleep 1000"));
        let error = retried(run(&lines, 1).await);
        assert!(error.contains("it answered for job 99, which it does not have"), "{error}");
    }
}

/// Runs a job until the process reports progress, then calls `stop` and waits for the end.
async fn run_until_begun(lines: &Lines, id: i64, stop: impl FnOnce(&Attempt)) -> Outcome {
    let attempt = attempt(id).await;
    let begun = async {
        while attempt.reports.unsent().is_none() {
            tokio::task::yield_now().await;
        }
        stop(&attempt);
        pending::<()>().await;
    };
    tokio::select! {
        outcome = lines.run(&attempt) => outcome,
        () = begun => unreachable!(),
    }
}

async fn cancel_when_begun(lines: &Lines, id: i64) -> Outcome {
    run_until_begun(lines, id, |attempt| attempt.stop.graceful.cancel()).await
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
    assert_eq!(cancel_when_begun(&lines, 1).await, Outcome::release());
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
    assert_eq!(cancel_when_begun(&lines, 1).await, Outcome::release());
    assert_eq!(text(run(&lines, 9).await), before, "the same process");
    lines.close().await;
}

#[tokio::test]
async fn a_process_that_does_not_answer_a_cancel_is_ended_and_its_other_jobs_go_back() {
    let lines = killed_after(&format!("trap '' TERM; {}", answering(BEGUN)), Duration::from_millis(20));
    let (other, cancelled) = tokio::join!(run(&lines, 1), cancel_when_begun(&lines, 2));
    assert_eq!((other, cancelled), (Outcome::release(), Outcome::release()));
}

#[tokio::test]
async fn a_process_is_replaced_after_its_share_of_jobs() {
    let replace = Replace { after_jobs: Some(2), after: None };
    let command = answering("echo \"{\\\"id\\\":$id,\\\"result\\\":\\\"$$\\\"}\"");
    let lines = Lines::new(Program::shell(command), 1, replace, CancellationToken::new());
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
    assert_eq!(run(&lines, 1).await, Outcome::ack(""));
    lines.close().await;
    assert_eq!(std::fs::read_to_string(cleaned).unwrap(), "yes\n");
}

#[tokio::test]
async fn a_program_that_is_not_there_fails_the_job() {
    let lines = lines("./no-such-program");
    let error = retried(run(&lines, 1).await);
    assert!(error.ends_with("(exit status 127)"), "{error}");
}

#[tokio::test]
async fn an_immediate_stop_kills_the_process_and_releases_its_jobs() {
    let lines = lines(&format!("trap '' TERM; {}", answering(BEGUN)));
    assert_eq!(run_until_begun(&lines, 1, |_| lines.kill.cancel()).await, Outcome::release());
    lines.close().await;
}
