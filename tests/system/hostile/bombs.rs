//! Tests messages that are small on the wire and large in memory. The broker is a separate process, so that its memory can be
//! measured.

use tonic::{Code, codegen::Bytes};

use super::{
    assert_nothing_stored, assert_serves, channel,
    raw::{self, CALLS, STREAM_ENQUEUE, WORK},
    refused,
};
use crate::support::{Program, database, sized};

const MIB: u64 = 1 << 20;

#[tokio::test]
async fn a_gzip_bomb_is_not_unpacked() {
    let database = database().await;
    let broker = Program::serve(&database, &[]).await;
    let grpc = broker.address();
    let grpc = format!("http://{grpc}");
    assert_serves(&grpc).await;
    let channel = channel(&grpc).await;
    let before = broker.program.resident();
    // 96 MiB that gzip compresses to 96 KiB. The broker refuses messages above 16 MiB. (Building a larger message would take
    // too long.)
    let bomb = Bytes::from(vec![0; 96 << 20]);
    let mut status = refused(raw::call_gzipped(&channel, CALLS[0], bomb.clone())).await;
    // The response may arrive while the client still sends. The client then sometimes reports a broken stream, and the test
    // tries again.
    for _ in 0..20 {
        if status.code() != Code::Unknown {
            break;
        }
        let channel = self::channel(&grpc).await;
        status = refused(raw::call_gzipped(&channel, CALLS[0], bomb.clone())).await;
    }
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    let grown = broker.program.resident().saturating_sub(before);
    assert!(grown < 80 * MIB, "the broker grew by {} MiB", grown / MIB);
    assert_serves(&grpc).await;
}

/// Returns empty messages in field 1. Each takes two bytes on the wire, and some hundred bytes as a job in memory.
fn empty_entries(bytes: usize) -> Bytes {
    [0x0a, 0x00].repeat(bytes / 2).into()
}

#[tokio::test]
async fn millions_of_empty_entries_in_a_message_are_refused_before_they_are_made() {
    let database = database().await;
    let broker = Program::serve(&database, &[]).await;
    let grpc = broker.address();
    let grpc = format!("http://{grpc}");
    let channel = channel(&grpc).await;
    assert_nothing_stored(&database).await;
    // Sends junk of the same size first, so that `before` includes the memory that any message of this size takes.
    refused(raw::call(&channel, CALLS[0], vec![0xff; 16 << 20])).await;
    let before = broker.program.resident();
    let entries = empty_entries(16 << 20);
    for &path in &[CALLS[0], CALLS[6], CALLS[7], CALLS[8]][..sized(2, 4)] {
        for status in [
            refused(raw::call(&channel, path, entries.clone())).await,
            refused(raw::call_gzipped(&channel, path, entries.clone())).await,
        ] {
            assert_eq!(status.code(), Code::InvalidArgument, "{path}: {status:?}");
        }
    }
    // Sends empty entries within one job, one settle and one subscription.
    let inside = |tag: u8| {
        let mut message = vec![tag];
        prost::encoding::encode_varint(8 << 20, &mut message);
        message.extend(empty_entries(8 << 20));
        Bytes::from(message)
    };
    for (path, tag) in [(STREAM_ENQUEUE, 0x12), (WORK, 0x0a), (WORK, 0x1a), (WORK, 0x22)] {
        let end = raw::stream_end(&channel, path, tokio_stream::iter([inside(tag)])).await;
        let status = refused(std::future::ready(end)).await;
        assert_eq!(status.code(), Code::InvalidArgument, "{path} {tag}: {status:?}");
    }
    let grown = broker.program.resident().saturating_sub(before);
    assert!(grown < 128 * MIB, "the broker grew by {} MiB", grown / MIB);
    assert_serves(&grpc).await;
}

#[tokio::test]
async fn many_messages_full_of_entries_leave_no_memory_behind() {
    let database = database().await;
    let broker = Program::serve(&database, &[]).await;
    let grpc = broker.address();
    let grpc = format!("http://{grpc}");
    assert_serves(&grpc).await;
    let channel = channel(&grpc).await;
    let before = broker.program.resident();
    // 32,768 empty jobs, the maximum number that the broker decodes before it counts the jobs and refuses them.
    let entries = [0x12, 0x00].repeat(32 << 10);
    let messages = tokio_stream::iter(vec![Bytes::from(entries); sized(40, 200)]);
    raw::stream_end(&channel, STREAM_ENQUEUE, messages).await.expect("each gets an individual response");
    let grown = broker.program.resident().saturating_sub(before);
    assert!(grown < 128 * MIB, "the broker grew by {} MiB", grown / MIB);
    assert_serves(&grpc).await;
}
