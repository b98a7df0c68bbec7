//! Converts messages to and from JSON, by the mapping of protocol buffers (<https://protobuf.dev/programming-guides/json/>):
//! field names as in the protocol or in lowerCamelCase, bytes in base64, 64-bit numbers as strings, durations as `1.5s`, times in
//! RFC 3339.

mod words;

use std::sync::LazyLock;

use prost::Message;
use prost_reflect::{
    DescriptorPool, DynamicMessage, MessageDescriptor, ReflectMessage as _, SerializeOptions, Value as Field,
};
use serde_json::Value;

use crate::FILE_DESCRIPTOR_SET;
pub use words::{WordError, from_words, time_text};

/// Error of a conversion between JSON and a message.
#[derive(Debug)]
pub struct JsonError(String);

impl std::fmt::Display for JsonError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for JsonError {}

// `expect` cannot fail: the descriptors are compiled in, and a test decodes them.
#[allow(clippy::expect_used)]
static POOL: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(FILE_DESCRIPTOR_SET).expect("the compiled descriptors"));

fn descriptor(message: &str) -> Result<MessageDescriptor, JsonError> {
    let found = POOL.get_message_by_name(&format!("howdah.v1.{message}"));
    found.ok_or_else(|| JsonError(format!("the protocol has no message {message}")))
}

/// Returns the field names of a message, ordered by field number. Empty for an unknown message.
pub fn fields(message: &str) -> Vec<String> {
    let fields = descriptor(message).map(|message| message.fields().map(|field| field.name().to_owned()).collect());
    fields.unwrap_or_default()
}

/// Returns the names of the values of an enum field, ordered by number. Empty for another field.
pub fn enum_values(message: &str, field: &str) -> Vec<String> {
    let field = descriptor(message).ok().and_then(|message| message.get_field_by_name(field));
    match field.map(|field| field.kind()) {
        Some(prost_reflect::Kind::Enum(choices)) => choices.values().map(|value| value.name().to_owned()).collect(),
        _ => Vec::new(),
    }
}

/// Parses JSON as the message type `message`, such as `EnqueueJobsRequest`. An unknown field is an error.
pub fn read<M: Message + Default>(message: &str, json: &[u8]) -> Result<M, JsonError> {
    let mut text = serde_json::Deserializer::from_slice(json);
    let read =
        DynamicMessage::deserialize(descriptor(message)?, &mut text).map_err(|error| JsonError(error.to_string()))?;
    text.end().map_err(|error| JsonError(error.to_string()))?;
    read.transcode_to().map_err(|error| JsonError(error.to_string()))
}

/// Converts a message of the type `message` to JSON, with the field names of the protocol. Omits unset fields.
pub fn write(message: &str, value: &impl Message) -> Result<Value, JsonError> {
    let mut dynamic = DynamicMessage::new(descriptor(message)?);
    dynamic.transcode_from(value).map_err(|error| JsonError(error.to_string()))?;
    let options = SerializeOptions::new().use_proto_field_name(true);
    dynamic
        .serialize_with_options(serde_json::value::Serializer, &options)
        .map_err(|error| JsonError(error.to_string()))
}

/// Applies an update mask (AIP-134) to a message of the type `message`: returns `old` with the fields at `paths` as they are in
/// `new`. `outer.inner` is a field of a nested message. Fails if a path names no field.
pub fn masked<M: Message + Default>(message: &str, old: &M, new: &M, paths: &[String]) -> Result<M, JsonError> {
    let dynamic = |of: &M| {
        let mut dynamic = DynamicMessage::new(descriptor(message)?);
        dynamic.transcode_from(of).map_err(|error| JsonError(error.to_string()))?;
        Ok::<_, JsonError>(dynamic)
    };
    let (mut changed, new) = (dynamic(old)?, dynamic(new)?);
    for path in paths {
        replace(&mut changed, &new, path).ok_or_else(|| {
            JsonError(format!("{path:?} is no field of {message}; its fields are {}", fields(message).join(", ")))
        })?;
    }
    changed.transcode_to().map_err(|error| JsonError(error.to_string()))
}

