//! Tests of direct enqueue in a store that shares no window with other stores.

use std::sync::atomic::Ordering::Relaxed;

use futures::FutureExt as _;

use super::*;

/// Creates a store without ready jobs, with a worker that has a window for two jobs.
fn store() -> TestStore {
    let mut store = TestStore::new(1);
    set_window(&store, 2);
    store.enqueue(0);
    assert!(store.begin());
    store.end();
    claim_loop_has_to_look(&store);
    store
}

fn set_window(store: &TestStore, jobs: u32) {
    let session: Arc<dyn Recipient> = store.sessions[0].clone();
    let window = Window { jobs, bytes: BYTES * u64::from(jobs) };
    store.dispatch.set_window(&session, TYPE, window, Load::default(), None);
}

/// Returns whether the claim loop was notified since the last call.
fn claim_loop_has_to_look(store: &TestStore) -> bool {
    store.dispatch.work.notified().now_or_never().is_some()
}

/// Tokio first runs the task that was woken last, then the others in the order of their wake-ups.
#[test]
fn a_single_caller_is_answered_before_its_worker_is_woken_and_many_callers_after_theirs() {
    for (callers, woken_before) in [(1, 0), (2, 1)] {
        let mut store = store();
        store.begin_direct(1);
        let (reserved, _) = store.direct.pop().expect("the job goes direct");
        let offered = store.dispatch.assign_reserved(reserved, vec![job(1)]);
        let session = store.sessions[0].clone();
        let mut answered = false;
        offered.send_and_answer(callers, || {
            // The session already has its job, whether one caller waits or many.
            assert_eq!((session.held.lock().len(), session.woken.load(Relaxed)), (1, woken_before));
            answered = true;
        });
        assert!(answered && session.woken.load(Relaxed) == 1);
    }
}

#[test]
fn the_claim_loop_sleeps_while_jobs_go_straight_to_workers() {
    let mut store = store();
    for _ in 0..3 {
        store.begin_direct(2);
        store.end_direct();
        assert_eq!(store.sessions[0].held.lock().len(), 2);
        assert!(store.settle(0) && store.settle(0));
    }
    assert!(!claim_loop_has_to_look(&store));
    store.enqueue(1);
    assert!(claim_loop_has_to_look(&store));
}

#[test]
fn the_claim_loop_wakes_up_for_a_direct_job_that_no_worker_has_room_for() {
    let mut store = store();
    store.begin_direct(1);
    // The window is closed while the job is being stored.
    set_window(&store, 0);
    claim_loop_has_to_look(&store);
    store.end_direct();
    assert!(store.sessions[0].held.lock().is_empty());
    assert!(claim_loop_has_to_look(&store));
}
