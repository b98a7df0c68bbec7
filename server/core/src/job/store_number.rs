//! The number of a store, which the ids of its jobs begin with; and the closing of a store.

use std::{fmt, time::SystemTime};

/// Number of ids per store: store `n` gives out `n * IDS + 1` to `n * IDS + IDS - 1`. It is a power of ten, so that
/// people can read the store's number in an id: job 17 of store 3 is 300000000000017. `howdah.ids_of_a_store()` has the
/// same value; a test compares them.
pub const IDS: i64 = 100_000_000_000_000;

/// The number of a store, 0 to [`StoreNumber::MOST`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StoreNumber(u16);

impl StoreNumber {
    /// The highest number. The ids of all stores are below 2^53: JavaScript, `jq` and other programs that keep numbers as
    /// floating point read them exactly.
    pub const MOST: u16 = 89;

    /// Returns `None` for a number above [`StoreNumber::MOST`].
    pub const fn new(number: u16) -> Option<Self> {
        if number <= Self::MOST { Some(Self(number)) } else { None }
    }

    /// Returns the number of the store that has created this id. Returns `None` if no store can have created it.
    pub fn of_id(id: i64) -> Option<Self> {
        u16::try_from(id.checked_div(IDS)?).ok().filter(|_| id > 0).and_then(Self::new)
    }

    pub const fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for StoreNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

// The ids of the last store end below 2^53.
const _: () = assert!((StoreNumber::MOST as i64 + 1) * IDS <= 1 << 53);

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
    fn an_id_names_its_store() {
        let of = |id| StoreNumber::of_id(id).map(StoreNumber::get);
        assert_eq!([of(1), of(IDS - 1), of(IDS), of(IDS + 1), of(300_000_000_000_017)], [0, 0, 1, 1, 3].map(Some));
        assert_eq!(of(89 * IDS + IDS - 1), Some(89));
        assert_eq!([of(90 * IDS), of(i64::MAX), of(0), of(-1), of(i64::MIN)], [None; 5]);
    }

    #[test]
    fn a_number_is_at_most_89() {
        assert_eq!(StoreNumber::new(89).map(StoreNumber::get), Some(89));
        assert_eq!(StoreNumber::new(90), None);
    }

    #[test]
    fn a_refusal_says_which_store_since_when_and_what_opens_it() {
        let closed = Closed { since: UNIX_EPOCH + Duration::from_secs(86_400), name: "shop".into(), by: String::new() };
        assert_eq!(
            closed.refusal(),
            "store shop is closed to new jobs since 1970-01-02 00:00:00Z; `howdah store open shop` opens it"
        );
    }
}
