//! Pretty-prints JSON. Only whitespace changes: numbers keep their digits, and objects keep their order.

use serde::de::IgnoredAny;

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
