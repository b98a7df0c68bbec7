//! Checks of the length and the characters of texts, and their quotation in errors.

use howdah_core::{error::Error, job::Limits};

/// Maximum number of characters of a value in an error. Errors are sent in HTTP/2 headers, which are small.
const SHOWN: usize = 40;

/// Quotes a value for an error: escaped and shortened.
pub(in crate::api) fn shown(value: &str) -> String {
    let start: String = value.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    let rest = value.chars().nth(SHOWN).map_or("", |_| "…");
    format!("\"{start}{rest}\"")
}

/// Checks that a text has at most `max` bytes and no control characters.
pub(in crate::api) fn plain(field: &str, value: &str, max: usize) -> Result<(), Error> {
    short(field, value, max)?;
    if let Some(bad) = value.chars().find(|c| c.is_control()) {
        let problem = format!("{} has the control character {bad:?}; none are allowed", shown(value));
        return Err(Error::invalid(field, problem));
    }
    Ok(())
}

/// Like [`plain`], but returns `None` for an empty text.
pub(in crate::api) fn optional(field: &str, value: String, max: usize) -> Result<Option<String>, Error> {
    plain(field, &value, max)?;
    Ok(Some(value).filter(|value| !value.is_empty()))
}

/// Checks a tag.
pub(in crate::api) fn tag(field: &str, value: &str) -> Result<(), Error> {
    if value.is_empty() {
        return Err(Error::invalid(field, "is empty; leave it out"));
    }
    plain(field, value, Limits::TAG_BYTES)
}

/// Checks that a text or a byte string has at most `max` bytes.
pub(in crate::api) fn short(field: &str, value: impl AsRef<[u8]>, max: usize) -> Result<(), Error> {
    let bytes = value.as_ref().len();
    if bytes > max {
        return Err(Error::invalid(field, format!("has {bytes} bytes; at most {max} are allowed")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_in_an_error_is_escaped_and_short() {
        assert_eq!(shown("a\n\u{1b}[31m\0"), r#""a\n\u{1b}[31m\0""#);
        assert_eq!(shown(&"x".repeat(41)), format!("\"{}…\"", "x".repeat(40)));
        assert!(shown(&"\u{1b}".repeat(100_000)).len() < 300);
    }

    #[test]
    fn control_characters_are_refused_wherever_they_stand() {
        for value in ["\0", "a\tb", "line\n", "\u{1b}[2J", "\u{7f}", "\u{85}"] {
            let error = plain("key", value, 200).unwrap_err();
            assert_eq!(error.field(), Some("key"));
            assert!(!error.to_string().contains(value), "{error}");
        }
        assert!(plain("key", "Grüße, 'quoted'; -- ../%s", 200).is_ok());
    }

    #[test]
    fn length_counts_bytes_not_characters() {
        assert!(plain("key", &"é".repeat(100), 200).is_ok());
        let error = plain("key", &"é".repeat(101), 200).unwrap_err();
        assert_eq!(error.to_string(), "key has 202 bytes; at most 200 are allowed");
    }
}
