//! Messages as JSON, by the mapping of the protocol buffers (<https://protobuf.dev/programming-guides/json/>): names of
//! fields as in the protocol or in lowerCamelCase, bytes in base64, 64-bit numbers as text, durations as `1.5s`, times in
//! RFC 3339.

use std::sync::LazyLock;

use prost::Message;
use prost_reflect::{
    DescriptorPool, DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor, SerializeOptions,
};
use serde_json::{Map, Value};

use crate::FILE_DESCRIPTOR_SET;

/// Why a text is no such message.
#[derive(Debug)]
pub struct JsonError(String);

impl std::fmt::Display for JsonError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for JsonError {}

// The descriptors are compiled in; a test reads them.
#[allow(clippy::expect_used)]
static POOL: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(FILE_DESCRIPTOR_SET).expect("the compiled descriptors"));

fn descriptor(message: &str) -> Result<MessageDescriptor, JsonError> {
    let found = POOL.get_message_by_name(&format!("howdah.v1.{message}"));
    found.ok_or_else(|| JsonError(format!("the protocol has no message {message}")))
}

/// Reads a message of this name, such as `EnqueueJobsRequest`. A field that it does not have is an error.
pub fn read<M: Message + Default>(message: &str, json: &[u8]) -> Result<M, JsonError> {
    let mut text = serde_json::Deserializer::from_slice(json);
    let read =
        DynamicMessage::deserialize(descriptor(message)?, &mut text).map_err(|error| JsonError(error.to_string()))?;
    text.end().map_err(|error| JsonError(error.to_string()))?;
    read.transcode_to().map_err(|error| JsonError(error.to_string()))
}

/// Writes a message of this name, with the protocol's names; fields that are not set are left out.
pub fn write(message: &str, value: &impl Message) -> Result<Value, JsonError> {
    let mut dynamic = DynamicMessage::new(descriptor(message)?);
    dynamic.transcode_from(value).map_err(|error| JsonError(error.to_string()))?;
    let options = SerializeOptions::new().use_proto_field_name(true);
    dynamic
        .serialize_with_options(serde_json::value::Serializer, &options)
        .map_err(|error| JsonError(error.to_string()))
}

/// Fields of a message from words, as a query or a command line has them: `priority` = `-1`, `retry_policy.jitter` = `0.2`.
#[derive(Debug)]
pub struct Words {
    message: MessageDescriptor,
    fields: Map<String, Value>,
}

impl Words {
    /// None yet, for a message of this name.
    pub fn new(message: &str) -> Result<Self, JsonError> {
        Ok(Self { message: descriptor(message)?, fields: Map::new() })
    }

    /// The names of the fields that can be set, in the order of their numbers.
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.message.fields().map(|field| field.name().to_owned()).collect::<Vec<_>>().into_iter()
    }

    /// Sets a field by its name, with a dot between the names of a field inside another one. A repeated field takes one
    /// more; a map's entry is named `field.key`. `None`: the message has no such field.
    pub fn set(&mut self, name: &str, value: &str) -> Option<()> {
        set(&self.message, &mut self.fields, name, value)
    }

    /// The message.
    pub fn read<M: Message + Default>(self) -> Result<M, JsonError> {
        let json = Value::Object(self.fields);
        let read = DynamicMessage::deserialize(self.message, json).map_err(|error| JsonError(error.to_string()))?;
        read.transcode_to().map_err(|error| JsonError(error.to_string()))
    }
}

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

/// A word as JSON. Numbers may be texts there; a boolean is `true` or `false`. People may leave out the name of the enum
/// before its value, and write durations as `1h 30m`.
fn word(kind: &Kind, value: &str) -> Value {
    match kind {
        Kind::Bool => value.parse().map_or_else(|_| value.into(), Value::Bool),
        Kind::Enum(choices) => choice(choices, value).into(),
        Kind::Message(message) if message.full_name() == "google.protobuf.Duration" => {
            let duration = humantime::parse_duration(value);
            duration.map_or_else(|_| value.into(), |d| format!("{}.{:09}s", d.as_secs(), d.subsec_nanos()).into())
        }
        _ => value.into(),
    }
}

/// `replace` is `KEY_POLICY_REPLACE`.
fn choice(choices: &EnumDescriptor, value: &str) -> String {
    if choices.get_value_by_name(value).is_some() {
        return value.to_owned();
    }
    let upper = value.to_ascii_uppercase().replace('-', "_");
    let named = choices.values().find(|choice| {
        choice.name().ends_with(&format!("_{upper}")) && {
            // The whole of what follows the enum's own name.
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

    #[test]
    fn a_request_is_read_by_the_names_of_the_protocol_or_in_camel_case() {
        let json = br#"{"request_key": "r", "jobs": [
            {"task_type": "a", "payload": "/w==", "delay": "1.5s", "key_policy": "KEY_POLICY_REPLACE", "after": ["7"]},
            {"taskType": "b", "maxAttempts": 3, "headers": {"x": "y"}}]}"#;
        let request: v1::EnqueueJobsRequest = read("EnqueueJobsRequest", json).unwrap();
        assert_eq!((request.jobs.len(), request.request_key.as_str()), (2, "r"));
        assert_eq!((&request.jobs[0].payload[..], &request.jobs[0].after[..]), (&b"\xff"[..], &[7][..]));
        assert_eq!(request.jobs[0].key_policy(), v1::KeyPolicy::Replace);
        let delay = prost_types::Duration { seconds: 1, nanos: 500_000_000 };
        assert_eq!(request.jobs[0].start, Some(v1::new_job::Start::Delay(delay)));
        assert_eq!((request.jobs[1].max_attempts, request.jobs[1].headers["x"].as_str()), (3, "y"));
    }

    #[test]
    fn what_the_message_does_not_have_is_an_error() {
        for json in [r#"{"prio": 1}"#, r#"{"priority": "high"}"#, "[]", "{} {}", r#"{"key": 1}"#] {
            assert!(read::<v1::NewJob>("NewJob", json.as_bytes()).is_err(), "{json}");
        }
    }

    #[test]
    fn an_answer_is_written_with_the_names_of_the_protocol() {
        let outcome = v1::EnqueueOutcome::New as i32;
        let jobs = vec![v1::EnqueuedJob { id: 1 << 60, is_new: true, outcome }];
        let json = write("EnqueueJobsResponse", &v1::EnqueueJobsResponse { jobs }).unwrap();
        let expected = r#"{"jobs":[{"id":"1152921504606846976","is_new":true,"outcome":"ENQUEUE_OUTCOME_NEW"}]}"#;
        assert_eq!(json.to_string(), expected);
    }

    #[test]
    fn words_set_fields_of_every_kind() {
        let mut words = Words::new("NewJob").unwrap();
        for (name, value) in [
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
        ] {
            assert!(words.set(name, value).is_some(), "{name}");
        }
        assert!(words.set("prio", "1").is_none());
        assert!(words.set("priority.x", "1").is_none());
        let job: v1::NewJob = words.read().unwrap();
        assert_eq!((job.priority, job.key.as_str(), job.key_policy()), (-5, "k", v1::KeyPolicy::Replace));
        assert_eq!((job.headers["tenant.name"].as_str(), &job.after[..]), ("a", &[7, 8][..]));
        let retry = job.retry_policy.unwrap();
        assert_eq!((retry.kind(), retry.delays.len()), (v1::RetryPolicyKind::List, 2));
    }
}
