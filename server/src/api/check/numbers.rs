//! Checks of counts and sizes, which are signed in the protocol.

use std::ops::RangeInclusive;

use howdah_core::error::Error;

/// Checks that the number of entries is inside `range`.
pub(in crate::api) fn entries(field: &str, count: usize, range: RangeInclusive<usize>) -> Result<(), Error> {
    if range.contains(&count) {
        return Ok(());
    }
    let problem = format!("has {count} entries; {} to {} are allowed", range.start(), range.end());
    Err(Error::invalid(field, problem))
}

/// Checks that a number is inside `range`; 0 means `default`.
pub(in crate::api) fn or_default(
    field: &str,
    value: i64,
    default: i64,
    range: RangeInclusive<i64>,
) -> Result<i64, Error> {
    within(field, if value == 0 { default } else { value }, range)
}

/// Checks that a number is inside `range`.
pub(in crate::api) fn within(field: &str, value: i64, range: RangeInclusive<i64>) -> Result<i64, Error> {
    if range.contains(&value) {
        return Ok(value);
    }
    let problem = format!("is {value}; {} to {} is allowed", range.start(), range.end());
    Err(Error::invalid(field, problem))
}

/// Checks a page size as in AIP-158: 0 means `default`, and more than `max` means `max`.
pub(in crate::api) fn page_size(value: i32, default: usize, max: usize) -> Result<usize, Error> {
    match usize::try_from(value) {
        Ok(0) => Ok(default),
        Ok(size) => Ok(size.min(max)),
        Err(_) => Err(Error::invalid("page_size", format!("is {value}; 0 to {max} is allowed"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_size_is_defaulted_and_cut_but_never_negative() {
        assert_eq!(page_size(0, 100, 1000).unwrap(), 100);
        assert_eq!(page_size(7, 100, 1000).unwrap(), 7);
        assert_eq!(page_size(i32::MAX, 100, 1000).unwrap(), 1000);
        for value in [-1, i32::MIN] {
            assert_eq!(page_size(value, 100, 1000).unwrap_err().field(), Some("page_size"));
        }
    }

    #[test]
    fn an_error_about_the_length_of_a_list_names_both_bounds() {
        let error = entries("jobs", 0, 1..=10_000).unwrap_err();
        assert_eq!(error.to_string(), "jobs has 0 entries; 1 to 10000 are allowed");
        assert!(entries("jobs", 10_001, 1..=10_000).is_err());
        assert!(entries("jobs", 10_000, 1..=10_000).is_ok());
    }
}
