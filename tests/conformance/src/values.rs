//! Values of scenarios: variables, and functions that make large values.
//!
//! `$name` is the value of a variable, and `$name.0.id` a part of it. Within a longer text, it is inserted as text.
//! `{$text: hello}` is a text in base64, `{$bytes: 1000}` 1,000 bytes in base64, and `{$letters: 200}` a text of 200 letters.
//! `{$list: 10, of: value}` is a list of 10 values, in which `$i` counts from 0.

use std::collections::BTreeMap;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Map, Value, json};

/// The variables of one scenario while it runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Variables(BTreeMap<String, Value>);

impl Variables {
    pub(crate) fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.0.insert(name.to_owned(), value.into());
    }

    pub(crate) fn get(&self, name: &str) -> &Value {
        self.0.get(name).unwrap_or(&Value::Null)
    }

    /// Returns a value in which all variables and functions are replaced.
    pub(crate) fn fill(&self, value: &Value) -> Result<Value, String> {
        match value {
            Value::String(text) => self.fill_text(text),
            Value::Array(list) => list.iter().map(|element| self.fill(element)).collect(),
            Value::Object(fields) => {
                if let Some(made) = self.call(fields) {
                    return made;
                }
                let fill = |(name, value): (&String, &Value)| {
                    let name = match self.fill_text(name)? {
                        Value::String(name) => name,
                        other => other.to_string(),
                    };
                    Ok((name, self.fill(value)?))
                };
                fields.iter().map(fill).collect::<Result<Map<_, _>, String>>().map(Value::Object)
            }
            _ => Ok(value.clone()),
        }
    }

    fn call(&self, fields: &Map<String, Value>) -> Option<Result<Value, String>> {
        let size = |name: &str| fields.get(name).and_then(Value::as_u64).map(|size| size as usize);
        if let Some(text) = fields.get("$text") {
            return Some(self.fill(text).map(|text| {
                let text = text.as_str().map_or_else(|| text.to_string(), str::to_owned);
                json!(BASE64_STANDARD.encode(text))
            }));
        }
        if let Some(size) = size("$bytes") {
            return Some(Ok(json!(BASE64_STANDARD.encode(vec![b'x'; size]))));
        }
        if let Some(size) = size("$letters") {
            return Some(Ok(json!("x".repeat(size))));
        }
        let (count, of) = (size("$list")?, fields.get("of")?);
        Some((0..count).map(|index| self.with("i", json!(index)).fill(of)).collect())
    }

    fn with(&self, name: &str, value: Value) -> Self {
        let mut more = self.clone();
        more.set(name, value);
        more
    }

    fn fill_text(&self, text: &str) -> Result<Value, String> {
        let mut filled = String::new();
        let mut rest = text;
        while let Some(start) = rest.find('$') {
            let (before, after) = (&rest[..start], &rest[start + 1..]);
            let end = after.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.')).unwrap_or(after.len());
            let name = after[..end].trim_end_matches('.');
            if name.is_empty() || is_rule(text, name) {
                return Ok(json!(text));
            }
            let value = self.part(name)?;
            if before.is_empty() && filled.is_empty() && name.len() == after.len() {
                return Ok(value);
            }
            filled.push_str(before);
            filled.push_str(&value.as_str().map_or_else(|| value.to_string(), str::to_owned));
            rest = &after[name.len()..];
        }
        filled.push_str(rest);
        Ok(json!(filled))
    }

    fn part(&self, path: &str) -> Result<Value, String> {
        let mut parts = path.split('.');
        let name = parts.next().unwrap_or_default();
        let whole = self.0.get(name).ok_or_else(|| format!("the scenario has no variable ${name}"))?;
        let found = parts.try_fold(whole, |value, part| match value {
            Value::Array(list) => list.get(part.parse::<usize>().ok()?),
            _ => value.get(part),
        });
        found.cloned().ok_or_else(|| format!("${path} is not a part of {whole}"))
    }
}

/// Whether the whole text is the name of a pattern rule, such as `$ge`, and not a variable.
fn is_rule(text: &str, name: &str) -> bool {
    const RULES: &[&str] = &["ge", "le", "len", "has", "in", "and", "not", "any", "absent", "contains", "starts"];
    text.len() == name.len() + 1 && RULES.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_filled_in_whole_in_part_and_within_texts() {
        let mut variables = Variables::default();
        variables.set("ids", json!(["7", "8"]));
        variables.set("t", "mail.send");
        let filled = variables.fill(&json!({"a": "$ids", "b": "$ids.1", "c": "$t-2", "d": {"$ge": 1}})).unwrap();
        assert_eq!(filled, json!({"a": ["7", "8"], "b": "8", "c": "mail.send-2", "d": {"$ge": 1}}));
        assert!(variables.fill(&json!("$nobody")).unwrap_err().contains("$nobody"));
    }

    #[test]
    fn functions_make_bytes_and_lists() {
        let filled = Variables::default().fill(&json!({"$list": 2, "of": {"key": "k$i", "payload": {"$text": "hi"}}}));
        assert_eq!(filled.unwrap(), json!([{"key": "k0", "payload": "aGk="}, {"key": "k1", "payload": "aGk="}]));
    }
}
