//! The deadline that a caller sends with a call (`grpc-timeout`).

use std::time::{Duration, Instant};

use tonic::metadata::MetadataMap;

/// Maximum number of digits of the value of `grpc-timeout`.
const DIGITS: usize = 8;

/// Time at which the caller stops waiting; `None` without a deadline.
pub(super) fn deadline(metadata: &MetadataMap) -> Option<Instant> {
    let timeout = parse(metadata.get("grpc-timeout")?.to_str().ok()?)?;
    Instant::now().checked_add(timeout)
}

/// Parses a value of `grpc-timeout`: a number and a unit, such as `250m` for 250 ms.
fn parse(text: &str) -> Option<Duration> {
    let (amount, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let amount: u64 = amount.parse().ok().filter(|_| amount.len() <= DIGITS)?;
    Some(match unit {
        "H" => Duration::from_secs(amount * 3600),
        "M" => Duration::from_secs(amount * 60),
        "S" => Duration::from_secs(amount),
        "m" => Duration::from_millis(amount),
        "u" => Duration::from_micros(amount),
        "n" => Duration::from_nanos(amount),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_has_a_unit() {
        let parsed = ["2H", "3M", "4S", "5m", "6u", "7n"].map(parse);
        let secs = Duration::from_secs;
        let expected = [secs(7200), secs(180), secs(4), Duration::from_millis(5), Duration::from_micros(6)];
        assert_eq!(parsed[..5], expected.map(Some));
        assert_eq!(parsed[5], Some(Duration::from_nanos(7)));
    }

    #[test]
    fn junk_is_no_timeout() {
        assert_eq!(["", "S", "1", "-1S", "123456789S", "1x", "1ß"].map(parse), [None; 7]);
    }
}