/// Replaces one field. Returns `None` if the message has no such field.
fn replace(old: &mut DynamicMessage, new: &DynamicMessage, path: &str) -> Option<()> {
    let (name, inner) = path.split_once('.').map_or((path, None), |(name, inner)| (name, Some(inner)));
    let field = old.descriptor().get_field_by_name(name)?;
    let mut value = new.get_field(&field).into_owned();
    let mut is_set = new.has_field(&field);
    if let Some(inner) = inner {
        let (Field::Message(mut before), Field::Message(after)) = (old.get_field(&field).into_owned(), value) else {
            return None;
        };
        replace(&mut before, &after, inner)?;
        // A nested message without fields counts as unset.
        is_set = before.fields().next().is_some();
        value = Field::Message(before);
    }
    if is_set {
        old.set_field(&field, value);
    } else {
        old.clear_field(&field);
    }
    Some(())
}

/// Returns the path of a setting of a task type in an update mask, from its name in a flat list of settings:
/// `retry_policy.max_delay` for `retry_max_delay`, `rate.per_second` for `rate`.
pub fn setting_path(name: &str) -> String {
    match (name.split_once('_'), name.strip_suffix("_burst")) {
        (Some(("retry", inner)), _) => format!("retry_policy.{inner}"),
        (Some(("brake", inner)), _) => format!("brake.{inner}"),
        (_, Some(rate)) => format!("{rate}.burst"),
        _ if name == "rate" || name == "key_rate" => format!("{name}.per_second"),
        _ => name.to_owned(),
    }
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
    fn unknown_fields_and_wrong_types_are_errors() {
        for json in [r#"{"prio": 1}"#, r#"{"priority": "high"}"#, "[]", "{} {}", r#"{"key": 1}"#] {
            assert!(read::<v1::NewJob>("NewJob", json.as_bytes()).is_err(), "{json}");
        }
    }

    #[test]
    fn an_update_mask_replaces_only_the_fields_that_it_names() {
        let retry = |initial, max| {
            let seconds =
                |seconds: i64| Some(prost_types::Duration { seconds, nanos: 0 }).filter(|span| span.seconds > 0);
            Some(v1::RetryPolicy { initial_delay: seconds(initial), max_delay: seconds(max), ..Default::default() })
        };
        let old =
            v1::TaskTypeSettings { max_attempts: 3, paused: true, retry_policy: retry(1, 2), ..Default::default() };
        let new =
            v1::TaskTypeSettings { max_attempts: 5, max_running: 7, retry_policy: retry(9, 0), ..Default::default() };
        let masked = |paths: &[&str]| {
            let paths: Vec<String> = paths.iter().copied().map(str::to_owned).collect();
            super::masked("TaskTypeSettings", &old, &new, &paths)
        };
        assert_eq!(masked(&["max_running"]).unwrap(), v1::TaskTypeSettings { max_running: 7, ..old.clone() });
        assert_eq!(masked(&["paused"]).unwrap(), v1::TaskTypeSettings { paused: false, ..old.clone() });
        let delay = masked(&["retry_policy.initial_delay"]).unwrap();
        assert_eq!(delay, v1::TaskTypeSettings { retry_policy: retry(9, 2), ..old.clone() });
        let reset = masked(&["retry_policy.max_delay", "retry_policy", "retry_policy.initial_delay"]).unwrap();
        assert_eq!(reset.retry_policy, retry(9, 0));
        let empty = super::masked(
            "TaskTypeSettings",
            &old,
            &v1::TaskTypeSettings::default(),
            &["retry_policy.max_delay".into()],
        );
        assert_eq!(empty.unwrap().retry_policy, retry(1, 0));
        for unknown in ["", "prio", "paused.x", "retry_policy.", "retry_policy.delays.x"] {
            assert!(masked(&[unknown]).is_err(), "{unknown}");
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
}
