//! Place of a setting in the message of all settings. An empty text stands for no own value.

use std::time::Duration;

const NUMBER: &str = "is not a number, or is too large";
const SPAN: &str = "is not a duration such as 90s, 5m or 2h 30m";

/// A field of the settings of a task type.
pub(super) enum Place<'a> {
    /// A count; 0 for none.
    Count(&'a mut u32),
    /// A number of bytes or jobs; 0 for none.
    Large(&'a mut i64),
    /// A number per second; 0 for none.
    PerSecond(&'a mut f64),
    Factor(&'a mut Option<f64>),
    Span(&'a mut Option<prost_types::Duration>),
    Spans(&'a mut Vec<prost_types::Duration>),
    Name(&'a mut String),
    Flag(&'a mut bool),
    /// Number of an enum value, whose words are the choices of the setting from number 1 on; 0 for none.
    Choice(&'a mut i32),
}

impl Place<'_> {
    /// Returns the own value as text.
    pub(super) fn text(&self, choices: &[(&str, &str)]) -> String {
        match self {
            Self::Count(0) | Self::Large(0) | Self::Factor(None) | Self::Span(None) | Self::Flag(false) => {
                String::new()
            }
            Self::Count(count) => count.to_string(),
            Self::Large(count) => count.to_string(),
            Self::PerSecond(0.0) => String::new(),
            Self::PerSecond(rate) => rate.to_string(),
            Self::Factor(Some(factor)) => factor.to_string(),
            Self::Span(Some(span)) => span_text(span),
            Self::Spans(spans) => spans.iter().map(span_text).collect::<Vec<_>>().join(", "),
            Self::Name(name) => (*name).clone(),
            Self::Flag(true) => "yes".into(),
            Self::Choice(number) => {
                let at = usize::try_from(**number).ok().and_then(|number| number.checked_sub(1));
                at.and_then(|at| choices.get(at)).map(|(word, _)| (*word).to_owned()).unwrap_or_default()
            }
        }
    }

    /// Sets the own value. The error describes the problem of the text.
    pub(super) fn set(self, text: &str, choices: &[(&str, &str)]) -> Result<(), &'static str> {
        let is_none = text.is_empty();
        match self {
            Self::Count(count) => *count = if is_none { 0 } else { text.parse().map_err(|_| NUMBER)? },
            Self::Large(count) => *count = if is_none { 0 } else { text.parse().map_err(|_| NUMBER)? },
            Self::PerSecond(rate) => *rate = if is_none { 0.0 } else { finite(text)? },
            Self::Factor(factor) => *factor = if is_none { None } else { Some(finite(text)?) },
            Self::Span(span) => *span = if is_none { None } else { Some(parse_span(text)?) },
            Self::Spans(spans) => {
                let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
                *spans = parts.map(parse_span).collect::<Result<_, _>>()?;
            }
            Self::Name(name) => text.clone_into(name),
            Self::Flag(flag) => *flag = !is_none,
            Self::Choice(number) => {
                let at = choices.iter().position(|(word, _)| *word == text);
                let at = if is_none { 0 } else { at.ok_or("is not one of the choices")? + 1 };
                *number = i32::try_from(at).unwrap_or_default();
            }
        }
        Ok(())
    }
}

fn finite(text: &str) -> Result<f64, &'static str> {
    text.parse().ok().filter(|value: &f64| value.is_finite()).ok_or(NUMBER)
}

fn parse_span(text: &str) -> Result<prost_types::Duration, &'static str> {
    humantime::parse_duration(text).ok().and_then(|span| span.try_into().ok()).ok_or(SPAN)
}

/// Formats a duration with all of its units, so that it is read back unchanged.
fn span_text(span: &prost_types::Duration) -> String {
    Duration::try_from(*span).map(|span| humantime::format_duration(span).to_string()).unwrap_or_default()
}
