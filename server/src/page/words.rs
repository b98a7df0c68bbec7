//! Formats numbers, times and states for the page. `When` and `State` are templates that escape their fields, so other
//! templates insert them without escaping (`|safe`).
//! The escaper of all templates.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use askama::{
    Template,
    filters::{Escaper, Html, HtmlSafe, Safe},
};
use howdah_core::logging::escaped_but;
use howdah_proto::v1::JobState;
use jiff::Timestamp;

pub(super) use howdah_core::{durations::short as span, numbers::grouped as number};

/// A time, shown together with its distance from now.
#[derive(Clone, Template)]
#[template(path = "parts/when.html")]
pub(super) struct When {
    iso: String,
    full: String,
    about: String,
}

impl HtmlSafe for When {}

impl When {
    /// Converts a time from the gRPC API.
    pub(super) fn new(time: Option<prost_types::Timestamp>) -> Option<Self> {
        let time = time?;
        let at = Timestamp::new(time.seconds, time.nanos).ok()?;
        let distance = Timestamp::now().duration_since(at);
        let about = match Duration::try_from(distance) {
            Ok(past) if past < Duration::from_secs(1) => "now".into(),
            Ok(past) => format!("{} ago", span(past)),
            Err(_) => format!("in {}", span(distance.unsigned_abs())),
        };
        let full = at.strftime("%Y-%m-%d %H:%M:%S%.3f UTC").to_string();
        Some(Self { iso: at.to_string(), full, about })
    }

    /// Full timestamp.
    pub(super) fn full(&self) -> &str {
        &self.full
    }
}

/// A job state, shown as a word with a distinct shape.
#[derive(Clone, Template)]
#[template(path = "parts/state.html")]
pub(super) struct State {
    pub(super) word: &'static str,
}

impl HtmlSafe for State {}

/// All job states with their names on the page.
pub(super) const STATES: [(JobState, &str); 9] = [
    (JobState::Ready, "ready"),
    (JobState::Leased, "leased"),
    (JobState::Scheduled, "scheduled"),
    (JobState::Waiting, "waiting"),
    (JobState::Dead, "dead"),
    (JobState::Succeeded, "succeeded"),
    (JobState::Cancelled, "cancelled"),
    (JobState::Expired, "expired"),
    (JobState::Discarded, "discarded"),
];

impl State {
    /// Converts a job state from the gRPC API.
    pub(super) fn new(state: JobState) -> Self {
        let word = STATES.into_iter().find(|(known, _)| *known == state).map_or("unknown", |(_, word)| word);
        Self { word }
    }

    /// Returns the job state with this name; `None` if the name is unknown.
    pub(super) fn parse(word: &str) -> Option<JobState> {
        STATES.into_iter().find(|(_, known)| *known == word).map(|(state, _)| state)
    }
}

/// Formats a count with its noun: `1 job`, `2,000 jobs`.
pub(super) fn counted(n: i64, one: &str) -> String {
    format!("{} {one}{}", number(n), if n == 1 { "" } else { "s" })
}

/// Formats a number; for templates, which pass references.
pub(super) fn number_of<N: Copy + Into<i64>>(n: &N) -> String {
    number((*n).into())
}

/// Formats a time from the gRPC API; for templates, which pass references. Empty if the time is not set.
#[expect(clippy::ref_option, reason = "templates pass references")]
pub(super) fn when(time: &Option<prost_types::Timestamp>) -> Safe<String> {
    Safe(When::new(*time).and_then(|when| when.render().ok()).unwrap_or_default())
}

/// Formats a time from the gRPC API without its distance from now. Empty if the time is not set.
#[expect(clippy::ref_option, reason = "templates pass references")]
pub(super) fn full_time(time: &Option<prost_types::Timestamp>) -> String {
    When::new(*time).map(|when| when.full).unwrap_or_default()
}

/// Returns the name of an enum value on the page: `BULK_STATE_RUNNING` becomes `running`.
pub(super) fn word(name: &str, prefix: &str) -> String {
    name.trim_start_matches(prefix).to_lowercase()
}

