//! Tests of prefetching in a store that shares no window with other stores.

use std::time::Instant;

use super::*;
use crate::dispatch::prefetch::PREFETCHED_FOR;

/// Creates a store with a worker that has this window, and with these ready jobs.
fn store(window: u32, jobs: u64) -> TestStore {
    let mut store = TestStore::new(1);
    open(&store, window);
    store.enqueue(jobs);
    store
}

fn open(store: &TestStore, window: u32) {
    let session: Arc<dyn Recipient> = store.sessions[0].clone();
    let window = Window { jobs: window, bytes: BYTES * u64::from(window) };
    store.dispatch.set_window(&session, TYPE, window, Load::default(), None);
}

fn held(store: &TestStore) -> usize {
    store.sessions[0].held.lock().len()
}

fn buffered(store: &TestStore) -> usize {
    store.dispatch.state.lock().types.get(&TYPE).map_or(0, |queue| queue.buffer.len())
}

/// Returns the number of released leases.
fn released(store: &mut TestStore) -> usize {
    let mut released = 0;
    while let Ok(unsent) = store.unsent.try_recv() {
        if let Unsent::Leases(leases) = unsent {
            released += leases.len();
        }
    }
    released
}

/// Runs a claim during which the worker settles this many jobs.
fn claim(store: &mut TestStore, settles: usize) {
    assert!(store.begin());
    (0..settles).for_each(|_| assert!(store.settle(0)));
    store.end();
}

/// Creates a store with six prefetched jobs.
fn with_prefetched_jobs() -> TestStore {
    let mut store = store(8, 1_000);
    claim(&mut store, 0);
    assert!(store.settle(0));
    claim(&mut store, 4);
    claim(&mut store, 0);
    assert!(store.settle(0));
    claim(&mut store, 0);
    assert_eq!((held(&store), buffered(&store)), (8, 6));
    store
}

#[test]
fn a_worker_that_settles_jobs_while_claims_run_finds_the_next_ones_claimed() {
    let mut store = with_prefetched_jobs();
    for _ in 0..4 {
        assert!(store.settle(0));
        assert_eq!(held(&store), 8, "without another claim");
    }
    assert!(store.begin(), "a part of the prefetched jobs is used");
}

#[test]
fn handlers_that_end_together_between_claims_find_the_next_jobs_claimed() {
    let mut store = store(8, 1_000);
    for _ in 0..8 {
        claim(&mut store, 0);
        store.now += 2 * CLAIM;
        (0..8).for_each(|_| assert!(store.settle(0)));
    }
    assert_eq!(held(&store), 8, "all of them were prefetched");
}

#[test]
fn while_claims_are_slow_no_more_is_prefetched_than_workers_take_in_time() {
    let mut store = store(8, 1_000);
    claim(&mut store, 0);
    store.now += 99 * CLAIM;
    for _ in 0..8 {
        // Workers finish 80 jobs per second: 24 during three claims, but only 4 in half of `PREFETCHED_FOR`.
        (0..8).for_each(|_| assert!(store.settle(0)));
        assert!(store.begin());
        store.now += 99 * CLAIM;
        store.end();
    }
    assert_eq!((held(&store), buffered(&store)), (8, 4));
}

#[test]
fn nothing_is_prefetched_of_a_worker_that_settles_little_in_the_time_of_a_claim() {
    let mut store = store(8, 1_000);
    claim(&mut store, 0);
    for _ in 0..20 {
        store.now += 100 * CLAIM;
        assert!(store.settle(0));
        claim(&mut store, 0);
        assert_eq!((held(&store), buffered(&store)), (8, 0));
    }
    assert!(!store.begin());
}

#[test]
fn a_claim_that_leaves_no_ready_jobs_ends_the_prefetching() {
    let mut store = with_prefetched_jobs();
    store.ready = 1;
    (0..6).for_each(|_| assert!(store.settle(0)));
    claim(&mut store, 4);
    assert_eq!((held(&store), buffered(&store)), (5, 0));
    store.enqueue(8);
    claim(&mut store, 0);
    assert_eq!((held(&store), buffered(&store)), (8, 0), "the last claim left nothing");
}

