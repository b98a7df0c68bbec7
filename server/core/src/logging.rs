//! Logs to standard error: text on a terminal, JSON otherwise.
//!
//! All untrusted text is escaped, so that no sender can forge a line or control a terminal. tracing-subscriber escapes
//! ESC and similar characters in values logged with `%`. It does not escape line breaks in the text format, nor the
//! control characters U+0080 to U+009F (C1) in JSON. This module escapes them.

mod throttle; // rate limits for log lines

use std::{
    borrow::Cow,
    fmt::{self, Write as _},
    io::{self, IsTerminal as _},
};

use tracing::field::Field;
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    field::MakeExt as _,
    filter::LevelFilter,
    fmt::{FormatFields, MakeWriter, format, format::Writer},
    layer::SubscriberExt as _,
};

pub use throttle::Throttle;
pub use throttle::ThrottleByKind;

/// The format of logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Text on a terminal, JSON otherwise.
    #[default]
    Auto,
    /// Text, for people.
    Text,
    /// JSON, one object per line.
    Json,
}

/// The filter and format of logs.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Filter such as `info` or `warn,howdah_server=debug`. `None` selects the command's default.
    pub filter: Option<String>,
    pub format: Format,
}

/// Starts logging for the rest of the process. `default_filter` applies if the options have no filter.
pub fn init(options: &Options, default_filter: &str) -> Result<(), String> {
    let filter = parse_filter(options.filter.as_deref().unwrap_or(default_filter))?;
    let layer = layer(options.format, io::stderr().is_terminal(), io::stderr);
    let subscriber = Registry::default().with(layer.with_filter(filter));
    tracing::subscriber::set_global_default(subscriber).map_err(|error| error.to_string())
}

/// Parses a log filter. The error is a phrase that completes "the value …", such as `must be …`.
pub(crate) fn parse_filter(text: &str) -> Result<EnvFilter, String> {
    let is_level = |part: &str| !part.is_empty() && part.parse::<LevelFilter>().is_ok();
    // A single word that is not a level is refused: tracing would read a misspelt level as a target and silence all
    // other targets.
    let lone_word = text.split(',').map(str::trim).find(|part| !part.contains(['=', '[']) && !is_level(part));
    if lone_word.is_some() && !text.contains('[') {
        return Err("must be off, error, warn, info, debug or trace, or target=level pairs separated by commas".into());
    }
    EnvFilter::builder().parse(text).map_err(|error| format!("is not a log filter: {error}"))
}

fn layer<W>(format: Format, terminal: bool, writer: W) -> Box<dyn Layer<Registry> + Send + Sync>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let text = format == Format::Text || (format == Format::Auto && terminal);
    let layer = tracing_subscriber::fmt::layer();
    if text {
        let colours = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        // Text lines are for people, so they omit the target (module path), by which programs filter.
        layer.with_ansi(colours).with_target(false).fmt_fields(fields()).with_writer(writer).boxed()
    } else {
        let json = layer.json().flatten_event(true).with_span_list(false);
        json.with_writer(EscapingJson(writer)).boxed()
    }
}

/// Formats fields as `name=value`, each value on one line and without control characters.
fn fields() -> impl for<'writer> FormatFields<'writer> + 'static {
    let field = |writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug| {
        if field.name() == "message" {
            return write!(Escaping(writer), "{value:?}");
        }
        let name = field.name().trim_start_matches("r#");
        if writer.has_ansi_escapes() {
            write!(writer, "\x1b[2m{name}=\x1b[0m")?;
        } else {
            write!(writer, "{name}=")?;
        }
        write!(Escaping(writer), "{value:?}")
    };
    format::debug_fn(field).delimited(" ")
}

/// A writer that escapes all text written to it.
struct Escaping<'a, 'w>(&'a mut Writer<'w>);

impl fmt::Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write_str(&escaped(text))
    }
}

