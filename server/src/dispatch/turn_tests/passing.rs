//! When an engine passes the turn.

use super::*;

#[tokio::test(start_paused = true)]
async fn two_backlogs_take_turns_slot_by_slot() {
    let mut fleet = Fleet::new(2, 1, 4);
    fleet.engines[0].enqueue(1_000);
    fleet.engines[1].enqueue(1_000);
    fleet.claim_all();
    let mut settled: BTreeMap<usize, usize> = BTreeMap::new();
    for round in 0..400 {
        // Whichever engine has jobs there; none is idle for want of the other.
        let engine = if fleet.engines[round % 2].settle(0) { round % 2 } else { 1 - round % 2 };
        if engine != round % 2 {
            assert!(fleet.engines[engine].settle(0));
        }
        *settled.entry(engine).or_default() += 1;
        fleet.claim_all();
        assert_eq!(fleet.held(0), 4, "the window stays full");
    }
    let share = fleet.engines[0].next as f64 / (fleet.engines[0].next + fleet.engines[1].next) as f64;
    assert!((0.4..0.6).contains(&share), "{settled:?}, {share}");
}

#[tokio::test(start_paused = true)]
async fn an_engine_without_jobs_gives_the_turn_away_at_once() {
    let mut fleet = Fleet::new(2, 1, 4);
    fleet.claim_all();
    for round in 0..10 {
        fleet.engines[round % 2].enqueue(2);
        assert!(fleet.claim_all(), "round {round}");
        assert_eq!(fleet.held(0), 2);
        while fleet.engines[round % 2].settle(0) {}
    }
}

#[tokio::test(start_paused = true)]
async fn an_engine_whose_claim_hangs_holds_up_the_others_for_a_tenth_of_a_second() {
    let mut fleet = Fleet::new(2, 1, 4);
    fleet.claim_all();
    fleet.engines[0].enqueue(4);
    assert!(fleet.engines[0].begin(), "its claim hangs");
    fleet.engines[1].enqueue(4);
    assert!(!fleet.engines[1].begin());
    while !fleet.engines[1].begin() {
        tokio::time::sleep(KEPT).await;
    }
    fleet.engines[1].end();
    assert_eq!(fleet.held(0), 4);
    // What comes back late waits for its turn.
    fleet.engines[0].end();
    fleet.check();
    for _ in 0..4 {
        assert!(fleet.engines[1].settle(0));
    }
    while fleet.engines[0].sessions[0].held.lock().len() < 4 {
        tokio::time::sleep(KEPT).await;
        fleet.check();
    }
}

#[tokio::test(start_paused = true)]
async fn leases_of_an_engine_that_has_not_answered_count_in_the_window() {
    let mut engines: Vec<Engine> = (0..2).map(|_| Engine::new(1)).collect();
    engines[0].enqueue(10);
    let turns = vec![Turns::keeping(vec![0, 3], KEPT)];
    let mut fleet = Fleet { engines, turns, window: 4 };
    fleet.subscribe(0, 0, Load::default());
    fleet.turns[0].open();
    fleet.claim_all();
    assert_eq!(fleet.held(0), 1);
    // It has answered: two of them were of this type.
    fleet.engines[1].sessions[0].held.lock().extend([job(100), job(101)]);
    fleet.subscribe(1, 0, Load { jobs: 2, bytes: 2 * BYTES });
    fleet.turns[0].known(1);
    fleet.claim_all();
    assert_eq!(fleet.held(0), 4);
    assert_eq!(fleet.engines[0].next, 2);
}
