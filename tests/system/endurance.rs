//! Tests faults under load, for minutes. Brokers and workers are separate processes. Producers and workers write all calls and
//! responses to files outside the system; at the end the test compares these records with the tables. Required: no job lost,
//! none unexpected, none accepted twice, no overlapping leases.
//!
//! `cargo test --test system -- --ignored --test-threads 1 --nocapture endurance`; see CONTRIBUTING.md.

mod brokers; // broker processes at fixed addresses
mod check; // invariants at the end
mod disk; // a full disk
mod ha; // a real Patroni: switchovers, failovers
mod load; // the processes of a load
mod locks; // locks held by open transactions
mod mix; // kinds of jobs
mod network; // packets lost, many streams
mod patroni; // three nodes on this machine
mod postgres; // crashes and lost connections
mod processes; // brokers and workers killed, stopped
mod producer; // producers that repeat until success
mod proxy; // a network that loses packets
mod puller; // a worker without a stream
mod record; // records of calls and responses
mod replica; // a promoted replica
mod restarts; // upgrades, poison, killed producers, many streams
mod stores; // two stores, one stopped
mod watch; // continuous checks
mod worker; // worker processes

/// Runs in the worker processes that the endurance tests start. Does nothing in a normal test run.
#[test]
#[ignore = "a worker of the tests beside it"]
fn entry_point_of_worker_processes() {
    if let Ok(orders) = std::env::var(worker::VARIABLE) {
        worker::run(&orders);
    }
}

/// Runs in the producer processes that the endurance tests start. Does nothing in a normal test run.
#[test]
#[ignore = "a producer of the tests beside it"]
fn entry_point_of_producer_processes() {
    if let Ok(orders) = std::env::var(producer::VARIABLE) {
        producer::run(&orders);
    }
}
