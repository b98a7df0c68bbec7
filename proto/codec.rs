//! Codec of all services: prost, with a bound on the memory of a decoded message.
//!
//! A limit on the message size bounds bytes, but not memory. For example, 16 MiB can contain 8 million empty jobs of two bytes
//! each. They take 2.6 GB when decoded, but only 16 KiB when compressed with gzip. So the codec counts fields before it decodes
//! a message. Its bounds are far above the limits of the protocol, which are checked later with better error messages.

use prost::{
    Message,
    bytes::Buf,
    encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field},
};
use tonic::{
    Status,
    codec::{BufferSettings, Codec, DecodeBuf, Decoder},
};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// Maximum number of message, string and bytes fields in a message.
pub const ENTRIES: usize = 1 << 17;
/// Maximum number of message, string and bytes fields nested in the fields of a message. 10,000 jobs with 64 headers each fit.
pub const NESTED: usize = 1 << 20;
/// Messages up to this size in bytes are not counted, because they take at most about 10 MB when decoded.
const SMALL: usize = 64 << 10;

/// [`ProstCodec`] with a bounded decoder.
#[derive(Clone, Debug)]
pub struct BoundedCodec<T, U>(ProstCodec<T, U>);

impl<T, U> Default for BoundedCodec<T, U> {
    fn default() -> Self {
        Self(ProstCodec::default())
    }
}

impl<T, U> Codec for BoundedCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = BoundedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        self.0.encoder()
    }

    fn decoder(&mut self) -> Self::Decoder {
        BoundedDecoder(self.0.decoder())
    }
}

/// Decoder that rejects a message with too many fields before it decodes the message.
#[derive(Clone, Debug)]
pub struct BoundedDecoder<U>(ProstDecoder<U>);

impl<U: Message + Default> Decoder for BoundedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // tonic passes the whole message as one chunk, so `chunk` returns all of its bytes.
        let bytes = buffer.chunk();
        if bytes.len() > SMALL && bytes.len() == buffer.remaining() {
            bound(bytes)?;
        }
        self.0.decode(buffer)
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.0.buffer_settings()
    }
}

/// Rejects a message with too many fields. Accepts invalid protobuf, which the decoder rejects later.
fn bound(message: &[u8]) -> Result<(), Status> {
    let Entries { entries, nested } = count(message);
    if entries > ENTRIES || nested > NESTED {
        return Err(Status::invalid_argument(format!(
            "the message has more than {ENTRIES} entries, or {NESTED} fields in them; send several smaller messages"
        )));
    }
    Ok(())
}

/// Numbers of message, string and bytes fields of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entries {
    /// Fields of the message itself.
    pub entries: usize,
    /// Fields nested in the fields of the message.
    pub nested: usize,
}

/// Counts the fields of a message, up to the bounds. Strings and bytes are scanned as if they were messages, up to the first byte
/// that is not valid protobuf.
pub fn count(mut message: impl Buf) -> Entries {
    let mut count = Entries::default();
    fields(&mut message, &mut |entry| {
        count.entries += 1;
        fields(entry, &mut |_| {
            count.nested += 1;
            count.nested <= NESTED
        });
        count.entries <= ENTRIES && count.nested <= NESTED
    });
    count
}

/// Calls `each` with every length-delimited field of the message `rest`, until `each` returns false.
fn fields(rest: &mut dyn Buf, each: &mut dyn FnMut(&mut dyn Buf) -> bool) {
    let mut rest = rest;
    while let Ok((number, kind)) = decode_key(&mut rest) {
        if kind == WireType::LengthDelimited {
            let Ok(length) = decode_varint(&mut rest) else { return };
            let Some(length) = usize::try_from(length).ok().filter(|&length| length <= rest.remaining()) else {
                return;
            };
            let mut field = (&mut rest).take(length);
            if !each(&mut field) {
                return;
            }
            let left = field.limit();
            rest.advance(left);
        } else if skip_field(kind, number, &mut rest, DecodeContext::default()).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::v1;

    /// Encodes a message that contains `field` `times` times, as field number 1.
    fn repeated(field: &[u8], times: usize) -> Vec<u8> {
        [&[10, field.len() as u8], field].concat().repeat(times)
    }

    #[test]
    fn the_largest_honest_messages_pass() {
        let headers: HashMap<_, _> = (0..64).map(|i| (i.to_string(), "v".to_owned())).collect();
        let job = v1::NewJob { task_type: "a".into(), headers, key: "k".into(), ..Default::default() };
        let jobs = v1::EnqueueJobsRequest { jobs: vec![job; 10_000], request_key: "k".into() };
        assert!(bound(&jobs.encode_to_vec()).is_ok());

        let held = vec![v1::Lease::new(i64::MAX, i64::MIN); 100_000];
        let subscribe = v1::Subscribe { held, ..Default::default() };
        let message = Some(v1::work_request::Message::Subscribe(subscribe));
        assert!(bound(&v1::WorkRequest { message }.encode_to_vec()).is_ok());

        let ids = v1::CancelJobsRequest { ids: (0..10_000).map(|i| i64::MAX - i).collect(), ..Default::default() };
        assert!(bound(&ids.encode_to_vec()).is_ok());

        let payload = v1::NewJob { payload: repeated(b"", 1 << 19).into(), ..Default::default() };
        let jobs = v1::EnqueueJobsRequest { jobs: vec![payload; 16], ..Default::default() };
        assert!(bound(&jobs.encode_to_vec()).is_ok(), "the content of payloads is not counted");
    }

    #[test]
    fn millions_of_empty_entries_are_refused_at_either_depth() {
        assert!(bound(&repeated(b"", ENTRIES)).is_ok());
        assert!(bound(&repeated(b"", 8 << 20)).is_err());
        // Two messages with too many nested fields: all in one field of the message, or 60 in each of 100,000 fields.
        let inside = repeated(b"", 2 << 20);
        let mut one = vec![10];
        prost::encoding::encode_varint(inside.len() as u64, &mut one);
        one.extend(&inside);
        assert!(bound(&one).is_err());
        assert!(bound(&repeated(&repeated(b"", 60), 100_000)).is_err());
    }

    #[test]
    fn junk_is_left_to_the_decoder() {
        for junk in
            [&[0xff; 100][..], &[10, 200], &[10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1], &[11; 300]]
        {
            assert!(bound(junk).is_ok());
        }
    }
}
