//! Messages and calls of the protocol by their names, from its descriptors.

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
// They are compiled in; every run reads them.
#[allow(clippy::expect_used)]
pub static POOL: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(howdah_proto::FILE_DESCRIPTOR_SET).expect("the compiled descriptors"));

/// The largest message.
const LARGEST: usize = 256 << 20;

/// The method of a name such as `howdah.v1.JobService/GetJob`.
pub fn method(name: &str) -> Option<MethodDescriptor> {
    let (service, method) = name.trim_start_matches('/').split_once('/')?;
    POOL.get_service_by_name(service)?.methods().find(|found| found.name() == method)
}

/// A message as JSON, with the names of the protocol.
pub fn to_json(message: &DynamicMessage) -> Value {
    let options = SerializeOptions::new().use_proto_field_name(true);
    message.serialize_with_options(serde_json::value::Serializer, &options).unwrap_or(Value::Null)
}

/// Reads a message from JSON.
pub fn from_json(of: MessageDescriptor, json: &Value) -> Result<DynamicMessage, String> {
    DynamicMessage::deserialize(of, json).map_err(|error| error.to_string())
}

/// A message in JSON with the names of the protocol, whichever names it had; what is no such message stays as it is.
pub(crate) fn normal(of: &MessageDescriptor, json: &Value) -> Value {
    from_json(of.clone(), json).map_or_else(|_| json.clone(), |message| to_json(&message))
}

/// Changes the messages of this name in a value, one or a list.
pub(crate) fn normalize(name: &str, value: Option<&mut Value>) {
    let (Some(of), Some(value)) = (POOL.get_message_by_name(name), value) else { return };
    match value {
        Value::Array(list) => list.iter_mut().for_each(|one| *one = normal(&of, one)),
        one => *one = normal(&of, one),
    }
}

/// Reads a message from its bytes.
pub fn decode(of: MessageDescriptor, bytes: Bytes) -> Option<DynamicMessage> {
    DynamicMessage::decode(of, bytes).ok()
}

/// The name of a code: `INVALID_ARGUMENT`.
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

/// Makes a call with one request, and reads all of its answers.
pub async fn call(connection: Connection, method: &str, request: &Value) -> Result<Vec<Value>, Status> {
    let found = self::method(method).ok_or_else(|| Status::unimplemented(format!("no method {method}")))?;
    let request = from_json(found.input(), request).map_err(Status::invalid_argument)?;
    let path: PathAndQuery =
        format!("/{method}").parse().map_err(|_| Status::invalid_argument(format!("the method {method}")))?;
    let mut client = tonic::client::Grpc::new(connection).max_decoding_message_size(LARGEST);
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let mut answers = client.server_streaming(Request::new(request), path, ByName(found.output())).await?.into_inner();
    let mut all = Vec::new();
    while let Some(answer) = answers.message().await? {
        all.push(to_json(&answer));
    }
    Ok(all)
}

/// The codec of messages by name.
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