#[test]
fn jobs_that_no_worker_takes_in_time_are_released_and_not_claimed_again_until_there_is_room() {
    let mut store = with_prefetched_jobs();
    let (early, next) = store.dispatch.with(|state| state.take_stale(Instant::now()));
    assert!(early.jobs.is_empty() && next.is_some_and(|at| at <= Instant::now() + PREFETCHED_FOR));
    let (stale, next) = store.dispatch.with(|state| state.take_stale(Instant::now() + PREFETCHED_FOR));
    assert_eq!((stale.jobs.len(), next), (6, None));
    store.dispatch.with(|state| state.returned(&stale.returning));
    store.enqueue(4);
    assert!(!store.begin());
    assert!(store.settle(0));
    claim(&mut store, 0);
    assert_eq!((held(&store), buffered(&store)), (8, 0));
}

#[test]
fn releasing_one_stale_job_releases_all_prefetched_jobs() {
    let mut store = with_prefetched_jobs();
    let before = Instant::now() + PREFETCHED_FOR;
    assert!(store.settle(0) && store.settle(0));
    claim(&mut store, 0);
    let buffered_before = buffered(&store);
    assert!(buffered_before > 4, "from two claims");
    let (stale, next) = store.dispatch.with(|state| state.take_stale(before));
    assert_eq!((stale.jobs.len(), next, buffered(&store)), (buffered_before, None, 0));
}

#[test]
fn no_job_overtakes_released_jobs_until_they_are_ready_again() {
    let mut store = with_prefetched_jobs();
    let (stale, _) = store.dispatch.with(|state| state.take_stale(Instant::now() + PREFETCHED_FOR));
    let first = stale.jobs.iter().map(|job| job.rank).min().expect("jobs");
    assert!(store.settle(0));
    store.enqueue(1);
    assert!(!store.begin());
    store.begin_direct(1);
    assert!(store.direct.is_empty());
    store.dispatch.with(|state| state.returned(&stale.returning));
    assert!(store.begin());
    let floor = store.claims.as_ref().map(|wants| wants[0].floor);
    assert!(floor.is_some_and(|floor| floor <= first), "{floor:?}, {first}");
}

#[test]
fn prefetched_jobs_are_released_at_once_when_their_type_is_paused_or_has_no_worker() {
    let mut store = with_prefetched_jobs();
    store.dispatch.pause([TYPE].into());
    assert_eq!((buffered(&store), released(&mut store)), (0, 6));

    let mut store = with_prefetched_jobs();
    store.dispatch.remove_session(0);
    assert_eq!((buffered(&store), released(&mut store)), (0, 6));
}

#[test]
fn nothing_is_prefetched_of_a_type_with_a_limit() {
    let mut store = with_prefetched_jobs();
    store.dispatch.with(|state| state.stop_prefetch([TYPE].iter()));
    (0..8).for_each(|_| assert!(store.settle(0)));
    claim(&mut store, 0);
    assert_eq!((held(&store), buffered(&store)), (8, 0));
}

#[test]
fn a_stalled_worker_gets_the_prefetched_jobs_when_it_reads_again() {
    let mut store = with_prefetched_jobs();
    store.dispatch.stall(0, true);
    assert!(store.settle(0) && store.settle(0));
    assert_eq!((held(&store), buffered(&store)), (6, 6));
    store.dispatch.stall(0, false);
    let assigned = store.dispatch.with(crate::dispatch::state::DispatchState::assign_all_buffered);
    store.dispatch.deliver(assigned);
    assert_eq!((held(&store), buffered(&store)), (8, 4));
}

proptest! {
    #[test]
    fn jobs_come_in_their_order_within_the_window_and_none_is_lost(
        window in 1u32..20, steps in prop::collection::vec((0u8..6, 1usize..12), 1..200)
    ) {
        let mut store = store(window, 0);
        let (mut settled, mut stalled) = (0, false);
        for (step, n) in steps {
            match step {
                0 => store.enqueue(n as u64),
                1 => drop(store.begin()),
                2 => store.end(),
                3 => {
                    stalled = !stalled;
                    store.dispatch.stall(0, stalled);
                }
                _ => settled += (0..n).filter(|_| store.settle(0)).count(),
            }
            let ids: Vec<i64> = store.sessions[0].held.lock().iter().map(|job| job.lease.id).collect();
            prop_assert!(ids.len() <= window as usize);
            prop_assert!(ids.iter().enumerate().all(|(n, id)| *id == (settled + n) as i64), "{:?}", ids);
            prop_assert_eq!(settled + ids.len() + buffered(&store), store.next as usize);
        }
    }
}
