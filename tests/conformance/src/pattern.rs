//! Expectations: patterns that match values.
//!
//! An object matches if each of its fields matches; other fields of the value are ignored, and `{}` matches any object. A list
//! matches if it has the same length and each element matches, in order. A zero value also matches a missing field, as in the
//! JSON of protocol buffers.
//!
//! An object with one field that begins with `$` is a rule: `{$ge: 2}`, `{$le: 2}`, `{$contains: part of a text}`,
//! `{$has: element of a list}`, `{$in: list of patterns}`, `{$len: 3}`, `{$any: true}` (any value except null),
//! `{$absent: true}`, `{$not: pattern}`, `{$and: list of patterns}`, `{$starts: text}`.

use serde_json::Value;

/// Checks that a value matches a pattern. The error names the path of the first mismatch; `at` is the start of this
/// path.
pub(crate) fn check(pattern: &Value, value: &Value, at: &str) -> Result<(), String> {
    match pattern {
        Value::Object(fields) => {
            if let Some((rule, argument)) = only(fields).filter(|(rule, _)| rule.starts_with('$')) {
                return check_rule(rule, argument, value)
                    .then_some(())
                    .ok_or_else(|| format!("{at}: expected {rule} {argument}, got {}", short(value)));
            }
            if fields.is_empty() && !value.is_object() {
                return Err(format!("{at}: expected an object, got {}", short(value)));
            }
            fields.iter().try_for_each(|(name, pattern)| {
                check(pattern, value.get(name).unwrap_or(&Value::Null), &format!("{at}.{name}"))
            })
        }
        Value::Array(elements) => {
            let none = Vec::new();
            let found = value.as_array().unwrap_or(&none);
            if elements.len() != found.len() {
                return Err(format!("{at}: expected {} elements, got {}", elements.len(), short(value)));
            }
            let mut pairs = elements.iter().zip(found).enumerate();
            pairs.try_for_each(|(index, (pattern, value))| check(pattern, value, &format!("{at}[{index}]")))
        }
        _ if same(pattern, value) => Ok(()),
        _ => Err(format!("{at}: expected {pattern}, got {}", short(value))),
    }
}

pub(crate) fn matches(pattern: &Value, value: &Value) -> bool {
    check(pattern, value, "").is_ok()
}

fn only(fields: &serde_json::Map<String, Value>) -> Option<(&String, &Value)> {
    fields.iter().next().filter(|_| fields.len() == 1)
}

fn check_rule(rule: &str, argument: &Value, value: &Value) -> bool {
    let both = || Some((number(value).or(value.is_null().then_some(0.0))?, number(argument)?));
    let text = || Some((value.as_str()?, argument.as_str()?));
    match rule {
        "$any" => !value.is_null(),
        "$absent" => value.is_null(),
        "$not" => !matches(argument, value),
        "$ge" => both().is_some_and(|(value, bound)| value >= bound),
        "$le" => both().is_some_and(|(value, bound)| value <= bound),
        "$len" => Some(length(value)) == number(argument),
        "$has" => value.as_array().is_some_and(|list| list.iter().any(|element| matches(argument, element))),
        "$and" => argument.as_array().is_some_and(|list| list.iter().all(|pattern| matches(pattern, value))),
        "$in" => argument.as_array().is_some_and(|list| list.iter().any(|pattern| matches(pattern, value))),
        "$contains" => text().is_some_and(|(value, part)| value.contains(part)),
        "$starts" => text().is_some_and(|(value, part)| value.starts_with(part)),
        _ => false,
    }
}

fn length(value: &Value) -> f64 {
    let length = value.as_array().map(Vec::len).or_else(|| value.as_str().map(str::len));
    length.or_else(|| value.as_object().map(serde_json::Map::len)).unwrap_or_default() as f64
}

fn number(value: &Value) -> Option<f64> {
    value.as_f64().or_else(|| value.as_str()?.parse().ok())
}

fn same(pattern: &Value, value: &Value) -> bool {
    if value.is_null() {
        return is_zero(pattern);
    }
    // Protobuf's JSON writes 64-bit integers as strings, so compare a number with a string by value.
    pattern == value
        || (pattern.is_number() != value.is_number() && number(pattern).is_some() && number(pattern) == number(value))
        || (pattern.is_number() && value.is_number() && number(pattern) == number(value))
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(value) => value.as_f64() == Some(0.0),
        Value::String(value) => value.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

/// Formats a value for an error message, cut to 400 bytes.
pub(crate) fn short(value: &Value) -> String {
    let text = value.to_string();
    if text.len() <= 400 {
        return text;
    }
    format!("{}… ({} bytes)", &text[..text.floor_char_boundary(400)], text.len())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_matches_by_its_fields_and_a_list_by_all_of_its_elements() {
        let value = json!({"a": 1, "b": [{"c": "x"}, {"c": "y"}]});
        assert!(matches(&json!({"a": 1}), &value));
        assert!(matches(&json!({"b": [{}, {"c": "y"}]}), &value));
        assert!(!matches(&json!({"b": [{"c": "x"}]}), &value));
        let why = check(&json!({"b": [{"c": "x"}, {"c": "z"}]}), &value, "answer").unwrap_err();
        assert_eq!(why, r#"answer.b[1].c: expected "z", got "y""#);
    }

    #[test]
    fn default_values_match_absent_fields_and_numbers_match_their_texts() {
        assert!(matches(&json!({"a": 0, "b": "", "c": false}), &json!({})));
        assert!(matches(&json!({"id": 17}), &json!({"id": "17"})));
        assert!(!matches(&json!({"a": 1}), &json!({})));
    }

    #[test]
    fn rules_look_at_sizes_and_parts() {
        assert!(matches(&json!({"$ge": 2}), &json!(2)));
        assert!(!matches(&json!({"$le": 2}), &json!(3)));
        assert!(matches(&json!({"$has": {"a": 1}}), &json!([{"a": 2}, {"a": 1}])));
        assert!(matches(&json!({"$and": [{"$has": 1}, {"$has": 2}]}), &json!([2, 1])));
        assert!(!matches(&json!({"$and": [{"$has": 1}, {"$has": 3}]}), &json!([2, 1])));
        assert!(matches(&json!({"$not": {"$contains": "secret"}}), &json!("public")));
        assert!(matches(&json!({"x": {"$absent": true}}), &json!({})));
        assert!(matches(&json!({"$len": 2}), &json!(["a", "b"])));
    }
}
