//! Converts messages to and from JSON, by the mapping of protocol buffers (<https://protobuf.dev/programming-guides/json/>):
//! field names as in the protocol or in lowerCamelCase, bytes in base64, 64-bit numbers as strings, durations as `1.5s`, times in
//! RFC 3339.

mod words;

use std::sync::LazyLock;

use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, SerializeOptions};
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
    fn an_answer_is_written_with_the_names_of_the_protocol() {
        let outcome = v1::EnqueueOutcome::New as i32;
        let jobs = vec![v1::EnqueuedJob { id: 1 << 60, is_new: true, outcome }];
        let json = write("EnqueueJobsResponse", &v1::EnqueueJobsResponse { jobs }).unwrap();
        let expected = r#"{"jobs":[{"id":"1152921504606846976","is_new":true,"outcome":"ENQUEUE_OUTCOME_NEW"}]}"#;
        assert_eq!(json.to_string(), expected);
    }
}
