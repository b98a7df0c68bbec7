//! Each payload contains the due time of its job, so that no table of sent jobs is needed.

use bytes::{BufMut as _, Bytes, BytesMut};

/// Size in bytes of a stamp (the due time in a payload), and of the smallest payload.
pub(crate) const STAMP_BYTES: usize = 8;
/// Stamp of a job that was enqueued before the trial's clock started. The job counts as due at the start of the measurement.
pub(crate) const WAITING: u64 = u64::MAX;
const FILLER: u8 = 0x5a;

/// Creates a payload that contains the due time, in nanoseconds of the trial's clock.
pub(crate) fn payload(due: u64, bytes: usize) -> Bytes {
    let mut payload = BytesMut::with_capacity(bytes);
    payload.put_u64_le(due);
    payload.put_bytes(FILLER, bytes.saturating_sub(STAMP_BYTES));
    payload.freeze()
}

/// Reads the due time; `None` for a payload that the benchmark did not create.
pub(crate) fn due(payload: &[u8], bytes: usize) -> Option<u64> {
    let (stamp, filler) = payload.split_first_chunk::<STAMP_BYTES>()?;
    // Check only the first and the last filler byte: checking all bytes of a large payload would cost more than the
    // job.
    let is_ours = payload.len() == bytes && filler.first().is_none_or(|&b| b == FILLER);
    (is_ours && filler.last().is_none_or(|&b| b == FILLER)).then(|| u64::from_le_bytes(*stamp))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_has_its_due_time_and_a_foreign_payload_has_none() {
        for bytes in [STAMP_BYTES, STAMP_BYTES + 1, 64] {
            let payload = payload(12_345, bytes);
            assert_eq!(payload.len(), bytes);
            assert_eq!(due(&payload, bytes), Some(12_345));
            assert_eq!(due(&payload, bytes + 1), None);
        }
        assert_eq!(due(b"", 64), None);
        assert_eq!(due(&[1; 64], 64), None);
    }
}
