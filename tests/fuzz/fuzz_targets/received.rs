#![no_main]

use std::io::Write as _;

use flate2::{Compression, write::GzEncoder};
use libfuzzer_sys::{
    arbitrary::{Arbitrary, Result, Unstructured},
    fuzz_target,
};

/// Maximum size of a message before compression, above the broker's limit in this test.
const LARGEST: usize = 100 << 10;
/// Size at which a generated body ends. The last message may exceed it.
const BODY: usize = 300 << 10;
/// Number of chunks before the last chunk, which contains the rest of the body.
const CHUNKS: usize = 100;

/// The body of a gRPC request: length-prefixed messages, cut into chunks.
#[derive(Debug)]
struct Body {
    is_stream: bool,
    chunks: Vec<Vec<u8>>,
}

impl<'a> Arbitrary<'a> for Body {
    fn arbitrary(input: &mut Unstructured<'a>) -> Result<Self> {
        let is_stream = input.arbitrary()?;
        let cuts: [u16; 4] = input.arbitrary()?;
        let mut bytes = Vec::new();
        while !input.is_empty() && bytes.len() < BODY {
            message(input, &mut bytes)?;
        }
        let mut chunks = Vec::new();
        let mut rest = &bytes[..];
        for cut in cuts.into_iter().cycle().take(CHUNKS) {
            let (chunk, later) = rest.split_at(rest.len().min(cut.into()));
            chunks.push(chunk.to_vec());
            rest = later;
        }
        chunks.push(rest.to_vec());
        Ok(Self { is_stream, chunks })
    }
}

/// Appends one message, made large by repeating a few bytes of the fuzzer's input. The flag, length and compression of
/// the message may be wrong.
fn message(input: &mut Unstructured<'_>, bytes: &mut Vec<u8>) -> Result<()> {
    let (is_packed, flag, more, times): (bool, u8, i8, u8) = input.arbitrary()?;
    let part: &[u8] = input.arbitrary()?;
    let mut message = part.repeat(usize::from(times).pow(2) + 1);
    message.truncate(LARGEST);
    if is_packed {
        let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
        message = packer.write_all(&message).and_then(|()| packer.finish()).unwrap_or_default();
    }
    let more = if more % 4 == 0 { i64::from(more / 4) } else { 0 };
    let length = u32::try_from(message.len() as i64 + more).unwrap_or_default();
    bytes.push(if flag < 4 { flag } else { is_packed.into() });
    bytes.extend(length.to_be_bytes());
    bytes.extend(message);
    Ok(())
}

fuzz_target!(|body: Body| howdah_fuzz::run(|| howdah_server::fuzz::received(body.chunks, body.is_stream)));
