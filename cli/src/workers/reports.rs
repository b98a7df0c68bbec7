//! Sends progress reports of commands to the broker. A new report replaces an unsent one, so that commands never wait, and cannot
//! send too many reports.

use std::{convert::Infallible, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use howdah_client::{Job, proto::ProgressReport};
use howdah_core::job::{Limits, truncated};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::{sync::Notify, time::timeout};

/// Maximum time to send the last report before the outcome is sent.
const LAST_WITHIN: Duration = Duration::from_secs(5);

/// JSON object of a progress report.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReportJson {
    fraction: Option<f64>,
    text: Option<String>,
    checkpoint: Option<String>,
    checkpoint_base64: Option<String>,
}

/// Unsent progress of one job. Holds at most one report, into which new reports are merged.
#[derive(Debug, Default)]
pub struct Reports {
    pending: Mutex<Pending>,
    added: Notify,
}

#[derive(Debug, Default)]
struct Pending {
    report: Option<ProgressReport>,
    /// Number of reports added so far. `flush` compares it before and after a send to detect new reports.
    version: u64,
}

/// Parses a line of a command: `50% text`, `0.5 text`, `text`, or a JSON object. Returns `None` for an empty line.
pub(super) fn parse(line: &[u8]) -> Option<ProgressReport> {
    let line = String::from_utf8_lossy(line);
    let line = line.trim();
    if line.is_empty() {
        return None;
    }
    if line.starts_with('{')
        && let Ok(json) = serde_json::from_str::<ReportJson>(line)
    {
        return Some(json.into());
    }
    let (first, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let (fraction, words) = match fraction(first) {
        Some(fraction) => (Some(fraction), rest.trim_start()),
        None => (None, line),
    };
    let text = (!words.is_empty()).then(|| words.to_owned());
    Some(within_limits(ProgressReport { fraction, text, ..ProgressReport::default() }))
}

/// Parses a line like `parse`. A JSON object may also name the next stage of the job, which is returned first.
pub(super) fn parse_with_stage(line: &[u8]) -> (Option<String>, Option<ProgressReport>) {
    let Ok(mut object) = serde_json::from_slice::<Map<String, Value>>(line) else {
        return (None, parse(line));
    };
    match object.remove("next_stage") {
        Some(Value::String(stage)) if object.is_empty() => (Some(stage), None),
        Some(Value::String(stage)) => (Some(stage), parse(Value::Object(object).to_string().as_bytes())),
        _ => (None, parse(line)),
    }
}

/// Shortens a report to the limits of the broker, because no job should fail because of a report.
fn within_limits(report: ProgressReport) -> ProgressReport {
    let plain = |text: String| text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>();
    if let Some(checkpoint) = &report.checkpoint
        && checkpoint.len() > Limits::CHECKPOINT_BYTES
    {
        tracing::warn!(bytes = checkpoint.len(), "a checkpoint of more than 64 KiB was ignored");
    }
    ProgressReport {
        fraction: report.fraction.filter(|fraction| (0.0..=1.0).contains(fraction)),
        text: report.text.map(|text| truncated(&plain(text), Limits::PROGRESS_TEXT_BYTES)),
        checkpoint: report.checkpoint.filter(|checkpoint| checkpoint.len() <= Limits::CHECKPOINT_BYTES),
        ..report
    }
}

/// Parses `50%` or `0.5`. A whole number does not count, because it may begin a text such as "1 of 3".
fn fraction(word: &str) -> Option<f64> {
    let value = match word.strip_suffix('%') {
        Some(percent) => percent.parse::<f64>().ok()? / 100.0,
        None if word.contains('.') => word.parse().ok()?,
        None => return None,
    };
    (0.0..=1.0).contains(&value).then_some(value)
}

impl From<ReportJson> for ProgressReport {
    fn from(json: ReportJson) -> Self {
        let bytes = json.checkpoint_base64.and_then(|text| STANDARD.decode(text).ok());
        let checkpoint = bytes.or_else(|| json.checkpoint.map(String::into_bytes)).map(Into::into);
        within_limits(Self { fraction: json.fraction, text: json.text, checkpoint, ..Self::default() })
    }
}

impl Reports {
    /// Adds a report to the unsent one. Fields that are `None` keep their previous values.
    pub(super) fn add(&self, report: ProgressReport) {
        if report == ProgressReport::default() {
            return;
        }
        let mut pending = self.pending.lock();
        let earlier = pending.report.take().unwrap_or_default();
        pending.report = Some(ProgressReport {
            fraction: report.fraction.or(earlier.fraction),
            text: report.text.or(earlier.text),
            checkpoint: report.checkpoint.or(earlier.checkpoint),
            ..earlier
        });
        pending.version += 1;
        drop(pending);
        self.added.notify_one();
    }

    /// Returns the unsent report without removing it.
    #[cfg(test)]
    pub(super) fn unsent(&self) -> Option<ProgressReport> {
        self.pending.lock().report.clone()
    }

    /// Sends reports, one at a time. Never returns.
    pub async fn run(&self, job: &Job) -> Infallible {
        loop {
            self.send_unsent(job).await;
            self.added.notified().await;
        }
    }

    /// Sends the unsent report. Must be called before the outcome is sent, because the outcome ends the lease.
    pub async fn flush(&self, job: &Job) {
        if !job.is_cancelled() && timeout(LAST_WITHIN, self.send_unsent(job)).await.is_err() {
            tracing::warn!("the broker did not confirm the last progress report");
        }
    }

    async fn send_unsent(&self, job: &Job) {
        let (unsent, version) = {
            let pending = self.pending.lock();
            let Some(unsent) = pending.report.clone() else { return };
            (unsent, pending.version)
        };
        if let Err(error) = job.report(unsent).await {
            tracing::debug!(%error, "the broker did not accept a progress report");
        }
        let mut pending = self.pending.lock();
        // Reports that arrived during the send are merged with the sent report, and all of its fields are sent again.
        if pending.version == version {
            pending.report = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(fraction: Option<f64>, text: &str) -> Option<ProgressReport> {
        let text = Some(text.to_owned()).filter(|text| !text.is_empty());
        Some(ProgressReport { fraction, text, ..ProgressReport::default() })
    }

    #[test]
    fn a_progress_line_may_begin_with_a_fraction_or_a_percentage() {
        for (line, expected) in [
            ("50% half of it", report(Some(0.5), "half of it")),
            ("0.25\tquarter", report(Some(0.25), "quarter")),
            ("100%", report(Some(1.0), "")),
            ("1 of 3 files", report(None, "1 of 3 files")),
            ("200% effort", report(None, "200% effort")),
            ("1.5 times", report(None, "1.5 times")),
            ("NaN% what", report(None, "NaN% what")),
            ("a\x1b[2Jb", report(None, "a [2Jb")),
            ("  \r", None),
        ] {
            assert_eq!(parse(line.as_bytes()), expected, "{line}");
        }
    }

    #[test]
    fn a_line_may_be_an_object_with_a_checkpoint() {
        let line = br#"{"fraction": 0.5, "text": "half", "checkpoint_base64": "AAE="}"#;
        let expected = ProgressReport { checkpoint: Some("\0\x01".into()), ..report(Some(0.5), "half").unwrap() };
        assert_eq!(parse(line), Some(expected));
        let checkpoint = ProgressReport { checkpoint: Some("row 7".into()), ..ProgressReport::default() };
        assert_eq!(parse(br#"{"checkpoint": "row 7"}"#), Some(checkpoint));
        assert_eq!(parse(b"{not json"), report(None, "{not json"));
    }

    #[test]
    fn an_object_may_name_the_next_stage_besides() {
        let of = |line: &str| parse_with_stage(line.as_bytes());
        let mail = || Some("mail".to_owned());
        assert_eq!(of(r#"{"next_stage": "mail"}"#), (mail(), None));
        assert_eq!(
            of(r#"{"next_stage": "mail", "fraction": 0.5, "text": "half"}"#),
            (mail(), report(Some(0.5), "half"))
        );
        let other = r#"{"next_stage": 7}"#;
        assert_eq!(of(other), (None, report(None, other)));
        assert_eq!(of("50% half"), (None, report(Some(0.5), "half")));
    }

    #[test]
    fn values_above_the_limits_are_truncated_or_dropped() {
        let long = parse("é".repeat(2000).as_bytes()).unwrap().text.unwrap();
        assert!(long.len() <= 1024 && long.ends_with("[truncated]"));
        let large = format!(r#"{{"fraction": 7, "checkpoint": "{}"}}"#, "x".repeat(70_000));
        assert_eq!(parse(large.as_bytes()), Some(ProgressReport::default()));
    }

    #[test]
    fn a_later_report_replaces_an_unsent_one() {
        let reports = Reports::default();
        for line in ["10% begun", r#"{"checkpoint": "a"}"#, "20%", "nothing.much", ""] {
            parse(line.as_bytes()).into_iter().for_each(|report| reports.add(report));
        }
        let expected = ProgressReport { checkpoint: Some("a".into()), ..report(Some(0.2), "nothing.much").unwrap() };
        assert_eq!(reports.unsent(), Some(expected));
    }
}
