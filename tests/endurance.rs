//! Faults over minutes, under load: brokers and workers are processes, what was called and answered is written to records
//! outside of the system, and at the end both are compared. Lost 0, unexpected 0, accepted twice 0, overlapping leases 0.
//!
//! `cargo test --test system -- --ignored --test-threads 1 --nocapture endurance`; see CONTRIBUTING.md.

mod brokers; // processes at addresses that stay
mod check; // what must hold at the end
mod disk; // full
mod ha; // a real Patroni: switchovers, failovers
mod load; // all that runs
mod locks; // what others hold in open transactions
mod mix; // kinds of jobs
mod network; // packets lost, many streams
mod patroni; // three nodes on this machine
mod postgres; // killed, its connections ended
mod processes; // brokers and workers killed, stopped
mod producer; // repeats until it is OK
mod proxy; // a network that loses packets
mod puller; // a worker without a stream
mod record; // who was told what, when
mod replica; // promoted
mod restarts; // upgrades, poison, killed producers, many streams
mod stores; // two, of which one is stopped
mod watch; // looks all the time
mod worker; // a process

/// Not a test: this program, started by the tests beside it.
#[test]
#[ignore = "a worker of the tests beside it"]
fn a_worker_process_of_the_tests_beside_it() {
    if let Ok(orders) = std::env::var(worker::VARIABLE) {
        worker::run(&orders);
    }
}

/// Not a test either.
#[test]
#[ignore = "a producer of the tests beside it"]
fn a_producer_process_of_the_tests_beside_it() {
    if let Ok(orders) = std::env::var(producer::VARIABLE) {
        producer::run(&orders);
    }
}
