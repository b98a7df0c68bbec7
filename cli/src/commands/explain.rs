//! `howdah explain`: explains why a job does not run.

use howdah_client::proto::{ExplainJobResponse, JobReason, JobState, ReasonKind};
use howdah_server::{job, logging::escaped};
use jiff::Timestamp;

use super::{context::Global, failure::Failure, output::Output, text, values};

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
    /// Print one JSON object: state, reasons, position, expected_in_ms
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| {
        let explained = client.explain_job(args.id).await?;
        let explained = explained.ok_or_else(|| {
            Failure::failed(format!("job {} does not exist, or its history has been dropped", args.id))
        })?;
        let mut output = Output::new();
        if args.json {
            output.json(&as_json(&explained))?;
        } else {
            output.line(describe(&explained))?;
        }
        output.flush()
    })
}

/// Formats the explanation as text.
pub(super) fn describe(explained: &ExplainJobResponse) -> String {
    let state = state_name(explained.state());
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
        lines.push(format!("position: {more}{} before it", position.jobs_before));
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

/// Command that removes the reason, if there is one.
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
        ReasonKind::TypeLimit => Some(format!("howdah type set {task_type} --max-running N")),
        ReasonKind::TypeRate => Some(format!("howdah type set {task_type} --rate N")),
        ReasonKind::LimitKeyRate => Some(format!("howdah type set {task_type} --key-rate N")),
        ReasonKind::OthersFirst => Some(format!("howdah reprioritize PRIORITY {id}")),
        _ => None,
    }
}

fn state_name(state: JobState) -> &'static str {
    job::JobState::from_proto(state as i32).map_or("unknown", job::JobState::name)
}

fn as_json(explained: &ExplainJobResponse) -> serde_json::Value {
    let time = |time: &Option<_>| text::timestamp(time.as_ref()).map(|time: Timestamp| time.to_string());
    let reasons = explained.reasons.iter().map(|reason| {
        let jobs = reason
            .jobs
            .iter()
            .map(|job| serde_json::json!({"id": job.id, "task_type": job.task_type, "state": state_name(job.state())}));
        serde_json::json!({
            "kind": reason.kind().as_str_name().trim_start_matches("REASON_KIND_").to_lowercase(),
            "text": reason.text, "remedy": reason.remedy, "command": command(explained, reason),
            "since": time(&reason.since), "until": time(&reason.until), "jobs": jobs.collect::<Vec<_>>(),
            "key": reason.key, "limit": reason.limit, "used": reason.used, "broker": reason.broker,
            "worker_id": reason.worker_id, "error": reason.error,
        })
    });
    serde_json::json!({
        "id": explained.id, "task_type": explained.task_type, "state": state_name(explained.state()),
        "reasons": reasons.collect::<Vec<_>>(),
        "position": explained.position.map(|at| serde_json::json!({"jobs_before": at.jobs_before, "has_more": at.has_more})),
        "expected_in_ms": text::duration(explained.expected_in.as_ref()).map(|left| left.as_millis() as u64),
        "settled_per_minute": explained.settled_per_minute,
    })
}
