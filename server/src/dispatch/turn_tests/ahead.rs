//! Claims ahead of the capacity, of an engine whose windows are its own.

use std::time::Instant;

use super::*;
use crate::dispatch::ahead::KEPT;

/// An engine with a worker that has this window, and these ready jobs.
fn engine(window: u32, jobs: u64) -> Engine {
    let mut engine = Engine::new(1);
    open(&engine, window);
    engine.enqueue(jobs);
    engine
}

fn open(engine: &Engine, window: u32) {
    let session: Arc<dyn Recipient> = engine.sessions[0].clone();
    let window = Window { jobs: window, bytes: BYTES * u64::from(window) };
    engine.dispatch.set_window(&session, TYPE, window, Load::default(), None);
}

fn held(engine: &Engine) -> usize {
    engine.sessions[0].held.lock().len()
}

fn kept(engine: &Engine) -> usize {
    engine.dispatch.state.lock().types.get(&TYPE).map_or(0, |queue| queue.hand.len())
}

/// The leases that were given up.
fn released(engine: &mut Engine) -> usize {
    let mut released = 0;
    while let Ok(unsent) = engine.unsent.try_recv() {
        if let Unsent::Leases(leases) = unsent {
            released += leases.len();
        }
    }
    released
}

/// A claim, during which the worker settles so many jobs.
fn claim(engine: &mut Engine, settles: usize) {
    assert!(engine.begin());
    (0..settles).for_each(|_| assert!(engine.settle(0)));
    engine.end();
}

/// The same, with jobs in the hand at the end.
fn with_jobs_ahead() -> Engine {
    let mut engine = engine(8, 1_000);
    claim(&mut engine, 0);
    assert!(engine.settle(0));
    claim(&mut engine, 4);
    claim(&mut engine, 0);
    assert!(engine.settle(0));
    claim(&mut engine, 0);
    assert_eq!((held(&engine), kept(&engine)), (8, 6));
    engine
}

#[test]
fn a_worker_that_settles_jobs_while_claims_run_finds_the_next_ones_claimed() {
    let mut engine = with_jobs_ahead();
    for _ in 0..4 {
        assert!(engine.settle(0));
        assert_eq!(held(&engine), 8, "without another claim");
    }
    assert!(engine.begin(), "a part of the hand is dealt");
}

#[test]
fn handlers_that_end_together_between_claims_find_the_next_jobs_claimed() {
    let mut engine = engine(8, 1_000);
    for _ in 0..8 {
        claim(&mut engine, 0);
        engine.now += 2 * CLAIM;
        (0..8).for_each(|_| assert!(engine.settle(0)));
    }
    assert_eq!(held(&engine), 8, "all from the hand");
}

#[test]
fn while_claims_are_slow_no_more_is_claimed_ahead_than_workers_take_in_time() {
    let mut engine = engine(8, 1_000);
    claim(&mut engine, 0);
    engine.now += 99 * CLAIM;
    for _ in 0..8 {
        // 80 jobs a second: 24 in the time of three claims, 4 before jobs that were claimed ahead are half as old as they may get.
        (0..8).for_each(|_| assert!(engine.settle(0)));
        assert!(engine.begin());
        engine.now += 99 * CLAIM;
        engine.end();
    }
    assert_eq!((held(&engine), kept(&engine)), (8, 4));
}

#[test]
fn nothing_is_claimed_ahead_of_a_worker_that_settles_little_in_the_time_of_a_claim() {
    let mut engine = engine(8, 1_000);
    claim(&mut engine, 0);
    for _ in 0..20 {
        engine.now += 100 * CLAIM;
        assert!(engine.settle(0));
        claim(&mut engine, 0);
        assert_eq!((held(&engine), kept(&engine)), (8, 0));
    }
    assert!(!engine.begin());
}

#[test]
fn a_claim_that_leaves_nothing_ready_ends_it() {
    let mut engine = with_jobs_ahead();
    engine.ready = 1;
    (0..6).for_each(|_| assert!(engine.settle(0)));
    claim(&mut engine, 4);
    assert_eq!((held(&engine), kept(&engine)), (5, 0));
    engine.enqueue(8);
    claim(&mut engine, 0);
    assert_eq!((held(&engine), kept(&engine)), (8, 0), "the last claim left nothing");
}

