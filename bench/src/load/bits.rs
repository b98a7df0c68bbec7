//! A bit set of job ids.

use std::collections::BTreeMap;

const WORDS: usize = 512;
/// Number of ids per page. The bits of a page take 4 KiB.
const PAGE: i64 = (WORDS * 64) as i64;

/// A set of job ids, with one bit per id, in pages of 32,768 ids. The ids of a run are close together, so ten million of them
/// take little more than a megabyte in a few hundred pages.
#[derive(Debug, Default)]
pub(crate) struct Bits {
    pages: BTreeMap<i64, Box<[u64; WORDS]>>,
    count: u64,
}

impl Bits {
    /// Adds an id. Returns false if it was already present.
    pub(crate) fn insert(&mut self, id: i64) -> bool {
        let page = self.pages.entry(id.div_euclid(PAGE)).or_insert_with(|| Box::new([0; WORDS]));
        let environment = id.rem_euclid(PAGE) as usize;
        let (word, bit) = (&mut page[environment / 64], 1 << (environment % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        self.count += u64::from(is_new);
        is_new
    }

    /// Number of ids.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Number of ids that `others` does not contain.
    pub(crate) fn missing_in(&self, others: &Self) -> u64 {
        let missing = self.pages.iter().map(|(page, ours)| {
            let theirs = others.pages.get(page);
            let word = |index: usize| theirs.map_or(0, |theirs| theirs[index]);
            ours.iter().enumerate().map(|(index, ours)| u64::from((ours & !word(index)).count_ones())).sum::<u64>()
        });
        missing.sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn insert_reports_each_id_as_new_once_also_at_page_boundaries() {
        let mut bits = Bits::default();
        for id in [0, 63, 64, PAGE - 1, PAGE, -1, i64::MAX, i64::MIN] {
            assert!(bits.insert(id), "{id}");
            assert!(!bits.insert(id), "{id}");
        }
        assert_eq!(bits.count(), 8);
    }

    #[test]
    fn missing_ids_are_counted_across_pages() {
        let (mut some, mut all) = (Bits::default(), Bits::default());
        for id in 1..=3 * PAGE {
            all.insert(id);
            if id % PAGE != 7 {
                some.insert(id);
            }
        }
        assert_eq!(all.missing_in(&some), 3);
        assert_eq!(some.missing_in(&all), 0);
        assert_eq!(all.missing_in(&Bits::default()), 3 * PAGE as u64);
    }
}
