//! `howdah job`: shows one job with all details.

use howdah_client::proto::{AttemptFailure, HistoryMode, Job};
use howdah_core::{job::plain_values, logging::escaped};
use jiff::Timestamp;

use super::{context::Global, failure::Failure, output::Output, text, values};

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
        let job = job.ok_or_else(|| Failure::failed(text::no_job(args.id)))?;
        let mut output = Output::new();
        if args.json {
            output.job(&job)?;
        } else {
            output.line(describe(&job, Timestamp::now()))?;
        }
        output.flush()
    })
}

pub(super) fn describe(job: &Job, now: Timestamp) -> String {
    let mut lines = vec![format!("job {} {}: {}", job.id, escaped(&job.task_type), text::state(job.state))];
    let mut add = |name: &str, value: Option<String>| lines.extend(value.map(|value| field(name, value)));
    let moved = Some(escaped(&job.original_task_type)).filter(|name| !name.is_empty());
    add("was", moved.map(|name| format!("{name}; the current type is its fallback")));
    add("attempts", Some(format!("{} of {}", job.attempt, job.max_attempts)));
    add("priority", Some(job.priority.to_string()));
    add("key", given(&job.key));
    job.tags.iter().for_each(|tag| add("tag", given(tag)));
    let is_shown = [&job.create_time, &job.start_time, &job.finish_time].contains(&&job.update_time);
    add("created", time(job.create_time.as_ref(), now));
    add("runs", time(job.run_time.as_ref(), now));
    add("started", time(job.start_time.as_ref(), now));
    add("deadline", time(job.deadline.as_ref(), now));
    add("finished", time(job.finish_time.as_ref(), now));
    add("updated", time(job.update_time.as_ref().filter(|_| !is_shown), now));
    if let Some(broker) = given(&job.broker) {
        let worker = given(&job.worker_id).map_or_else(|| "a worker".into(), |id| format!("worker {id}"));
        add("held by", Some(format!("{worker} at broker {broker}")));
    }
    if let Some(progress) = &job.progress {
        let ago = text::timestamp(progress.update_time.as_ref());
        let ago = ago.map_or_else(String::new, |time| format!("  ({})", text::relative(time, now)));
        let percent = progress.fraction.map_or_else(String::new, |part| format!("{:.0}% ", part * 100.0));
        add("progress", Some(format!("{percent}{}{ago}", escaped(&progress.text))));
    }
    for (name, value) in plain_values(job) {
        add(&name.replace('_', " "), given(&value));
    }
    let history = Some(job.history()).filter(|mode| *mode != HistoryMode::Unspecified);
    add("history", history.map(|mode| text::enum_word(mode.as_str_name(), "HISTORY_MODE_")));
    add("expires", time(job.expire_time.as_ref(), now));
    add("parent", Some(format!("job {}", job.parent_id)).filter(|_| job.parent_id > 0));
    let after: Vec<String> = job.after.iter().map(i64::to_string).collect();
    add("after", Some(format!("job {}", after.join(", "))).filter(|_| !after.is_empty()));
    for stage in &job.completed_stages {
        let finished = text::timestamp(stage.finish_time.as_ref());
        let when = finished.map_or_else(String::new, |time| format!(", {}", text::relative(time, now)));
        add("stage", Some(format!("{} done{when}", escaped(&stage.task_type))));
    }
    add("then", given(&job.next_stages.join(", ")));
    let mut headers: Vec<_> = job.headers.iter().collect();
    headers.sort();
    headers.into_iter().for_each(|(name, value)| add("header", given(&format!("{name}={value}"))));
    for (name, bytes) in [("payload", &job.payload), ("result", &job.result), ("checkpoint", &job.checkpoint)] {
        if !bytes.is_empty() {
            lines.push(field(name, text::size(bytes.len())));
            lines.push(indented(&text::payload_block(bytes)));
        }
    }
    lines.extend(job.failures.iter().map(|failure| describe_failure(failure, now)));
    lines.join("\n")
}

/// Returns a text from a producer or worker with control characters escaped. `None` if it is empty.
fn given(text: &str) -> Option<String> {
    Some(escaped(text).into_owned()).filter(|text| !text.is_empty())
}

fn time(time: Option<&prost_types::Timestamp>, now: Timestamp) -> Option<String> {
    text::timestamp(time).map(|time| format!("{}  ({})", text::time(time), text::relative(time, now)))
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
            limit_key: "tenant".into(),
            limit_max: 3,
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
  limit key tenant
  limit max 3
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
