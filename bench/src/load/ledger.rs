//! Counts enqueued, delivered and settled jobs by id to find errors.

use std::collections::BTreeMap;

use parking_lot::Mutex;

/// Sets of the ids of enqueued, delivered and settled jobs. Each set is locked once per message, not once per job.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    enqueued: Mutex<Bits>,
    delivered: Mutex<Delivered>,
    settled: Mutex<Bits>,
}

#[derive(Debug, Default)]
struct Delivered {
    ids: Bits,
    again: u64,
    damaged: u64,
}

/// Numbers of lost, duplicated and unexpected jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Faults {
    /// Jobs enqueued but never settled.
    pub(crate) lost: u64,
    /// Deliveries of a job after its first one.
    pub(crate) duplicated: u64,
    /// Jobs that were never enqueued or arrived changed.
    pub(crate) unexpected: u64,
}

impl Faults {
    /// Whether no job was lost, duplicated or unexpected.
    pub(crate) fn none(self) -> bool {
        self == Self::default()
    }
}

impl std::ops::AddAssign for Faults {
    fn add_assign(&mut self, more: Self) {
        self.lost += more.lost;
        self.duplicated += more.duplicated;
        self.unexpected += more.unexpected;
    }
}

impl Ledger {
    /// Records jobs that the broker stored. Returns the number of new ones.
    pub(crate) fn enqueued(&self, ids: impl Iterator<Item = i64>) -> u64 {
        self.enqueued.lock().extend(ids)
    }

    /// Records jobs that a worker received. The flag of each job tells whether its payload is intact.
    pub(crate) fn delivered(&self, jobs: impl Iterator<Item = (i64, bool)>) {
        let mut delivered = self.delivered.lock();
        for (id, is_whole) in jobs {
            let is_new = delivered.ids.insert(id);
            delivered.again += u64::from(!is_new);
            delivered.damaged += u64::from(!is_whole);
        }
    }

    /// Records settled jobs that the broker confirmed. Returns the number of new ones.
    pub(crate) fn settled(&self, ids: impl Iterator<Item = i64>) -> u64 {
        self.settled.lock().extend(ids)
    }

    /// Counts lost, duplicated and unexpected jobs. The `waiting` jobs are still in the queue, and so are not lost.
    pub(crate) fn faults(&self, waiting: u64) -> Faults {
        let (enqueued, delivered, settled) = (self.enqueued.lock(), self.delivered.lock(), self.settled.lock());
        let open = enqueued.missing_in(&settled);
        let unknown = delivered.ids.missing_in(&enqueued) + delivered.damaged;
        Faults {
            lost: open.saturating_sub(waiting),
            duplicated: delivered.again,
            unexpected: unknown + waiting.saturating_sub(open),
        }
    }
}

const WORDS: usize = 512;
/// Number of ids per page. The bits of a page take 4 KiB.
const PAGE: i64 = (WORDS * 64) as i64;

/// A set of job ids, with one bit per id, in pages of 32,768 ids. The ids of a run are close together, so ten million of them
/// take little more than a megabyte in a few hundred pages.
#[derive(Debug, Default)]
struct Bits {
    pages: BTreeMap<i64, Box<[u64; WORDS]>>,
}

impl Bits {
    /// Adds an id. Returns false if it was already present.
    fn insert(&mut self, id: i64) -> bool {
        let page = self.pages.entry(id.div_euclid(PAGE)).or_insert_with(|| Box::new([0; WORDS]));
        let index = id.rem_euclid(PAGE) as usize;
        let (word, bit) = (&mut page[index / 64], 1 << (index % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    /// Adds ids. Returns the number of new ones.
    fn extend(&mut self, ids: impl Iterator<Item = i64>) -> u64 {
        ids.map(|id| u64::from(self.insert(id))).sum()
    }

    /// Number of ids that `others` does not contain.
    fn missing_in(&self, others: &Self) -> u64 {
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

    /// Returns a ledger of jobs 1 to 3, each enqueued, delivered and settled once.
    fn balanced() -> Ledger {
        let ledger = Ledger::default();
        ledger.enqueued(1..=3);
        ledger.delivered((1..=3).map(|id| (id, true)));
        ledger.settled(1..=3);
        ledger
    }

    #[test]
    fn a_run_in_which_each_job_came_once_has_no_faults() {
        assert!(balanced().faults(0).none());
    }

    #[test]
    fn a_job_that_was_never_settled_is_lost_unless_it_still_waits() {
        let ledger = balanced();
        ledger.enqueued([9].into_iter());
        assert_eq!(ledger.faults(0), Faults { lost: 1, ..Faults::default() });
        assert!(ledger.faults(1).none());
    }

    #[test]
    fn a_second_delivery_counts_as_duplicated_even_after_a_second_settle() {
        let ledger = balanced();
        ledger.delivered([(2, true)].into_iter());
        assert_eq!(ledger.settled([2].into_iter()), 0);
        assert_eq!(ledger.faults(0), Faults { duplicated: 1, ..Faults::default() });
    }

    #[test]
    fn jobs_without_an_enqueue_or_with_another_payload_are_unexpected() {
        let ledger = balanced();
        ledger.delivered([(7, true)].into_iter());
        ledger.enqueued([8].into_iter());
        ledger.delivered([(8, false)].into_iter());
        ledger.settled([8].into_iter());
        assert_eq!(ledger.faults(0), Faults { unexpected: 2, ..Faults::default() });
    }

    #[test]
    fn a_delivery_before_the_answer_to_the_enqueue_is_no_fault() {
        let ledger = Ledger::default();
        ledger.delivered([(5, true)].into_iter());
        ledger.settled([5].into_iter());
        ledger.enqueued([5].into_iter());
        assert!(ledger.faults(0).none());
    }

    #[test]
    fn jobs_left_in_the_queue_after_all_were_settled_are_unexpected() {
        assert_eq!(balanced().faults(2), Faults { unexpected: 2, ..Faults::default() });
    }

    #[test]
    fn insert_reports_each_id_as_new_once_also_at_page_boundaries() {
        let mut bits = Bits::default();
        for id in [0, 63, 64, PAGE - 1, PAGE, -1, i64::MAX, i64::MIN] {
            assert!(bits.insert(id), "{id}");
            assert!(!bits.insert(id), "{id}");
        }
        assert_eq!(bits.missing_in(&Bits::default()), 8);
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
