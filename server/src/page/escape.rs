//! Escapes text in templates: for HTML, and, as in logs, control characters and characters that change the direction of
//! writing (`\u{202e}`).

use std::fmt;

use askama::filters::{Escaper, Html};
use howdah_core::logging::escaped_but;

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
    fn bidirectional_control_characters_are_shown_as_escapes() {
        let mut shown = String::new();
        Escape.write_escaped_str(&mut shown, "a<\u{202e}b\u{2066}\n\u{1b}é").unwrap();
        assert_eq!(shown, "a&#60;\\u{202e}b\\u{2066}\n\\u{1b}é");
    }
}
