//! Stores that are closed to new jobs.

use std::time::SystemTime;

/// When, by whom and under which name a store was closed. Its existing jobs continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closed {
    /// Time of the closing, by the clock of the database.
    pub since: SystemTime,
    /// Name of the store when it was closed.
    pub name: String,
    /// Principal that closed the store; empty if authentication was off. Shown only to callers who may list stores.
    pub by: String,
}

impl Closed {
    /// Error for callers with new jobs, with the same text as `howdah.refuse_closed`.
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
