//! Format of the lines to and from a process that serves many jobs: one JSON object per line, as described in
//! `docs/reference/workers.md`.

use std::{collections::HashMap, path::Path, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use howdah_client::{Outcome, proto::ProgressReport};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::workers::{
    attempt::{Attempt, ResultsFile, succeeded, text_or_base64},
    reports::ReportJson,
};

/// Maximum snooze or retry delay in seconds: a year.
const LATEST: f64 = 365.0 * 24.0 * 3600.0;

/// Line for a job, with `id` as the first field.
#[derive(Serialize)]
struct JobLine<'a> {
    id: i64,
    /// Id as text, for programs that read numbers as floating point.
    id_text: String,
    task_type: &'a str,
    attempt: u32,
    max_attempts: u32,
    headers: &'a HashMap<String, String>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    tags: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    checkpoint: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    checkpoint_base64: Option<String>,
    /// Path of the file with the results of the dependencies.
    #[serde(skip_serializing_if = "Option::is_none")]
    results_file: Option<&'a Path>,
}

/// Formats the line of a job.
pub(super) fn job(attempt: &Attempt) -> Vec<u8> {
    let job = &attempt.job;
    let (payload, payload_base64) = text_or_base64(&job.payload);
    let (checkpoint, checkpoint_base64) = job.last_checkpoint().map_or((None, None), |bytes| text_or_base64(bytes));
    let line = JobLine {
        id: job.id,
        id_text: job.id.to_string(),
        task_type: &job.task_type,
        attempt: job.attempt,
        max_attempts: job.max_attempts,
        headers: &job.headers,
        tags: &job.tags,
        payload,
        payload_base64,
        checkpoint,
        checkpoint_base64,
        results_file: attempt.results.as_ref().map(ResultsFile::path),
    };
    let mut line = serde_json::to_vec(&line).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Formats the line that cancels a job.
pub(super) fn cancel(id: i64) -> Vec<u8> {
    format!("{{\"cancel\":{id},\"cancel_text\":\"{id}\"}}\n").into_bytes()
}

/// Answer for a job.
#[derive(Debug, PartialEq)]
pub(super) enum Answer {
    /// The attempt has ended.
    Ended(Outcome),
    /// Progress report. The attempt continues.
    Progress(ProgressReport),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AnswerLine {
    #[serde(deserialize_with = "number_or_text")]
    id: i64,
    #[serde(default)]
    result: Value,
    result_base64: Option<String>,
    /// Task type of the next stage, given with or without a result.
    next_stage: Option<String>,
    error: Option<String>,
    /// Retry after an error: `true` (by the retry policy), `false` (none), or a delay in seconds.
    #[serde(default)]
    retry: Value,
    /// Delay of a snooze in seconds.
    snooze: Option<f64>,
    #[serde(default)]
    release: bool,
    progress: Option<ReportJson>,
}

/// Deserializes an id from a whole number or a text.
fn number_or_text<'de, D: Deserializer<'de>>(from: D) -> Result<i64, D::Error> {
    let value = Value::deserialize(from)?;
    let id = match &value {
        Value::Number(number) => number.as_i64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    };
    id.ok_or_else(|| {
        serde::de::Error::custom(format!("id is {value}: it must be the id of a job, as a number or a string"))
    })
}

/// Parses an answer: the id of the job, and its content. Errors address the author of the program.
pub(super) fn answer(line: &[u8]) -> Result<(i64, Answer), String> {
    let line: AnswerLine = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    let id = line.id;
    let ends = [
        line.error.is_some(),
        line.snooze.is_some(),
        line.release,
        line.result_base64.is_some() || !line.result.is_null() || line.next_stage.is_some(),
        line.progress.is_some(),
    ];
    if ends.iter().filter(|&&is_set| is_set).count() > 1 {
        return Err("more than one of result (with next_stage), error, snooze, release and progress is set".into());
    }
    if let Some(report) = line.progress {
        return Ok((id, Answer::Progress(report.into())));
    }
    let outcome = match (line.error, line.snooze) {
        (Some(error), _) => failed(&error, &line.retry)?,
        (None, Some(delay)) => Outcome::snooze(seconds("snooze", delay)?),
        (None, None) if line.release => Outcome::release(),
        (None, None) => succeeded(result(line.result, line.result_base64)?, line.next_stage),
    };
    Ok((id, Answer::Ended(outcome)))
}

fn failed(error: &str, retry: &Value) -> Result<Outcome, String> {
    match retry {
        Value::Null | Value::Bool(true) => Ok(Outcome::retry(error)),
        Value::Bool(false) => Ok(Outcome::fail(error)),
        Value::Number(delay) => Ok(Outcome::retry_after(error, seconds("retry", delay.as_f64().unwrap_or(f64::NAN))?)),
        _ => Err("retry must be true, false, or seconds".into()),
    }
}

fn seconds(name: &str, value: f64) -> Result<Duration, String> {
    if (0.0..=LATEST).contains(&value) {
        return Ok(Duration::from_secs_f64(value));
    }
    Err(format!("{name} is {value}; 0 to {LATEST} seconds are allowed"))
}

/// Converts a result: text stays unchanged, any other value becomes JSON.
fn result(value: Value, base64: Option<String>) -> Result<Bytes, String> {
    if let Some(base64) = base64 {
        let bytes = STANDARD.decode(base64).map_err(|error| format!("result_base64: {error}"))?;
        return Ok(bytes.into());
    }
    Ok(match value {
        Value::Null => Bytes::new(),
        Value::String(text) => text.into(),
        other => other.to_string().into(),
    })
}

#[cfg(test)]
mod tests {
    use howdah_client::NewJob;

    use super::*;

    #[tokio::test]
    async fn a_job_is_one_line_that_begins_with_its_id() {
        let mut attempt = Attempt::of(NewJob::new("t").payload("two\nlines")).await;
        attempt.job.id = 17;
        let expected = concat!(
            r#"{"id":17,"id_text":"17","task_type":"t","attempt":1,"max_attempts":10,"headers":{},"payload":"two\nlines"}"#,
            "\n"
        );
        assert_eq!(String::from_utf8(job(&attempt)).unwrap(), expected);
        let mut attempt = Attempt::with_payload(b"\xff".as_slice()).await;
        attempt.job.tags = vec!["a".into()];
        let line = String::from_utf8(job(&attempt)).unwrap();
        assert!(line.contains(r#""tags":["a"]"#), "{line}");
        assert!(line.ends_with("\"payload_base64\":\"/w==\",\"checkpoint\":\"row 7\"}\n"), "{line}");
    }

    #[test]
    fn every_way_to_end_a_job_is_understood() {
        let cases = [
            (r#"{"id":1}"#, Outcome::ack("")),
            (r#"{"id":"1"}"#, Outcome::ack("")),
            (r#"{"id":1,"result":"text"}"#, Outcome::ack("text")),
            (r#"{"id":1,"result":{"n":[1,2]}}"#, Outcome::ack(r#"{"n":[1,2]}"#)),
            (r#"{"id":1,"result_base64":"/w=="}"#, Outcome::ack(b"\xff".as_slice())),
            (r#"{"id":1,"result":"text","next_stage":"s"}"#, Outcome::advance("text", "s")),
            (r#"{"id":1,"next_stage":"s"}"#, Outcome::advance("", "s")),
            (r#"{"id":1,"error":"no"}"#, Outcome::retry("no")),
            (r#"{"id":1,"error":"no","retry":true}"#, Outcome::retry("no")),
            (r#"{"id":1,"error":"no","retry":false}"#, Outcome::fail("no")),
            (r#"{"id":1,"error":"no","retry":1.5}"#, Outcome::retry_after("no", Duration::from_millis(1500))),
            (r#"{"id":1,"snooze":60}"#, Outcome::snooze(Duration::from_secs(60))),
            (r#"{"id":1,"release":true}"#, Outcome::release()),
        ];
        for (line, outcome) in cases {
            assert_eq!(answer(line.as_bytes()), Ok((1, Answer::Ended(outcome))), "{line}");
        }
        let report = ProgressReport { fraction: Some(0.5), text: Some("half".into()), ..ProgressReport::default() };
        let line = br#"{"id":1,"progress":{"fraction":0.5,"text":"half"}}"#;
        assert_eq!(answer(line), Ok((1, Answer::Progress(report))));
    }

    #[test]
    fn an_invalid_answer_is_refused_with_the_reason() {
        for (line, problem) in [
            ("{}", "missing field `id`"),
            (r#"{"id":1.5}"#, "id is 1.5"),
            (r#"{"id":4.095e18}"#, "id is 4.095e+18"),
            (r#"{"id":"one"}"#, "id is \"one\""),
            (r#"{"id":null}"#, "id is null"),
            (r#"{"id":1,"resutl":""}"#, "unknown field `resutl`"),
            (r#"{"id":1,"result":"","error":""}"#, "more than one"),
            (r#"{"id":1,"next_stage":"s","error":""}"#, "more than one"),
            (r#"{"id":1,"result_base64":"?"}"#, "result_base64"),
            (r#"{"id":1,"snooze":-1}"#, "snooze is -1"),
            (r#"{"id":1,"error":"","retry":1e300}"#, "retry is 1"),
            (r#"{"id":1,"error":"","retry":"soon"}"#, "retry must be"),
        ] {
            let error = answer(line.as_bytes()).unwrap_err();
            assert!(error.contains(problem), "{line}: {error}");
        }
    }
}
