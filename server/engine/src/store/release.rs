//! Comparison of releases as semantic versions.

use std::cmp::Ordering;

/// Release of this broker.
pub(super) const OURS: &str = env!("CARGO_PKG_VERSION");

/// Compares two releases. A component that is not a number sorts before any number. So an invalid release in the
/// database counts as older, and this broker replaces its functions.
pub(super) fn order(left: &str, right: &str) -> Ordering {
    let (left, right) = (parts(left), parts(right));
    left.0.cmp(&right.0).then_with(|| match (left.1, right.1) {
        // A pre-release such as 1.0.0-rc.1 sorts before the release 1.0.0.
        (None, None) => Ordering::Equal,
        (None, Some(_)) => Ordering::Greater,
        (Some(_), None) => Ordering::Less,
        (Some(left), Some(right)) => left.split('.').map(identifier).cmp(right.split('.').map(identifier)),
    })
}

/// Splits a release into its three numbers and its pre-release. Ignores build metadata after `+`.
fn parts(release: &str) -> ([Option<u64>; 3], Option<&str>) {
    let release = release.split('+').next().unwrap_or_default();
    let (numbers, pre) = release.split_once('-').map_or((release, None), |(numbers, pre)| (numbers, Some(pre)));
    let mut numbers = numbers.split('.').map(|number| number.parse().ok());
    (std::array::from_fn(|_| numbers.next().flatten()), pre)
}

/// Returns the sort key of a pre-release identifier: numbers sort before words, and numerically.
fn identifier(part: &str) -> (bool, u64, &str) {
    part.parse().map_or((true, 0, part), |number| (false, number, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_in_the_order_of_their_numbers() {
        let ordered = [
            "?",
            "0.1.0-alpha",
            "0.1.0-rc.2",
            "0.1.0-rc.10",
            "0.1.0",
            "0.1.1",
            "0.2.0",
            "0.10.0",
            "1.0.0-rc.1",
            "1.0.0",
        ];
        for (at, left) in ordered.iter().enumerate() {
            for (other, right) in ordered.iter().enumerate() {
                assert_eq!(order(left, right), at.cmp(&other), "{left} and {right}");
            }
        }
        assert_eq!(order("1.0.0+a", "1.0.0+b"), Ordering::Equal);
        assert_eq!(order(OURS, OURS), Ordering::Equal);
    }
}
