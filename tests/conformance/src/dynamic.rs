//! Encodes, decodes and calls the protocol's messages and methods by their names, with the protobuf descriptors.

use std::sync::LazyLock;

use bytes::{Buf, Bytes};
use howdah_client::Connection;
use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, MethodDescriptor, SerializeOptions};
use serde_json::Value;
use tonic::{
    Code, Request, Status,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::http::uri::PathAndQuery,
};

/// The descriptors of the protocol.
// Cannot fail: the descriptors are compiled in, and every run decodes them.
#[allow(clippy::expect_used)]
pub static POOL: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(howdah_proto::FILE_DESCRIPTOR_SET).expect("the compiled descriptors"));

/// Maximum size of a message, in bytes.
const LARGEST: usize = 256 << 20;

/// Finds a method by its name, such as `howdah.v1.JobService/GetJob`.
pub fn method(name: &str) -> Option<MethodDescriptor> {
    let (service, method) = name.trim_start_matches('/').split_once('/')?;
    POOL.get_service_by_name(service)?.methods().find(|found| found.name() == method)
}

/// Converts a message to JSON, with the field names of the protocol.
pub fn to_json(message: &DynamicMessage) -> Value {
    let options = SerializeOptions::new().use_proto_field_name(true);
    message.serialize_with_options(serde_json::value::Serializer, &options).unwrap_or(Value::Null)
}

/// Parses a message from JSON.
pub fn from_json(of: MessageDescriptor, json: &Value) -> Result<DynamicMessage, String> {
    DynamicMessage::deserialize(of, json).map_err(|error| error.to_string())
}

/// Rewrites `camelCase` field names of a JSON message to the `snake_case` names of the protocol. Returns the value unchanged if
/// it is not a message of this type.
pub(crate) fn normal(of: &MessageDescriptor, json: &Value) -> Value {
    from_json(of.clone(), json).map_or_else(|_| json.clone(), |message| to_json(&message))
}

/// Rewrites the field names of a JSON message of the type `name`, or of a list of such messages; see [`normal`].
pub(crate) fn normalize(name: &str, value: Option<&mut Value>) {
    let (Some(of), Some(value)) = (POOL.get_message_by_name(name), value) else { return };
    match value {
        Value::Array(list) => list.iter_mut().for_each(|one| *one = normal(&of, one)),
        one => *one = normal(&of, one),
    }
}

/// Decodes a message. `None` if the bytes are not a message of this type.
pub fn decode(of: MessageDescriptor, bytes: Bytes) -> Option<DynamicMessage> {
    DynamicMessage::decode(of, bytes).ok()
}

/// The protocol's name of a gRPC status code, such as `INVALID_ARGUMENT`.
pub fn code(code: Code) -> String {
    let mut name = String::new();
    for letter in format!("{code:?}").chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

/// Makes a gRPC call with one request, and returns all of its responses.
pub async fn call(connection: Connection, method: &str, request: &Value) -> Result<Vec<Value>, Status> {
    let found = self::method(method).ok_or_else(|| Status::unimplemented(format!("unknown method {method}")))?;
    let request = from_json(found.input(), request).map_err(Status::invalid_argument)?;
    let path: PathAndQuery =
        format!("/{method}").parse().map_err(|_| Status::invalid_argument(format!("{method} is not a method name")))?;
    let mut client = tonic::client::Grpc::new(connection).max_decoding_message_size(LARGEST);
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let mut answers = client.server_streaming(Request::new(request), path, ByName(found.output())).await?.into_inner();
    let mut all = Vec::new();
    while let Some(answer) = answers.message().await? {
        all.push(to_json(&answer));
    }
    Ok(all)
}

/// A codec for the protobuf messages of one type.
struct ByName(MessageDescriptor);

impl Codec for ByName {
    type Encode = DynamicMessage;
    type Decode = DynamicMessage;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self(self.0.clone())
    }

    fn decoder(&mut self) -> Self {
        Self(self.0.clone())
    }
}

impl Encoder for ByName {
    type Item = DynamicMessage;
    type Error = Status;

    fn encode(&mut self, message: DynamicMessage, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        message.encode(into).map_err(|error| Status::internal(error.to_string()))
    }
}

impl Decoder for ByName {
    type Item = DynamicMessage;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<DynamicMessage>, Status> {
        let bytes = from.copy_to_bytes(from.remaining());
        let message = DynamicMessage::decode(self.0.clone(), bytes);
        message.map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}
