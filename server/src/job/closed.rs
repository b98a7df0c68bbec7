//! A store that is closed to new jobs.

use std::time::SystemTime;

/// Since when, as what store, and by whom. Jobs that are there already go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closed {
    /// When it was closed, by the clock of its database.
    pub since: SystemTime,
    /// The name under which it was closed.
    pub name: String,
    /// Who closed it, for those who may list stores; empty: nobody in particular.
    pub by: String,
}

impl Closed {
    /// What callers with new jobs are told; as `howdah.refuse_closed` says it.
    pub fn refusal(&self) -> String {
        let Self { since, name, .. } = self;
        let since = humantime::format_rfc3339_seconds(*since).to_string().replace('T', " ");
        format!("store {name} is closed to new jobs since {since}; `howdah store open {name}` opens it")
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn a_refusal_says_which_store_since_when_and_what_opens_it() {
        let closed = Closed { since: UNIX_EPOCH + Duration::from_secs(86_400), name: "shop".into(), by: String::new() };
        assert_eq!(
            closed.refusal(),
            "store shop is closed to new jobs since 1970-01-02 00:00:00Z; `howdah store open shop` opens it"
        );
    }
}