/// Escapes characters that break a line, control a terminal or change the direction of writing. The escapes are those in Rust:
/// `\n`, `\u{1b}`.
pub fn escaped(text: &str) -> Cow<'_, str> {
    escaped_but(text, &[])
}

/// Escapes hostile characters like [`escaped`], except the characters in `passed`.
pub fn escaped_but<'a>(text: &'a str, passed: &[char]) -> Cow<'a, str> {
    let hostile = |c: char| is_hostile(c) && !passed.contains(&c);
    if !text.contains(hostile) {
        return text.into();
    }
    let mut clean = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if hostile(c) { clean.extend(c.escape_default()) } else { clean.push(c) }
    }
    clean.into()
}

fn is_hostile(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A writer for JSON lines. Escapes the characters of [`is_hostile`] that the JSON formatter leaves as they are, which
/// occur only inside JSON strings. The formatter itself escapes C0 (ESC, line breaks).
struct EscapingJson<W>(W);

impl<'a, W: MakeWriter<'a>> MakeWriter<'a> for EscapingJson<W> {
    type Writer = EscapingJsonWriter<W::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        EscapingJsonWriter(self.0.make_writer())
    }
}

struct EscapingJsonWriter<W>(W);

impl<W: io::Write> io::Write for EscapingJsonWriter<W> {
    /// The formatter writes each line with one call, so `line` never ends inside a UTF-8 character.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let hostile = |c: char| is_hostile(c) && c != '\n';
        if !text.contains(hostile) {
            self.0.write_all(line)?;
            return Ok(line.len());
        }
        let mut clean = String::with_capacity(text.len() + 16);
        for c in text.chars() {
            if hostile(c) {
                let _ = write!(clean, "\\u{:04x}", u32::from(c));
            } else {
                clean.push(c);
            }
        }
        self.0.write_all(clean.as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Logs an event whose span, message and fields contain the hostile text. Returns the log line.
    fn logged(format: Format, hostile: &str) -> String {
        let sink = Sink::default();
        let writer = sink.clone();
        let subscriber = Registry::default().with(layer(format, false, move || writer.clone()));
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::info_span!("call", peer = %hostile);
            let _in = span.enter();
            let error = io::Error::other(hostile.to_owned());
            let error: &(dyn std::error::Error + 'static) = &error;
            tracing::info!(display = %hostile, debug = ?hostile, plain = hostile, error, "said {hostile}");
        });
        let bytes = sink.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    const HOSTILE: &str = "a\n2026-01-01T00:00:00Z ERROR forged\r\x1b[2J\x1b]0;t\x07\u{9b}31m\u{202e}\0\x7f";

    #[test]
    fn a_hostile_text_stays_on_one_line_and_without_control_characters() {
        for format in [Format::Text, Format::Json] {
            let line = logged(format, HOSTILE);
            let line = line.strip_suffix('\n').unwrap();
            assert!(!line.contains(is_hostile), "{format:?}: {line:?}");
            assert!(line.contains("forged"), "{line}");
        }
    }

    #[test]
    fn json_lines_say_what_was_meant() {
        let line = logged(Format::Json, HOSTILE);
        let object: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(object["display"], HOSTILE);
        assert_eq!(object["message"], format!("said {HOSTILE}"));
        assert_eq!(object["span"]["peer"], HOSTILE);
    }

    #[test]
    fn text_lines_are_readable() {
        let line = logged(Format::Text, "x y");
        let rest = "INFO call{peer=x y}: said x y \
                    display=x y debug=\"x y\" plain=\"x y\" error=x y\n";
        assert!(line.ends_with(rest), "{line}");
    }

    #[test]
    fn a_misspelt_level_is_refused_and_not_taken_for_a_target() {
        for good in ["info", "WARN,howdah_server=debug", "off", "a::b=trace,error", "h[span{x=1}]=info"] {
            assert!(parse_filter(good).is_ok(), "{good}");
        }
        for bad in ["inof", "howdah", "a=loud", ""] {
            assert!(parse_filter(bad).is_err(), "{bad}");
        }
    }
}
