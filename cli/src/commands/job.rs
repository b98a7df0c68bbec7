//! `howdah job`: shows one job with all details.

use howdah_client::proto::{AttemptFailure, Job};
use howdah_core::logging::escaped;
use jiff::Timestamp;

use super::{context::Global, failure::Failure, output::Output, text, type_set::history_word, values};

/// Show a job: state, progress, payload, result and failures
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah job 17
  howdah job 17 --json | jq -r .payload_text
  howdah job 17 --json | jq -r .payload | base64 -d > payload")]
pub(super) struct Args {
    /// Id of the job
    #[arg(value_name = "ID", value_parser = values::id)]
    id: i64,
    /// Print one JSON object: the message Job, with payload_text, result_text and checkpoint_text if these are text
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| {
        let job = client.get_job(args.id).await?;
        let job = job.ok_or_else(|| {
            Failure::failed(format!("job {} does not exist, or its history has been dropped", args.id))
        })?;
        let mut output = Output::new();
        if args.json {
            output.job(&job)?;
        } else {
            output.line(describe(&job, Timestamp::now()))?;
        }
        output.flush()
    })
}

/// Formats the job as text.
pub(super) fn describe(job: &Job, now: Timestamp) -> String {
    let mut lines = vec![format!("job {} {}: {}", job.id, escaped(&job.task_type), text::state(job.state))];
    if !job.original_task_type.is_empty() {
        lines
            .push(field("was", format_args!("{}; the current type is its fallback", escaped(&job.original_task_type))));
    }
    lines.push(field("attempts", format_args!("{} of {}", job.attempt, job.max_attempts)));
    lines.push(field("priority", job.priority));
    if !job.key.is_empty() {
        lines.push(field("key", escaped(&job.key)));
    }
    lines.extend(job.tags.iter().map(|tag| field("tag", escaped(tag))));
    let is_shown = [&job.create_time, &job.start_time, &job.finish_time].contains(&&job.update_time);
    let times = [
        ("created", &job.create_time),
        ("runs", &job.run_time),
        ("started", &job.start_time),
        ("deadline", &job.deadline),
        ("finished", &job.finish_time),
        ("updated", if is_shown { &None } else { &job.update_time }),
    ];
    for (name, time) in times {
        if let Some(time) = text::timestamp(time.as_ref()) {
            lines.push(field(name, format_args!("{}  ({})", text::time(time), text::relative(time, now))));
        }
    }
    if !job.broker.is_empty() {
        let worker = Some(escaped(&job.worker_id)).filter(|id| !id.is_empty());
        let worker = worker.map_or_else(|| "a worker".into(), |id| format!("worker {id}"));
        lines.push(field("held by", format_args!("{worker} at broker {}", escaped(&job.broker))));
    }
    if let Some(progress) = &job.progress {
        let time = text::timestamp(progress.update_time.as_ref())
            .map_or_else(String::new, |time| format!("  ({})", text::relative(time, now)));
        let percent = progress.fraction.map_or_else(String::new, |part| format!("{:.0}% ", part * 100.0));
        lines.push(field("progress", format_args!("{percent}{}{time}", escaped(&progress.text))));
    }
    lines.extend(describe_coordination(job, now));
    let mut headers: Vec<_> = job.headers.iter().collect();
    headers.sort();
    for (name, value) in headers {
        lines.push(field("header", format_args!("{}={}", escaped(name), escaped(value))));
    }
    for (name, bytes) in [("payload", &job.payload), ("result", &job.result), ("checkpoint", &job.checkpoint)] {
        if !bytes.is_empty() {
            lines.push(field(name, text::size(bytes.len())));
            lines.push(indented(&text::payload_block(bytes)));
        }
    }
    lines.extend(job.failures.iter().map(|failure| describe_failure(failure, now)));
    lines.join("\n")
}

