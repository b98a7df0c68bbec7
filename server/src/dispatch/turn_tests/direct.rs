//! Jobs that go straight to a worker of an engine whose windows are its own.

use std::sync::atomic::Ordering::Relaxed;

use futures::FutureExt as _;

use super::*;

/// An engine with a worker that has a window for two jobs; nothing is ready.
fn engine() -> Engine {
    let mut engine = Engine::new(1);
    set_window(&engine, 2);
    engine.enqueue(0);
    assert!(engine.begin());
    engine.end();
    claim_loop_has_to_look(&engine);
    engine
}

fn set_window(engine: &Engine, jobs: u32) {
    let session: Arc<dyn Recipient> = engine.sessions[0].clone();
    let window = Window { jobs, bytes: BYTES * u64::from(jobs) };
    engine.dispatch.set_window(&session, TYPE, window, Load::default(), None);
}

/// Whether it was told so since the last time.
fn claim_loop_has_to_look(engine: &Engine) -> bool {
    engine.dispatch.work.notified().now_or_never().is_some()
}

/// What tokio wakes last in a turn runs next; the others run in turn.
#[test]
fn a_single_caller_is_answered_before_its_worker_is_woken_and_many_callers_after_theirs() {
    for (callers, woken_before) in [(1, 0), (2, 1)] {
        let mut engine = engine();
        engine.begin_direct(1);
        let (reserved, _) = engine.direct.pop().expect("it goes direct");
        let offered = engine.dispatch.deal_reserved(reserved, vec![job(1)]);
        let session = engine.sessions[0].clone();
        let mut answered = false;
        offered.send_and_answer(callers, || {
            // It has its job either way.
            assert_eq!((session.held.lock().len(), session.woken.load(Relaxed)), (1, woken_before));
            answered = true;
        });
        assert!(answered && session.woken.load(Relaxed) == 1);
    }
}

#[test]
fn the_claim_loop_sleeps_while_jobs_go_straight_to_workers() {
    let mut engine = engine();
    for _ in 0..3 {
        engine.begin_direct(2);
        engine.end_direct();
        assert_eq!(engine.sessions[0].held.lock().len(), 2);
        assert!(engine.settle(0) && engine.settle(0));
    }
    assert!(!claim_loop_has_to_look(&engine));
    engine.enqueue(1);
    assert!(claim_loop_has_to_look(&engine));
}

#[test]
fn the_claim_loop_looks_after_a_job_that_no_worker_has_a_place_for() {
    let mut engine = engine();
    engine.begin_direct(1);
    // The window is closed while the job is being stored.
    set_window(&engine, 0);
    claim_loop_has_to_look(&engine);
    engine.end_direct();
    assert!(engine.sessions[0].held.lock().is_empty());
    assert!(claim_loop_has_to_look(&engine));
}
