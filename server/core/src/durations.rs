//! Formats durations for people, in commands, explanations and on the page. Settings have a different format, which
//! keeps every unit and can be parsed (`30days`).

use std::time::Duration;

/// Formats a duration with its two largest units: `3m 12s`, `1d 2h`; below one second as `250ms`.
pub fn short(duration: Duration) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let seconds = duration.as_secs();
    let Some(at) = UNITS.iter().position(|(unit, _)| seconds >= *unit) else {
        return format!("{}ms", duration.as_millis());
    };
    let (unit, name) = UNITS[at];
    let first = format!("{}{name}", seconds / unit);
    match UNITS.get(at + 1).map(|(smaller, name)| (seconds % unit / smaller, name)) {
        Some((rest, name)) if rest > 0 => format!("{first} {rest}{name}"),
        _ => first,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_their_two_largest_units() {
        for (ms, text) in [
            (0, "0ms"),
            (999, "999ms"),
            (1_000, "1s"),
            (65_000, "1m 5s"),
            (192_500, "3m 12s"),
            (3_605_000, "1h"),
            (90_061_000, "1d 1h"),
            (86_461_000, "1d"),
            (871_200_000, "10d 2h"),
        ] {
            assert_eq!(short(Duration::from_millis(ms)), text);
        }
    }
}
