//! Property tests: for any bytes, a check accepts the request or names a field. It never panics.

use std::time::Duration;

use howdah_core::job::ClusterSettings;
use howdah_proto::v1;
use proptest::prelude::*;
use prost::Message;

use super::check_all;
use crate::api::check::enqueue;

/// Generates valid protobuf that is no known message: fields with any number, type and value.
fn fields() -> impl Strategy<Value = Vec<u8>> {
    let number = prop_oneof![0..3_u64, Just(1 << 31), Just(u64::MAX), Just(i64::MIN as u64), any::<u64>()];
    let text = prop_oneof![
        any::<Vec<u8>>(),
        "[a-z]{0,9}".prop_map(String::into_bytes),
        any::<String>().prop_map(String::into_bytes),
    ];
    let leaf = prop_oneof![
        (1..12_u64, number).prop_map(|(field, value)| [varint(field << 3), varint(value)].concat()),
        (1..12_u64, any::<[u8; 8]>()).prop_map(|(field, value)| [varint(field << 3 | 1), value.to_vec()].concat()),
        (1..12_u64, text).prop_map(|(field, value)| delimited(field, &value)),
    ];
    leaf.prop_recursive(4, 64, 8, |inner| {
        (1..12_u64, prop::collection::vec(inner, 0..8)).prop_map(|(field, parts)| delimited(field, &parts.concat()))
    })
}

fn delimited(field: u64, bytes: &[u8]) -> Vec<u8> {
    [varint(field << 3 | 2), varint(bytes.len() as u64), bytes.to_vec()].concat()
}

fn varint(value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    prost::encoding::encode_varint(value, &mut bytes);
    bytes
}

/// Generates jobs with every field set, often to an invalid value.
fn job() -> impl Strategy<Value = v1::NewJob> {
    let seconds = prop_oneof![Just(0), Just(1), Just(i64::MAX), Just(i64::MIN), Just(253_402_300_799), any::<i64>()];
    let nanos = prop_oneof![Just(0), Just(-1), Just(999_999_999), Just(i32::MIN), any::<i32>()];
    let number = prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(1.0), any::<f64>()];
    let texts = (prop_oneof![Just("a".to_owned()), any::<String>()], any::<String>(), any::<String>());
    (texts, seconds, nanos, number, any::<(i32, u32, u8)>()).prop_map(
        |((task_type, key, header), seconds, nanos, number, (priority, max_attempts, kind))| {
            let duration = prost_types::Duration { seconds, nanos };
            let start = match kind % 3 {
                0 => Some(v1::new_job::Start::Delay(duration)),
                1 => Some(v1::new_job::Start::RunAt(prost_types::Timestamp { seconds, nanos })),
                _ => None,
            };
            let retry_policy = v1::RetryPolicy {
                initial_delay: (kind & 8 != 0).then_some(duration),
                multiplier: Some(number),
                max_delay: (kind & 16 != 0).then_some(duration),
                jitter: Some(number),
                kind: i32::from(kind % 7),
                delays: vec![duration; usize::from(kind % 3)],
            };
            v1::NewJob {
                task_type,
                headers: [(header, key.clone())].into(),
                key,
                priority,
                start,
                max_attempts,
                retry_policy: (kind & 32 != 0).then_some(retry_policy),
                timeout: (kind & 64 != 0).then_some(duration),
                fallback: "other".into(),
                ..Default::default()
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(bytes: Vec<u8>) {
        check_all(&bytes);
    }

    #[test]
    fn random_protobuf_never_panics_and_its_errors_are_short(parts in prop::collection::vec(fields(), 0..6)) {
        for error in check_all(&parts.concat()) {
            prop_assert!(error.field().is_some());
            prop_assert!(error.to_string().len() < 2000, "{error}");
        }
    }

    #[test]
    fn random_jobs_are_refused_or_within_bounds(job in job(), cut in any::<prop::sample::Index>(), flip: u8) {
        if let Ok((jobs, _)) = enqueue(vec![job.clone()], String::new(), &ClusterSettings::DEFAULT) {
            let job = &jobs[0];
            prop_assert!(job.timeout.is_none_or(|timeout| timeout >= Duration::from_millis(1)));
            prop_assert!(job.max_attempts.is_none_or(|attempts| (1..=1000).contains(&attempts)));
            prop_assert!(job.key.as_deref() != Some(""));
        }
        // Checking the message must not panic either if one byte is changed, or if the message ends before that byte.
        let mut bytes = delimited(1, &job.encode_to_vec());
        let index = cut.index(bytes.len());
        bytes[index] ^= flip;
        check_all(&bytes);
        check_all(&bytes[..index]);
    }
}
