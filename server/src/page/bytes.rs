//! Payloads and results: as JSON, as text, in hex. Only a part of a large one is shown.

use std::fmt::Write as _;

use super::{json, words};

/// What is shown as text, and in hex.
pub(crate) const TEXT: usize = 64 << 10;
pub(crate) const HEX: usize = 4 << 10;

/// Bytes as they are shown.
pub(super) struct Shown {
    /// How they are shown: `json`, `text` or `hex`.
    pub(super) kind: &'static str,
    /// The other ways.
    pub(super) others: Vec<&'static str>,
    pub(super) text: String,
    /// How many there are.
    pub(super) size: String,
    /// How many of them are shown; empty: all.
    pub(super) part: String,
}

impl Shown {
    /// Shows bytes as asked, or else in the first way that fits; `None`: there are none.
    pub(super) fn of(bytes: &[u8], asked: &str) -> Option<Self> {
        if bytes.is_empty() {
            return None;
        }
        let start = &bytes[..bytes.len().min(TEXT)];
        let text = text(start, start.len() < bytes.len());
        let json = text.filter(|_| start.len() == bytes.len()).and_then(json::pretty);
        let mut ways = vec!["hex"];
        if text.is_some() {
            ways.insert(0, "text");
        }
        if json.is_some() {
            ways.insert(0, "json");
        }
        let kind = ways.iter().copied().find(|way| *way == asked).unwrap_or(ways[0]);
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

/// Bytes as text, if they are one. The end of a part may be in the middle of a character.
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

/// Sixteen bytes a line: their position, their digits, their letters.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_in_the_first_way_that_fits_or_as_asked() {
        let of = |bytes: &[u8], asked| Shown::of(bytes, asked).map(|shown| (shown.kind, shown.text));
        assert_eq!(of(b"", ""), None);
        assert_eq!(of(b"[1]", ""), Some(("json", "[\n  1\n]".into())));
        assert_eq!(of(b"[1]", "text"), Some(("text", "[1]".into())));
        assert_eq!(of("é{".as_bytes(), "json"), Some(("text", "é{".into())));
        let digits = format!("000000  {:<47}  .a\n", "00 61");
        assert_eq!(of(b"\0a", "text"), Some(("hex", digits)));
        assert_eq!(of(b"[1]", "<script>").unwrap().0, "json");
    }

    #[test]
    fn of_a_large_one_a_part_is_shown() {
        let large = "é".repeat(TEXT);
        let shown = Shown::of(large.as_bytes(), "").unwrap();
        assert_eq!((shown.kind, shown.size.as_str(), shown.part.as_str()), ("text", "128.0 KiB", "64.0 KiB"));
        let odd = format!("a{large}");
        assert_eq!(Shown::of(odd.as_bytes(), "").unwrap().text.len(), TEXT - 1);
        assert_eq!(Shown::of(&vec![0; 10 << 20], "").unwrap().text.lines().count(), HEX / 16);
    }
}
