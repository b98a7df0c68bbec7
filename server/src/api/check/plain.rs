//! Checks of options by their rows in `howdah_core::job::options`: bounds of the plain options, and options that need another one.

use std::mem::take;

use howdah_core::{
    error::Error,
    job::{
        ClusterSettings, JobOptions,
        options::{JobOption, OPTIONS, OptionKind},
    },
    plain_options,
};
use howdah_proto::v1;

use super::{numbers, text};

/// Checks that each option is set together with an option that it needs.
pub(super) fn needs(job: &v1::NewJob) -> Result<(), Error> {
    let alone = |option: &&JobOption| is_set(job, option.name) && !option.needs.iter().any(|name| is_set(job, name));
    match OPTIONS.iter().filter(|option| !option.needs.is_empty()).find(alone) {
        Some(option) => Err(Error::invalid(option.name, option.lack())),
        None => Ok(()),
    }
}

/// Whether a job sets the option `name`. Knows only options that need another option, and the options that they need.
fn is_set(job: &v1::NewJob, name: &str) -> bool {
    macro_rules! is_set {
        (($($other:ident)+) $($plain:ident)+) => {
            match name {
                // `keep` is the policy of every job.
                "key_policy" => job.key_policy > v1::KeyPolicy::Keep as i32,
                $(stringify!($other) => given(&job.$other),)+
                $(stringify!($plain) => given(&job.$plain),)+
                _ => false,
            }
        };
    }
    plain_options!(is_set key key_version key_hold key_debounce_limit on_holder_failure next_stages stage_payload
        after after_local on_dependency_failure)
}

fn given<T: Default + PartialEq>(value: &T) -> bool {
    *value != T::default()
}

/// Checks the plain options, and moves them from the message to the job options.
pub(super) fn options(job: &mut v1::NewJob, limits: &ClusterSettings) -> Result<JobOptions, Error> {
    macro_rules! checked {
        (() $($name:ident)+) => {
            JobOptions { $($name: Plain::checked(take(&mut job.$name), stringify!($name), limits)?,)+ ..JobOptions::default() }
        };
    }
    Ok(plain_options!(checked))
}

/// Value of a plain option in the protocol.
trait Plain: Default + PartialEq + Sized {
    /// Value of the option in [`JobOptions`].
    type Stored;

    /// Checks the value by the kind of its option.
    fn check(self, name: &str, kind: OptionKind, limits: &ClusterSettings) -> Result<Self::Stored, Error>;

    /// Checks the value. Returns `None` if it is not set.
    fn checked(self, name: &str, limits: &ClusterSettings) -> Result<Option<Self::Stored>, Error> {
        match JobOption::find(name) {
            Some(option) if given(&self) => self.check(name, option.kind, limits).map(Some),
            _ => Ok(None),
        }
    }
}

impl Plain for String {
    type Stored = Self;

    fn check(self, name: &str, kind: OptionKind, limits: &ClusterSettings) -> Result<Self, Error> {
        let most = if let OptionKind::Text(bytes) = kind { bytes } else { limits.key_bytes };
        text::plain(name, &self, most)?;
        Ok(self)
    }
}

impl Plain for u32 {
    type Stored = i32;

    fn check(self, name: &str, kind: OptionKind, _: &ClusterSettings) -> Result<i32, Error> {
        let OptionKind::Integer(_, most) = kind else {
            return Err(Error::Internal(format!("bug: {name} is a number")));
        };
        Ok(numbers::within(name, self.into(), 0..=most)? as i32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_that_needs_another_one_is_refused_alone() {
        use howdah_proto::json::from_words;
        for option in OPTIONS.iter().filter(|option| !option.needs.is_empty()) {
            let value = match option.kind {
                OptionKind::Word(words) => words[words.len() - 1],
                OptionKind::Duration(..) => "1h",
                _ => "1",
            };
            let given = [(option.name.to_owned(), value.to_owned())];
            let error = needs(&from_words("NewJob", &given).unwrap()).expect_err(option.name);
            assert_eq!(error.field(), Some(option.name));
        }
    }
}