/// Formats a duration from the gRPC API.
pub(super) fn wire_span(time: prost_types::Duration) -> String {
    Duration::try_from(time).map(span).unwrap_or_default()
}

/// Formats a number of seconds with two or three digits, which is the precision of the statistics.
pub(super) fn short_span(seconds: f64) -> String {
    match seconds {
        0.0..0.000_999_5 => format!("{:.0}µs", seconds * 1e6),
        0.000_999_5..0.009_995 => format!("{:.1}ms", seconds * 1e3),
        0.009_995..0.9995 => format!("{:.0}ms", seconds * 1e3),
        0.9995..60.0 => format!("{seconds:.1}s"),
        _ => span(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)),
    }
}

/// Formats the time between two timestamps.
pub(super) fn between(from: Option<prost_types::Timestamp>, to: Option<prost_types::Timestamp>) -> Option<String> {
    let (from, to) = (SystemTime::try_from(from?).ok()?, SystemTime::try_from(to?).ok()?);
    to.duration_since(from).ok().map(span)
}

/// Formats a number of bytes.
pub(super) fn size(bytes: usize) -> String {
    match bytes {
        0..1_024 => format!("{bytes} B"),
        1_024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1_024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

/// Returns the first line of a text, truncated.
pub(super) fn first_line(text: &str, most: usize) -> String {
    let line = text.lines().next().unwrap_or_default();
    let start: String = line.chars().take(most).collect();
    let is_part = start.len() < line.len() || text.lines().nth(1).is_some();
    format!("{start}{}", if is_part { "…" } else { "" })
}

/// The escaper that `askama.toml` sets for all templates.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Escape;

impl Escaper for Escape {
    fn write_escaped_str<W: fmt::Write>(&self, dest: W, string: &str) -> fmt::Result {
        Html.write_escaped_str(dest, &escaped_but(string, &['\n', '\r', '\t']))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_times_are_easy_to_read() {
        assert_eq!([0, 1, 2_000].map(|n| counted(n, "job")), ["0 jobs", "1 job", "2,000 jobs"]);
        assert_eq!([0, 999, 1_000, 1_234_567, -1_000].map(number), ["0", "999", "1,000", "1,234,567", "−1,000"]);
        let short = [0.000_05, 0.0015, 0.25, 1.0, 12.34, 90.0].map(short_span);
        assert_eq!(short, ["50µs", "1.5ms", "250ms", "1.0s", "12.3s", "1m 30s"]);
        assert_eq!([10, 1_536, 3 << 20].map(size), ["10 B", "1.5 KiB", "3.0 MiB"]);
        assert_eq!(
            (first_line("ab", 2), first_line("abc", 2), first_line("a\nb", 9)),
            ("ab".into(), "ab…".into(), "a…".into())
        );
    }

    #[test]
    fn each_state_has_a_word_that_is_read_back() {
        for (state, word) in STATES {
            assert_eq!((State::new(state).word, State::parse(word)), (word, Some(state)));
        }
    }

    #[test]
    fn a_time_says_how_long_ago_it_was() {
        let now = prost_types::Timestamp::from(SystemTime::now() - Duration::from_secs(90));
        let when = When::new(Some(now)).unwrap();
        assert_eq!(when.about, "1m 30s ago");
        assert!(when.render().unwrap().starts_with("<time "), "{}", when.render().unwrap());
        assert!(When::new(Some(prost_types::Timestamp { seconds: i64::MAX, nanos: -1 })).is_none());
    }

    #[test]
    fn control_characters_and_changes_of_direction_are_shown_as_escapes() {
        let mut shown = String::new();
        Escape.write_escaped_str(&mut shown, "a<\u{202e}b\u{2066}\t\n\u{1b}[2J\u{85}é").unwrap();
        assert_eq!(shown, "a&#60;\\u{202e}b\\u{2066}\t\n\\u{1b}[2J\\u{85}é");
    }
}
