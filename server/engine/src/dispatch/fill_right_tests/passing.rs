//! Tests of when a store passes on the right to fill a window.

use super::*;

#[tokio::test(start_paused = true)]
async fn two_backlogs_alternate_slot_by_slot() {
    let mut set = TestStores::new(2, 1, 4);
    set.stores[0].enqueue(1_000);
    set.stores[1].enqueue(1_000);
    set.claim_all();
    let mut settled: BTreeMap<usize, usize> = BTreeMap::new();
    for round in 0..400 {
        // The stores take turns to settle one job. If the worker holds no job of the store whose turn it is, the other
        // store settles one.
        let store = if set.stores[round % 2].settle(0) { round % 2 } else { 1 - round % 2 };
        if store != round % 2 {
            assert!(set.stores[store].settle(0));
        }
        *settled.entry(store).or_default() += 1;
        set.claim_all();
        assert_eq!(set.held(0), 4, "the window stays full");
    }
    let share = set.stores[0].next as f64 / (set.stores[0].next + set.stores[1].next) as f64;
    assert!((0.4..0.6).contains(&share), "{settled:?}, {share}");
}

#[tokio::test(start_paused = true)]
async fn a_store_without_jobs_gives_the_right_away_at_once() {
    let mut set = TestStores::new(2, 1, 4);
    set.claim_all();
    for round in 0..10 {
        set.stores[round % 2].enqueue(2);
        assert!(set.claim_all(), "round {round}");
        assert_eq!(set.held(0), 2);
        while set.stores[round % 2].settle(0) {}
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_whose_claim_hangs_holds_up_the_others_for_a_tenth_of_a_second() {
    let mut set = TestStores::new(2, 1, 4);
    set.claim_all();
    set.stores[0].enqueue(4);
    assert!(set.stores[0].begin(), "a claim that hangs");
    set.stores[1].enqueue(4);
    assert!(!set.stores[1].begin());
    while !set.stores[1].begin() {
        tokio::time::sleep(KEPT).await;
    }
    set.stores[1].end();
    assert_eq!(set.held(0), 4);
    // Jobs of a late claim wait until the store has the right again.
    set.stores[0].end();
    set.check();
    for _ in 0..4 {
        assert!(set.stores[1].settle(0));
    }
    while set.stores[0].sessions[0].held.lock().len() < 4 {
        tokio::time::sleep(KEPT).await;
        set.check();
    }
}

#[tokio::test(start_paused = true)]
async fn leases_of_a_store_that_has_not_answered_count_in_the_window() {
    let mut stores: Vec<TestStore> = (0..2).map(|_| TestStore::new(1)).collect();
    stores[0].enqueue(10);
    let rights = vec![FillRights::with_max_hold(vec![0, 3], KEPT)];
    let mut set = TestStores { stores, rights, window: 4 };
    set.subscribe(0, 0, Load::default());
    set.rights[0].open();
    set.claim_all();
    assert_eq!(set.held(0), 1);
    // Store 1 has now looked up the three unknown leases: two of them are of this task type.
    set.stores[1].sessions[0].held.lock().extend([job(100), job(101)]);
    set.subscribe(1, 0, Load { jobs: 2, bytes: 2 * BYTES });
    set.rights[0].known(1);
    set.claim_all();
    assert_eq!(set.held(0), 4);
    assert_eq!(set.stores[0].next, 2);
}
