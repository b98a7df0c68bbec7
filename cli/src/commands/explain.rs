//! `howdah explain`: explains why a job does not run.

use howdah_client::proto::{ExplainJobResponse, JobReason, JobState, ReasonKind};
use howdah_core::logging::escaped;

use super::{context::Global, failure::Failure, output, text, values};

/// Explain why a job does not run, what must change, and its position in the queue
///
/// Shows all reasons that hold the job back, or how it ended, and the command that helps.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah explain 17
  howdah explain 17 --json | jq -r '.reasons[0].kind'")]
pub(super) struct Args {
    /// Id of the job
    #[arg(value_name = "ID", value_parser = values::id)]
    id: i64,
    /// Print one JSON object: the message ExplainJobResponse
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| {
        let explained = client.explain_job(args.id).await?;
        let explained = explained.ok_or_else(|| Failure::failed(text::no_job(args.id)))?;
        output::show(args.json, "ExplainJobResponse", &explained, || describe(&explained))
    })
}

/// Formats the explanation as text.
pub(super) fn describe(explained: &ExplainJobResponse) -> String {
    let state = text::state(explained.state);
    let mut lines = vec![format!("job {} {}: {state}", explained.id, escaped(&explained.task_type))];
    for reason in &explained.reasons {
        lines.push(escaped(&reason.text).into_owned());
        if !reason.error.is_empty() {
            lines.push(format!("  error     {}", text::summary(&reason.error)));
        }
        if !reason.remedy.is_empty() {
            lines.push(format!("  to do     {}", escaped(&reason.remedy)));
        }
        if let Some(command) = command(explained, reason) {
            lines.push(format!("  command   {}", escaped(&command)));
        }
    }
    if let Some(position) = explained.position {
        let more = if position.has_more { "more than " } else { "" };
        lines.push(format!("jobs before this one: {more}{}", position.jobs_before));
    }
    if let Some(left) = text::duration(explained.expected_in.as_ref()) {
        let rate = match explained.settled_per_minute {
            0 => String::new(),
            settled => format!(", at {settled} jobs a minute"),
        };
        lines.push(format!("expected start: in {}{rate}", text::short(left)));
    }
    lines.join("\n")
}

/// Returns a command that removes the reason why the job does not run, or that helps to find its cause.
fn command(explained: &ExplainJobResponse, reason: &JobReason) -> Option<String> {
    let (id, task_type) = (explained.id, &explained.task_type);
    let related = |state: JobState| reason.jobs.iter().find(|job| job.state() == state).map(|job| job.id);
    let first = || reason.jobs.first().map(|job| format!("howdah explain {}", job.id));
    let quoted = |word: &str| format!("'{}'", word.replace('\'', r"'\''"));
    match reason.kind() {
        ReasonKind::Running => Some(format!("howdah release {id} --fail 'it hangs'")),
        ReasonKind::Delayed | ReasonKind::BackingOff | ReasonKind::Snoozed | ReasonKind::Dead => {
            Some(format!("howdah retry {id}"))
        }
        ReasonKind::Dependency => related(JobState::Dead).map(|dead| format!("howdah retry {dead}")).or_else(first),
        ReasonKind::KeyHeld | ReasonKind::DeadKeyHeld | ReasonKind::LimitKeyFull => first(),
        ReasonKind::LimitKeyPaused => Some(format!("howdah limit resume {task_type} {}", quoted(&reason.key))),
        ReasonKind::TypePaused => Some(format!("howdah type set {task_type} --paused false")),
        ReasonKind::NoWorker | ReasonKind::NextPull => Some(format!("howdah work {task_type} --exec COMMAND")),
        ReasonKind::WorkersFull | ReasonKind::TooLarge => Some(format!("howdah workers {task_type}")),
        ReasonKind::TypeBraked => Some(format!("howdah errors {task_type}")),
        ReasonKind::TypeLimit => Some(format!("howdah type set {task_type} --max-running N")),
        ReasonKind::TypeRate => Some(format!("howdah type set {task_type} --rate N")),
        ReasonKind::LimitKeyRate => Some(format!("howdah type set {task_type} --key-rate N")),
        ReasonKind::OthersFirst => Some(format!("howdah reprioritize PRIORITY {id}")),
        _ => None,
    }
}
