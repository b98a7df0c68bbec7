//! Format of the lines to and from a process that serves many jobs: one JSON object per line, as described in
//! `docs/reference/workers.md`.

use std::{collections::HashMap, path::Path, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::super::{
    attempt::{Attempt, Ending},
    reports::{Report, ReportJson},
    results::ResultsFile,
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

/// Line that cancels a job.
#[derive(Serialize)]
struct CancelLine {
    cancel: i64,
    cancel_text: String,
}

/// Returns bytes as text if they are text, otherwise as base64.
pub(in crate::workers) fn as_text(bytes: &[u8]) -> (Option<&str>, Option<String>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (Some(text), None),
        Err(_) => (None, Some(STANDARD.encode(bytes))),
    }
}

/// Formats the line of a job.
pub(super) fn job(attempt: &Attempt) -> Vec<u8> {
    let (payload, payload_base64) = as_text(&attempt.payload);
    let (checkpoint, checkpoint_base64) = as_text(&attempt.checkpoint);
    line(&JobLine {
        id: attempt.id,
        id_text: attempt.id.to_string(),
        task_type: &attempt.task_type,
        attempt: attempt.attempt,
        max_attempts: attempt.max_attempts,
        headers: &attempt.headers,
        tags: &attempt.tags,
        payload,
        payload_base64,
        checkpoint: checkpoint.filter(|text| !text.is_empty()),
        checkpoint_base64,
        results_file: attempt.results.as_ref().map(ResultsFile::path),
    })
}

/// Formats the line that cancels a job.
pub(super) fn cancel(id: i64) -> Vec<u8> {
    line(&CancelLine { cancel: id, cancel_text: id.to_string() })
}

fn line(value: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(value).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Answer for a job.
#[derive(Debug, PartialEq)]
pub(super) enum Answer {
    /// The attempt has ended.
    Ended(Ending),
    /// Progress report. The attempt continues.
    Progress(Report),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AnswerLine {
    #[serde(deserialize_with = "number_or_text")]
    id: i64,
    #[serde(default)]
    result: Value,
    #[serde(default)]
    result_base64: Option<String>,
    /// Task type of the next stage, given with or without a result.
    #[serde(default)]
    next_stage: Option<String>,
    #[serde(default)]
    error: Option<String>,
    /// Retry after an error: `true` (by the retry policy), `false` (none), or a delay in seconds.
    #[serde(default)]
    retry: Value,
    /// Delay of a snooze in seconds.
    #[serde(default)]
    snooze: Option<f64>,
    #[serde(default)]
    release: bool,
    #[serde(default)]
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
    let ending = match (line.error, line.snooze) {
        (Some(error), _) => failed(error, &line.retry)?,
        (None, Some(delay)) => Ending::Snoozed(seconds("snooze", delay)?),
        (None, None) if line.release => Ending::Released,
        (None, None) => {
            let result = result(line.result, line.result_base64)?;
            match line.next_stage {
                Some(next_stage) => Ending::Advanced(result, next_stage),
                None => Ending::Done(result),
            }
        }
    };
    Ok((id, Answer::Ended(ending)))
}

fn failed(error: String, retry: &Value) -> Result<Ending, String> {
    match retry {
        Value::Null | Value::Bool(true) => Ok(Ending::Failed(error)),
        Value::Bool(false) => Ok(Ending::FailedForGood(error)),
        Value::Number(number) => Ok(Ending::RetryAfter(error, seconds("retry", number.as_f64().unwrap_or(f64::NAN))?)),
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
    use super::*;

    #[test]
    fn a_job_is_one_line_that_begins_with_its_id() {
        let mut attempt = Attempt {
            id: 17,
            task_type: "t".into(),
            attempt: 1,
            max_attempts: 10,
            payload: "two\nlines".into(),
            ..Attempt::default()
        };
        let expected = concat!(
            r#"{"id":17,"id_text":"17","task_type":"t","attempt":1,"max_attempts":10,"headers":{},"payload":"two\nlines"}"#,
            "\n"
        );
        assert_eq!(String::from_utf8(job(&attempt)).unwrap(), expected);
        attempt.payload = Bytes::from_static(b"\xff");
        attempt.checkpoint = "row 7".into();
        attempt.tags = vec!["a".into()];
        let line = String::from_utf8(job(&attempt)).unwrap();
        assert!(line.contains(r#""tags":["a"]"#), "{line}");
        assert!(line.ends_with("\"payload_base64\":\"/w==\",\"checkpoint\":\"row 7\"}\n"), "{line}");
    }

    #[test]
    fn every_way_to_end_a_job_is_understood() {
        let cases = [
            (r#"{"id":1}"#, Ending::Done(Bytes::new())),
            (r#"{"id":"1"}"#, Ending::Done(Bytes::new())),
            (r#"{"id":1,"result":"text"}"#, Ending::Done("text".into())),
            (r#"{"id":1,"result":{"n":[1,2]}}"#, Ending::Done(r#"{"n":[1,2]}"#.into())),
            (r#"{"id":1,"result_base64":"/w=="}"#, Ending::Done(Bytes::from_static(b"\xff"))),
            (r#"{"id":1,"result":"text","next_stage":"s"}"#, Ending::Advanced("text".into(), "s".into())),
            (r#"{"id":1,"next_stage":"s"}"#, Ending::Advanced(Bytes::new(), "s".into())),
            (r#"{"id":1,"error":"no"}"#, Ending::Failed("no".into())),
            (r#"{"id":1,"error":"no","retry":true}"#, Ending::Failed("no".into())),
            (r#"{"id":1,"error":"no","retry":false}"#, Ending::FailedForGood("no".into())),
            (r#"{"id":1,"error":"no","retry":1.5}"#, Ending::RetryAfter("no".into(), Duration::from_millis(1500))),
            (r#"{"id":1,"snooze":60}"#, Ending::Snoozed(Duration::from_secs(60))),
            (r#"{"id":1,"release":true}"#, Ending::Released),
        ];
        for (line, ending) in cases {
            assert_eq!(answer(line.as_bytes()), Ok((1, Answer::Ended(ending))), "{line}");
        }
        let report = Report { fraction: Some(0.5), text: Some("half".into()), checkpoint: None };
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