/// Formats the options that few jobs use.
fn describe_coordination(job: &Job, now: Timestamp) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, key) in [("limit key", &job.limit_key), ("fair key", &job.fair_key)] {
        if !key.is_empty() {
            lines.push(field(name, escaped(key)));
        }
    }
    if job.limit_max > 0 {
        lines.push(field("limit max", job.limit_max));
    }
    if let Some(mode) = history_word(job.history()) {
        lines.push(field("history", mode));
    }
    if let Some(time) = text::timestamp(job.expire_time.as_ref()) {
        lines.push(field("expires", format_args!("{}  ({})", text::time(time), text::relative(time, now))));
    }
    if job.parent_id > 0 {
        lines.push(field("parent", format_args!("job {}", job.parent_id)));
    }
    if !job.after.is_empty() {
        let ids: Vec<String> = job.after.iter().map(i64::to_string).collect();
        lines.push(field("after", format_args!("job {}", ids.join(", "))));
    }
    for stage in &job.completed_stages {
        let finished = text::timestamp(stage.finish_time.as_ref());
        let when = finished.map_or_else(String::new, |time| format!(", {}", text::relative(time, now)));
        lines.push(field("stage", format_args!("{} done{when}", escaped(&stage.task_type))));
    }
    if !job.next_stages.is_empty() {
        let names: Vec<String> = job.next_stages.iter().map(|name| escaped(name).to_string()).collect();
        lines.push(field("then", names.join(", ")));
    }
    lines
}

fn field(name: &str, value: impl std::fmt::Display) -> String {
    format!("  {name:<9} {value}")
}

fn describe_failure(failure: &AttemptFailure, now: Timestamp) -> String {
    let (started, ended) =
        (text::timestamp(failure.start_time.as_ref()), text::timestamp(failure.finish_time.as_ref()));
    let when = ended.map_or_else(String::new, |ended| format!(" {}", text::relative(ended, now)));
    let took = ended.zip(started).map_or_else(String::new, |(ended, started)| {
        format!(", after {}", text::short(ended.duration_since(started).unsigned_abs()))
    });
    let place = if failure.place.is_empty() { String::new() } else { format!(" at {}", escaped(&failure.place)) };
    let mut lines =
        format!("  attempt {} failed{when}{took}{place}\n{}", failure.attempt, indented(&text::block(&failure.error)));
    if !failure.details.is_empty() {
        lines += "\n";
        lines += &indented(&indented(&text::block(&failure.details)));
    }
    lines
}

fn indented(block: &str) -> String {
    block.lines().map(|line| format!("    {line}")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use howdah_client::proto::{JobProgress, JobState};

    use super::*;

    #[test]
    fn a_job_is_described_with_all_that_it_has_and_no_more() {
        let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
        let job = Job {
            id: 17,
            task_type: "email.send".into(),
            state: JobState::Dead as i32,
            payload: b"to: ann\n\x1b[2J".as_slice().into(),
            headers: [("k".to_owned(), "v".to_owned())].into(),
            tags: vec!["batch-17".into(), "a\u{1b}".into()],
            progress: Some(JobProgress { fraction: Some(0.25), text: "page 1 of 4".into(), update_time: at(94) }),
            checkpoint: b"page 1".as_slice().into(),
            attempt: 1,
            max_attempts: 1,
            create_time: at(40),
            finish_time: at(95),
            failures: vec![AttemptFailure {
                attempt: 1,
                error: "no route\nto host".into(),
                start_time: at(93),
                finish_time: at(95),
                details: "send\n  connect".into(),
                place: "mail.send".into(),
            }],
            ..Job::default()
        };
        let expected = "\
job 17 email.send: dead
  attempts  1 of 1
  priority  0
  tag       batch-17
  tag       a\\u{1b}
  created   1970-01-01T00:00:40.000Z  (1m ago)
  finished  1970-01-01T00:01:35.000Z  (5s ago)
  progress  25% page 1 of 4  (6s ago)
  header    k=v
  payload   12 bytes
    to: ann
    \\u{1b}[2J
  checkpoint 6 bytes
    page 1
  attempt 1 failed 5s ago, after 2s at mail.send
    no route
    to host
        send
          connect";
        assert_eq!(describe(&job, Timestamp::from_second(100).unwrap()), expected);
    }
}
