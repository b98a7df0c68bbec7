//! Builds messages from name-value pairs, as in a query string or on a command line: `priority` = `-1`,
//! `retry_policy.jitter` = `0.2`.

use std::fmt;

use prost::Message;
use prost_reflect::{DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor};
use serde_json::{Map, Value};

use super::descriptor;

/// Error of a conversion from name-value pairs to a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WordError {
    /// The message has no such field.
    Unknown {
        /// Given name.
        name: String,
        /// Names of the fields of the message.
        known: Vec<String>,
    },
    /// A value does not fit the type of its field.
    Wrong {
        /// Name of the field.
        name: String,
        /// Problem, without the name of the field.
        problem: String,
    },
    /// Each pair is valid, but the pairs contradict each other.
    Contradiction(String),
}

impl fmt::Display for WordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { name, known } => write!(f, "{name} is unknown; use one of {}", known.join(", ")),
            Self::Wrong { name, problem } => write!(f, "{name} {problem}"),
            Self::Contradiction(problem) => f.write_str(problem),
        }
    }
}

impl std::error::Error for WordError {}

/// Builds a message of the type `message` from name-value pairs. The name of a nested field is `outer.inner`, and the name of a
/// map entry is `field.key`. A repeated field may occur several times. For other fields, the last pair counts.
pub fn from_words<M: Message + Default>(message: &str, given: &[(String, String)]) -> Result<M, WordError> {
    let read = read(message, given);
    if let Err(WordError::Contradiction(_)) = read {
        // Reads each pair alone to find out whether a single pair is invalid, so that the error can name it.
        for (name, value) in given {
            if let Err(WordError::Contradiction(problem)) = self::read::<M>(message, &[(name.clone(), value.clone())]) {
                let value: String = value.chars().take(40).filter(|c| !c.is_control()).collect();
                return Err(WordError::Wrong { name: name.clone(), problem: format!("is {value:?}: {problem}") });
            }
        }
    }
    read
}

fn read<M: Message + Default>(message: &str, given: &[(String, String)]) -> Result<M, WordError> {
    let message = descriptor(message).map_err(|error| WordError::Contradiction(error.to_string()))?;
    let mut fields = Map::new();
    for (name, value) in given {
        if set(&message, &mut fields, name, value).is_none() {
            let name = name.chars().take(40).filter(|c| !c.is_control()).collect();
            let known = message.fields().map(|field| field.name().to_owned()).collect();
            return Err(WordError::Unknown { name, known });
        }
    }
    let read = DynamicMessage::deserialize(message, Value::Object(fields));
    let read = read.map_err(|error| WordError::Contradiction(error.to_string()))?;
    read.transcode_to().map_err(|error| WordError::Contradiction(error.to_string()))
}

/// Sets a field. Returns `None` if the message has no field with this name.
fn set(message: &MessageDescriptor, fields: &mut Map<String, Value>, name: &str, value: &str) -> Option<()> {
    let (first, rest) = name.split_once('.').map_or((name, None), |(first, rest)| (first, Some(rest)));
    let field = message.get_field_by_name(first)?;
    if field.is_map() {
        let entry = object(fields, first)?;
        entry.insert(rest?.to_owned(), value.into());
        return Some(());
    }
    match (field.kind(), rest) {
        (Kind::Message(inner), Some(rest)) if !field.is_list() => set(&inner, object(fields, first)?, rest, value),
        (_, Some(_)) => None,
        (kind, None) => {
            let value = word(&kind, value);
            if field.is_list() {
                list(fields, &field)?.push(value);
            } else {
                fields.insert(first.to_owned(), value);
            }
            Some(())
        }
    }
}

fn object<'a>(fields: &'a mut Map<String, Value>, name: &str) -> Option<&'a mut Map<String, Value>> {
    fields.entry(name).or_insert_with(|| Value::Object(Map::new())).as_object_mut()
}

fn list<'a>(fields: &'a mut Map<String, Value>, field: &FieldDescriptor) -> Option<&'a mut Vec<Value>> {
    fields.entry(field.name()).or_insert_with(|| Value::Array(Vec::new())).as_array_mut()
}

/// Converts a value to JSON. Numbers stay strings, which the JSON mapping accepts. A boolean is `true` or `false`. An enum value
/// may omit the prefix of the enum, and a duration may be written as `1h 30m`.
fn word(kind: &Kind, value: &str) -> Value {
    match kind {
        Kind::Bool => value.parse().map_or_else(|_| value.into(), Value::Bool),
        Kind::Enum(choices) => choice(choices, value).into(),
        Kind::Message(message) if message.full_name() == "google.protobuf.Duration" => {
            let duration = humantime::parse_duration(value);
            duration.map_or_else(|_| value.into(), |d| format!("{}.{:09}s", d.as_secs(), d.subsec_nanos()).into())
        }
        Kind::Message(message) if message.full_name() == "google.protobuf.Timestamp" => time_text(value).into(),
        _ => value.into(),
    }
}

