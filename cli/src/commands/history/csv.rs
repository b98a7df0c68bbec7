//! Comma-separated values (RFC 4180), with the columns of the archive's files.

use std::borrow::Cow;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use howdah_archive::Job;
use jiff::Timestamp;

use crate::commands::text;

const COLUMNS: &str = "id,task_type,created,leased_at,finished,outcome,attempt,max_attempts,priority,key,limit_key,fair_key,\
                       headers,options,failures,payload_bytes";

/// Returns the heading line with the column names.
pub(super) fn heading(payload: bool) -> String {
    let more = if payload { ",payload,payload_text,payload_sha256,result,result_text" } else { "" };
    format!("{COLUMNS}{more}")
}

/// Formats a job as a CSV line.
pub(super) fn line(job: &Job<'_>, payload: bool) -> String {
    let text = |text: Option<&str>| text.map(|text| quoted(text).into_owned()).unwrap_or_default();
    let mut cells = vec![
        job.id.to_string(),
        text(Some(job.task_type)),
        time(job.created),
        job.leased_at.map(time).unwrap_or_default(),
        time(job.finished),
        text(Some(job.outcome)),
        job.attempt.to_string(),
        job.max_attempts.to_string(),
        job.priority.to_string(),
        text(job.key),
        text(job.limit_key),
        text(job.fair_key),
        text(job.headers),
        text(job.options),
        text(job.failures),
        job.payload_bytes.to_string(),
    ];
    if payload {
        let base64 = |bytes: Option<&[u8]>| bytes.map(|bytes| STANDARD.encode(bytes)).unwrap_or_default();
        let shown = |bytes: Option<&[u8]>| text(bytes.and_then(text::as_text));
        cells.extend([
            base64(job.payload),
            shown(job.payload),
            job.payload_sha256.map(hex::encode).unwrap_or_default(),
            base64(job.result),
            shown(job.result),
        ]);
    }
    cells.join(",")
}

/// Formats a time as RFC 3339 in UTC.
fn time(micros: i64) -> String {
    Timestamp::from_microsecond(micros).map(|time| time.to_string()).unwrap_or_default()
}

/// Quotes text with commas, quotes or line breaks, and empty text, to distinguish it from a missing value.
fn quoted(text: &str) -> Cow<'_, str> {
    if !text.is_empty() && !text.contains([',', '"', '\n', '\r']) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("\"{}\"", text.replace('"', "\"\"")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_a_cell_for_each_column_whatever_is_in_it() {
        let job = Job {
            id: 7,
            task_type: "a,b",
            finished: 1_000_000,
            outcome: "succeeded",
            key: Some("say \"no\"\n"),
            limit_key: Some(""),
            payload: Some(b"\xff"),
            result: Some(b"done"),
            ..Job::default()
        };
        let expected =
            "7,\"a,b\",1970-01-01T00:00:00Z,,1970-01-01T00:00:01Z,succeeded,0,0,0,\"say \"\"no\"\"\n\",\"\",,,,,0";
        assert_eq!(line(&job, false), expected);
        assert_eq!(line(&job, true), format!("{expected},/w==,,,ZG9uZQ==,done"));
        assert_eq!(heading(true).split(',').count(), 21);
    }
}
