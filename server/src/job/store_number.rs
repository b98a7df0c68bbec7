//! The number of a store, which the ids of its jobs begin with.

use std::fmt;

/// Ids of a store: store `n` gives out `n * IDS + 1` to `n * IDS + IDS - 1`. A power of ten, so that people read the
/// number in an id: job 17 of store 3 is 3000000000000017. The same stands in `howdah.ids_of_a_store()`; a test compares.
pub const IDS: i64 = 1_000_000_000_000_000;

/// The number of a store, 0 to [`StoreNumber::MOST`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StoreNumber(u16);

impl StoreNumber {
    /// The highest number. The ids of all stores are positive 64-bit numbers.
    pub const MOST: u16 = 4_095;

    /// The number, if there is such a store.
    pub const fn new(number: u16) -> Option<Self> {
        if number <= Self::MOST { Some(Self(number)) } else { None }
    }

    /// The number of the store that an id names. Ids are positive; those above all stores name none.
    pub fn of_id(id: i64) -> Option<Self> {
        u16::try_from(id.checked_div(IDS)?).ok().filter(|_| id > 0).and_then(Self::new)
    }

    /// The number.
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for StoreNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

// The last id of the last store is a positive 64-bit number.
const _: () = assert!((i64::MAX / IDS) > StoreNumber::MOST as i64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_names_its_store() {
        let of = |id| StoreNumber::of_id(id).map(StoreNumber::get);
        assert_eq!([of(1), of(IDS - 1), of(IDS), of(IDS + 1), of(3_000_000_000_000_017)], [0, 0, 1, 1, 3].map(Some));
        assert_eq!(of(4_095 * IDS + IDS - 1), Some(4_095));
        assert_eq!([of(4_096 * IDS), of(i64::MAX), of(0), of(-1), of(i64::MIN)], [None; 5]);
    }

    #[test]
    fn a_number_is_at_most_4095() {
        assert_eq!(StoreNumber::new(4_095).map(StoreNumber::get), Some(4_095));
        assert_eq!(StoreNumber::new(4_096), None);
    }
}