/// Converts a time to RFC 3339: `2030-01-01 03:00` becomes `2030-01-01T03:00:00Z`. A time without a zone is UTC, because Howdah
/// prints times in UTC. Returns other texts unchanged.
pub fn time_text(text: &str) -> String {
    let text = text.trim();
    let (Some(date), Some(rest)) = (text.get(..10), text.get(10..)) else { return text.to_owned() };
    let is_date = date.bytes().enumerate().all(|(at, byte)| match at {
        4 | 7 => byte == b'-',
        _ => byte.is_ascii_digit(),
    });
    let Some(time) = rest.strip_prefix(['T', 't', ' ']).filter(|_| is_date) else { return text.to_owned() };
    let clock = time.find(|c: char| !c.is_ascii_digit() && c != ':' && c != '.').unwrap_or(time.len());
    let (clock, zone) = time.split_at(clock);
    let seconds = if clock.len() == 5 { ":00" } else { "" };
    let zone = match zone.trim() {
        "" | "UTC" | "z" => "Z",
        zone => zone,
    };
    format!("{date}T{clock}{seconds}{zone}")
}

/// Completes the name of an enum value: `replace` becomes `KEY_POLICY_REPLACE`. Returns unknown names unchanged.
fn choice(choices: &EnumDescriptor, value: &str) -> String {
    if choices.get_value_by_name(value).is_some() {
        return value.to_owned();
    }
    let upper = value.to_ascii_uppercase().replace('-', "_");
    let named = choices.values().find(|choice| {
        choice.name().ends_with(&format!("_{upper}")) && {
            // Compare the whole name, because the suffix alone may also match a longer name.
            let prefix = choices.name().chars().fold(String::new(), |mut prefix, c| {
                if c.is_ascii_uppercase() && !prefix.is_empty() {
                    prefix.push('_');
                }
                prefix.push(c.to_ascii_uppercase());
                prefix
            });
            choice.name() == format!("{prefix}_{upper}")
        }
    });
    named.map_or_else(|| value.to_owned(), |choice| choice.name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1;

    fn job(given: &[(&str, &str)]) -> Result<v1::NewJob, WordError> {
        let given: Vec<_> = given.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        from_words("NewJob", &given)
    }

    #[test]
    fn words_set_fields_of_every_kind() {
        let job = job(&[
            ("priority", "-5"),
            ("key", "k"),
            ("key_policy", "replace"),
            ("run_at", "2030-01-01T00:00:00Z"),
            ("timeout", "1m 30s"),
            ("retry_policy.kind", "list"),
            ("retry_policy.delays", "1s"),
            ("retry_policy.delays", "2s"),
            ("headers.tenant.name", "a"),
            ("after", "7"),
            ("after", "8"),
        ])
        .unwrap();
        assert_eq!((job.priority, job.key.as_str(), job.key_policy()), (-5, "k", v1::KeyPolicy::Replace));
        assert_eq!((job.headers["tenant.name"].as_str(), &job.after[..]), ("a", &[7, 8][..]));
        assert_eq!(job.timeout, Some(prost_types::Duration { seconds: 90, nanos: 0 }));
        let retry = job.retry_policy.unwrap();
        assert_eq!((retry.kind(), retry.delays.len()), (v1::RetryPolicyKind::List, 2));
    }

    #[test]
    fn a_time_without_a_zone_is_utc() {
        for (text, time) in [
            ("2026-11-22 20:00:00", "2026-11-22T20:00:00Z"),
            ("2026-11-22 20:00", "2026-11-22T20:00:00Z"),
            ("2026-11-22T20:00:00.5", "2026-11-22T20:00:00.5Z"),
            ("2026-11-22 20:00:00 UTC", "2026-11-22T20:00:00Z"),
            ("2026-11-22 20:00:00+02:00", "2026-11-22T20:00:00+02:00"),
            ("2026-11-22 20:00:00 +02:00", "2026-11-22T20:00:00+02:00"),
            ("tomorrow at eight", "tomorrow at eight"),
        ] {
            assert_eq!(time_text(text), time);
        }
        let given = job(&[("run_at", "2030-01-01 00:00")]).unwrap();
        assert_eq!(given, job(&[("run_at", "2030-01-01T00:00:00Z")]).unwrap());
    }

    #[test]
    fn the_word_at_fault_is_named() {
        for (given, name) in [
            (&[("key", "k"), ("priority", "high")][..], "priority"),
            (&[("priority", "99999999999")], "priority"),
            (&[("delay", "soon")], "delay"),
            (&[("key_policy", "keeep")], "key_policy"),
            (&[("run_at", "tomorrow")], "run_at"),
        ] {
            assert!(matches!(job(given), Err(WordError::Wrong { name: wrong, .. }) if wrong == name), "{given:?}");
        }
        for name in ["prio", "priority.x", "headers", "retry_policy.x"] {
            assert!(matches!(job(&[(name, "1")]), Err(WordError::Unknown { .. })), "{name}");
        }
        let both = [("delay", "1s"), ("run_at", "2030-01-01T00:00:00Z")];
        assert!(matches!(job(&both), Err(WordError::Contradiction(_))));
    }
}