#[test]
fn jobs_that_no_worker_takes_in_time_are_released_and_not_claimed_again_until_there_is_room() {
    let mut engine = with_jobs_ahead();
    let (early, next) = engine.dispatch.with(|state| state.stale_hand(Instant::now()));
    assert!(early.jobs.is_empty() && next.is_some_and(|at| at <= Instant::now() + KEPT));
    let (stale, next) = engine.dispatch.with(|state| state.stale_hand(Instant::now() + KEPT));
    assert_eq!((stale.jobs.len(), next), (6, None));
    engine.dispatch.with(|state| state.returned(&stale.returning));
    engine.enqueue(4);
    assert!(!engine.begin());
    assert!(engine.settle(0));
    claim(&mut engine, 0);
    assert_eq!((held(&engine), kept(&engine)), (8, 0));
}

#[test]
fn with_one_that_is_released_all_that_were_claimed_ahead_are() {
    let mut engine = with_jobs_ahead();
    let before = Instant::now() + KEPT;
    assert!(engine.settle(0) && engine.settle(0));
    claim(&mut engine, 0);
    let kept_before = kept(&engine);
    assert!(kept_before > 4, "from two claims");
    let (stale, next) = engine.dispatch.with(|state| state.stale_hand(before));
    assert_eq!((stale.jobs.len(), next, kept(&engine)), (kept_before, None, 0));
}

#[test]
fn until_released_jobs_are_ready_again_nothing_overtakes_them() {
    let mut engine = with_jobs_ahead();
    let (stale, _) = engine.dispatch.with(|state| state.stale_hand(Instant::now() + KEPT));
    let first = stale.jobs.iter().map(|job| job.rank).min().expect("jobs");
    assert!(engine.settle(0));
    engine.enqueue(1);
    assert!(!engine.begin());
    engine.begin_direct(1);
    assert!(engine.direct.is_empty());
    engine.dispatch.with(|state| state.returned(&stale.returning));
    assert!(engine.begin());
    let floor = engine.claims.as_ref().map(|wants| wants[0].floor);
    assert!(floor.is_some_and(|floor| floor <= first), "{floor:?}, {first}");
}

#[test]
fn they_are_released_at_once_when_their_type_is_paused_or_has_no_worker() {
    let mut engine = with_jobs_ahead();
    engine.dispatch.pause([TYPE].into());
    assert_eq!((kept(&engine), released(&mut engine)), (0, 6));

    let mut engine = with_jobs_ahead();
    engine.dispatch.leave(0);
    assert_eq!((kept(&engine), released(&mut engine)), (0, 6));
}

#[test]
fn nothing_is_claimed_ahead_of_a_type_with_a_limit() {
    let mut engine = with_jobs_ahead();
    engine.dispatch.with(|state| state.stop_ahead([TYPE].iter()));
    (0..8).for_each(|_| assert!(engine.settle(0)));
    claim(&mut engine, 0);
    assert_eq!((held(&engine), kept(&engine)), (8, 0));
}

#[test]
fn a_worker_that_reads_again_gets_them() {
    let mut engine = with_jobs_ahead();
    engine.dispatch.stall(0, true);
    assert!(engine.settle(0) && engine.settle(0));
    assert_eq!((held(&engine), kept(&engine)), (6, 6));
    engine.dispatch.stall(0, false);
    let dealt = engine.dispatch.with(crate::dispatch::state::DispatchState::deal_hands);
    engine.dispatch.deliver(dealt);
    assert_eq!((held(&engine), kept(&engine)), (8, 4));
}

proptest! {
    #[test]
    fn jobs_come_in_their_order_within_the_window_and_none_is_lost(
        window in 1u32..20, steps in prop::collection::vec((0u8..6, 1usize..12), 1..200)
    ) {
        let mut engine = engine(window, 0);
        let (mut settled, mut stalled) = (0, false);
        for (step, n) in steps {
            match step {
                0 => engine.enqueue(n as u64),
                1 => drop(engine.begin()),
                2 => engine.end(),
                3 => {
                    stalled = !stalled;
                    engine.dispatch.stall(0, stalled);
                }
                _ => settled += (0..n).filter(|_| engine.settle(0)).count(),
            }
            let ids: Vec<i64> = engine.sessions[0].held.lock().iter().map(|job| job.lease.id).collect();
            prop_assert!(ids.len() <= window as usize);
            prop_assert!(ids.iter().enumerate().all(|(n, id)| *id == (settled + n) as i64), "{:?}", ids);
            prop_assert_eq!(settled + ids.len() + kept(&engine), engine.next as usize);
        }
    }
}
