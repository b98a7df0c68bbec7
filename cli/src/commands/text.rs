//! Formats times, durations, sizes, payloads and texts from producers and workers, such as keys and errors. Control characters
//! of such texts are escaped.

use std::{borrow::Cow, time::Duration};

use howdah_core::{
    job::JobState,
    logging::{escaped, escaped_but},
};
use jiff::Timestamp;

pub(super) use howdah_core::{durations::short, numbers::grouped};

/// Maximum characters that a table cell shows of a text from a producer or worker.
const SUMMARY_CHARS: usize = 60;
/// Maximum bytes of a payload that are shown in hex.
const HEX_BYTES: usize = 256;

/// Returns the name of a job state, or `unknown` for a state that only newer brokers know.
pub(super) fn state(state: i32) -> &'static str {
    JobState::from_proto(state).map_or("unknown", JobState::name)
}

/// Formats a time in UTC with milliseconds, such as `2026-11-21T22:46:01.120Z`.
pub(super) fn time(time: Timestamp) -> String {
    format!("{time:.3}")
}

/// Converts a timestamp of the protocol. Returns `None` if it is unset or invalid.
pub(super) fn timestamp(time: Option<&prost_types::Timestamp>) -> Option<Timestamp> {
    time.and_then(|time| Timestamp::new(time.seconds, time.nanos).ok())
}

/// Converts a duration of the protocol. Returns `None` if it is unset or negative.
pub(super) fn duration(duration: Option<&prost_types::Duration>) -> Option<Duration> {
    duration.and_then(|duration| Duration::try_from(*duration).ok())
}

/// Formats a time relative to `now`, such as `3m 12s ago` or `in 5m`.
pub(super) fn relative(time: Timestamp, now: Timestamp) -> String {
    let distance = now.duration_since(time);
    let length = short(distance.unsigned_abs());
    if distance.is_negative() { format!("in {length}") } else { format!("{length} ago") }
}

/// Formats a time of the protocol relative to `now`. Empty if it is unset or invalid.
pub(super) fn ago(time: Option<&prost_types::Timestamp>, now: Timestamp) -> String {
    timestamp(time).map(|time| relative(time, now)).unwrap_or_default()
}

/// Formats a size in bytes, KiB or MiB, rounded down.
pub(super) fn size(bytes: usize) -> String {
    match bytes {
        1 => "1 byte".into(),
        0..=9_999 => format!("{bytes} bytes"),
        10_000..=9_999_999 => format!("{} KiB", bytes / 1024),
        _ => format!("{} MiB", bytes >> 20),
    }
}

/// Formats a number of jobs, such as `1 job` or `2 jobs`.
pub(super) fn jobs(count: i64) -> String {
    if count == 1 { "1 job".into() } else { format!("{count} jobs") }
}

/// Error for a job that was not found.
pub(super) fn no_job(id: i64) -> String {
    format!("job {id} does not exist, or its history has been dropped")
}

/// Formats the length of an incomplete list, such as `the first job` or `the first 2 jobs`.
pub(super) fn first_jobs(count: u64) -> String {
    if count == 1 { "the first job".into() } else { format!("the first {count} jobs") }
}

/// Formats a number of jobs with its verb, such as `1 job was` or `2 jobs were`.
pub(super) fn jobs_were(count: usize) -> String {
    if count == 1 { "1 job was".into() } else { format!("{count} jobs were") }
}

/// Converts the name of an enum value of the protocol to a word: `BULK_STATE_RUNNING` to `running`.
pub(super) fn enum_word(name: &str, prefix: &str) -> String {
    name.trim_start_matches(prefix).to_lowercase()
}

/// Returns the payload as text, if it is UTF-8 without NUL.
pub(super) fn as_text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok().filter(|text| !text.contains('\0'))
}

/// Formats a text from a producer or worker for a table cell: one line, cut at 60 characters.
pub(super) fn summary(text: &str) -> String {
    let line = text.trim_end().replace('\n', " ");
    let short: String = line.chars().take(SUMMARY_CHARS + 1).collect();
    if short.chars().count() <= SUMMARY_CHARS {
        return escaped(&short).into_owned();
    }
    let cut: String = short.chars().take(SUMMARY_CHARS - 1).collect();
    format!("{}\u{2026}", escaped(&cut))
}

/// Formats a payload for a table cell.
pub(super) fn payload_summary(bytes: &[u8]) -> String {
    match as_text(bytes) {
        Some(text) => summary(text),
        None => format!("{} {}", hex(&bytes[..bytes.len().min(16)], bytes.len() > 16), size(bytes.len())),
    }
}

/// Formats a payload as a block of lines, as text or hex.
pub(super) fn payload_block(bytes: &[u8]) -> String {
    match as_text(bytes) {
        Some(text) => block(text),
        None => hex(&bytes[..bytes.len().min(HEX_BYTES)], bytes.len() > HEX_BYTES),
    }
}

/// Formats a text from a producer or worker as a block of lines. Escapes all control characters except line breaks and tabs.
pub(super) fn block(text: &str) -> String {
    let text: Cow<'_, str> = escaped_but(text.trim_end_matches('\n'), &['\n', '\t']);
    text.into_owned()
}

fn hex(bytes: &[u8], more: bool) -> String {
    let dots = if more { "\u{2026}" } else { "" };
    format!("0x{}{dots}", hex::encode(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_from_now() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        assert_eq!(relative(Timestamp::from_second(999_940).unwrap(), now), "1m ago");
        assert_eq!(relative(Timestamp::from_second(1_000_300).unwrap(), now), "in 5m");
        assert_eq!(time(now), "1970-01-12T13:46:40.000Z");
    }

    #[test]
    fn a_payload_that_is_text_is_shown_as_text_and_any_other_in_hex_with_its_length() {
        assert_eq!(payload_summary("grüß dich\n".as_bytes()), "grüß dich");
        assert_eq!(payload_summary(&[0xff, 0, 0x10]), "0xff0010 3 bytes");
        assert_eq!(payload_summary(&vec![0xab; 20_000]), format!("0x{}… 19 KiB", "ab".repeat(16)));
    }

    #[test]
    fn terminal_escapes_are_shown_and_not_obeyed() {
        assert_eq!(payload_summary(b"\x1b[2Jx\ry"), "\\u{1b}[2Jx\\ry");
        assert_eq!(block("a\tb\n\x1b]0;t\x07\n"), "a\tb\n\\u{1b}]0;t\\u{7}");
    }

    #[test]
    fn a_long_text_is_cut_on_a_character() {
        let cut = summary(&"é".repeat(1000));
        assert_eq!(cut.chars().count(), SUMMARY_CHARS);
        assert!(cut.ends_with('…'));
    }
}
