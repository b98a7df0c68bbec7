//! Formats payloads and results as JSON, text or hex. Large ones are truncated.

use std::fmt::Write as _;

use serde::de::IgnoredAny;

use crate::page::words;

/// Maximum number of bytes shown as text or JSON (`TEXT`), and as hex (`HEX`).
pub(crate) const TEXT: usize = 64 << 10;
pub(crate) const HEX: usize = 4 << 10;

/// A payload or result, formatted for the page.
pub(super) struct Shown {
    /// Format in which the bytes are shown: `json`, `text` or `hex`.
    pub(super) kind: &'static str,
    /// Other formats in which the bytes can be shown.
    pub(super) others: Vec<&'static str>,
    pub(super) text: String,
    /// Total size of the payload or result.
    pub(super) size: String,
    /// Size of the shown part; empty if all bytes are shown.
    pub(super) part: String,
}

impl Shown {
    /// Formats bytes in the requested format, or in the first possible one of json, text and hex. `None` for an empty
    /// payload.
    pub(super) fn new(bytes: &[u8], format: &str) -> Option<Self> {
        if bytes.is_empty() {
            return None;
        }
        let start = &bytes[..bytes.len().min(TEXT)];
        let text = text(start, start.len() < bytes.len());
        let json = text.filter(|_| start.len() == bytes.len()).and_then(pretty);
        let mut ways = vec!["hex"];
        if text.is_some() {
            ways.insert(0, "text");
        }
        if json.is_some() {
            ways.insert(0, "json");
        }
        let kind = ways.iter().copied().find(|way| *way == format).unwrap_or(ways[0]);
        let (shown, of) = match (kind, json, text) {
            ("json", Some(json), _) => (json, bytes.len()),
            ("text", _, Some(text)) => (text.to_owned(), text.len()),
            _ => (hex(&bytes[..bytes.len().min(HEX)]), bytes.len().min(HEX)),
        };
        let part = if of < bytes.len() { words::size(of) } else { String::new() };
        let others = ways.into_iter().filter(|way| *way != kind).collect();
        Some(Self { kind, others, text: shown, size: words::size(bytes.len()), part })
    }
}

/// Decodes UTF-8 text; `None` if the bytes are not text. A truncated part may end within a character.
fn text(bytes: &[u8], is_part: bool) -> Option<&str> {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) if is_part && error.error_len().is_none() => {
            std::str::from_utf8(&bytes[..error.valid_up_to()]).ok()?
        }
        Err(_) => return None,
    };
    let is_plain = |c: char| !c.is_control() || matches!(c, '\n' | '\r' | '\t');
    text.chars().all(is_plain).then_some(text)
}

/// Returns a hex dump: 16 bytes per line, with offset, hex digits and ASCII.
fn hex(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() * 5);
    for (n, line) in bytes.chunks(16).enumerate() {
        let digits: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        let letter = |byte: &u8| if byte.is_ascii_graphic() || *byte == b' ' { char::from(*byte) } else { '.' };
        let letters: String = line.iter().map(letter).collect();
        // Writing to a string never fails.
        let _ = writeln!(out, "{:06x}  {:<47}  {letters}", n * 16, digits.join(" "));
    }
    out
}

/// Maximum nesting depth of formatted JSON. Each level indents everything inside it further.
const DEEPEST: usize = 64;

/// Returns the JSON text with one entry per line; `None` if the text is not JSON or is nested too deeply.
pub(super) fn pretty(text: &str) -> Option<String> {
    serde_json::from_str::<IgnoredAny>(text).ok()?;
    let mut out = String::with_capacity(text.len() * 2);
    let mut depth = 0_usize;
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' => {
                out.push('"');
                while let Some(inside) = letters.next() {
                    out.push(inside);
                    match inside {
                        '\\' => out.extend(letters.next()),
                        '"' => break,
                        _ => {}
                    }
                }
            }
            '{' | '[' => {
                out.push(letter);
                while letters.next_if(char::is_ascii_whitespace).is_some() {}
                if let Some(end) = letters.next_if(|next| matches!(next, '}' | ']')) {
                    out.push(end);
                } else {
                    depth += 1;
                    if depth > DEEPEST {
                        return None;
                    }
                    line(&mut out, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line(&mut out, depth);
                out.push(letter);
            }
            ',' => {
                out.push(',');
                line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            letter if letter.is_ascii_whitespace() => {}
            letter => out.push(letter),
        }
    }
    Some(out)
}

fn line(out: &mut String, depth: usize) {
    out.push('\n');
    out.extend(std::iter::repeat_n("  ", depth));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    #[test]
    fn bytes_are_shown_in_the_first_way_that_fits_or_as_asked() {
        let of = |bytes: &[u8], format| Shown::new(bytes, format).map(|shown| (shown.kind, shown.text));
        assert_eq!(of(b"", ""), None);
        assert_eq!(of(b"[1]", ""), Some(("json", "[\n  1\n]".into())));
        assert_eq!(of(b"[1]", "text"), Some(("text", "[1]".into())));
        assert_eq!(of("é{".as_bytes(), "json"), Some(("text", "é{".into())));
        let digits = format!("000000  {:<47}  .a\n", "00 61");
        assert_eq!(of(b"\0a", "text"), Some(("hex", digits)));
        assert_eq!(of(b"[1]", "<script>").unwrap().0, "json");
    }

    #[test]
    fn only_a_part_of_a_large_value_is_shown() {
        let large = "é".repeat(TEXT);
        let shown = Shown::new(large.as_bytes(), "").unwrap();
        assert_eq!((shown.kind, shown.size.as_str(), shown.part.as_str()), ("text", "128.0 KiB", "64.0 KiB"));
        let odd = format!("a{large}");
        assert_eq!(Shown::new(odd.as_bytes(), "").unwrap().text.len(), TEXT - 1);
        assert_eq!(Shown::new(&vec![0; 10 << 20], "").unwrap().text.lines().count(), HEX / 16);
    }

    #[test]
    fn json_gets_lines_and_keeps_its_digits_and_order() {
        let text = r#"{"b":[1, 12345678901234567890.10],"a":{ },"c":"x\"{,}\\"}"#;
        let shown =
            "{\n  \"b\": [\n    1,\n    12345678901234567890.10\n  ],\n  \"a\": {},\n  \"c\": \"x\\\"{,}\\\\\"\n}";
        assert_eq!(pretty(text).as_deref(), Some(shown));
        assert_eq!((pretty("{"), pretty(""), pretty("1 2"), pretty("x")), (None, None, None, None));
        let nested = |depth| format!("{}1{}", "[1,".repeat(depth), "]".repeat(depth));
        assert!(pretty(&nested(DEEPEST)).is_some() && pretty(&nested(DEEPEST + 1)).is_none());
        assert_eq!(pretty(&"[".repeat(100_000)), None);
    }

    proptest! {
        #[test]
        fn indented_json_has_the_same_value(text in r#"([\[\]{},: "\\a0-9\n-]|true|"a":){0,30}"#) {
            match (serde_json::from_str::<Value>(&text), pretty(&text)) {
                (Ok(value), Some(shown)) => prop_assert_eq!(serde_json::from_str::<Value>(&shown).unwrap(), value),
                (Ok(_), None) => prop_assert!(false, "JSON is shown"),
                // Valid JSON whose number is too large for `serde_json::Value`.
                (Err(_), _) => {}
            }
        }
    }
}
