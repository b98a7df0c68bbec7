//! The engine of the Howdah broker: serves the jobs of one store, without network ports.
//!
//! Modules are listed in layers, from the broker as a whole to the lowest one. Each module uses only modules below it in
//! the list; the test in `server/src/layers.rs` checks that. A job passes six steps: 1 enqueue, 2 wake, 3 claim, 4 push,
//! 5 settle, 6 by the clock. `docs/internals/architecture.md` follows one job through them.

pub mod broker; // starts and stops the components of a broker in order
pub mod operate; // calls of operators: list, wait, cancel, retry, settings, schedules
pub mod maintain; // step 6, background tasks: promotion, rescue, timeouts, schedules, retention
#[cfg(feature = "archive")]
pub mod archive; // finished jobs as Parquet files, before they are dropped
pub mod intake; // step 1, enqueue: gathers requests, writes them in batches
pub mod session; // step 4, push: a worker's windows, leases and messages; resume, drain
pub mod progress; // progress reports: gathers them, writes them in batches
pub mod settle; // step 5, settle: gathers outcomes, writes them in batches; leases that the broker ends
pub mod dispatch; // step 3, claim: claims jobs and assigns them to sessions
pub mod wake; // step 2, wake: alarms, and notifications between brokers
pub mod waiters; // callers that wait for jobs to end
pub mod side_lane; // retries lock-blocked requests
pub mod access; // callers, their permissions and their tokens
pub mod quota; // quotas per principal and per address
pub mod traces; // exports spans of sampled jobs to a collector
pub mod doctor; // checks of the database and of this machine
pub mod registry; // names and settings of task types, cached
pub mod store; // every SQL statement
pub mod metrics; // counters, gauges, histograms
mod critical; // tasks that the broker cannot run without
mod batch; // group commit: a queue that fills while the writer is busy
pub mod memory; // shared memory budgets; one connection or principal gets at most a quarter
pub mod backoff; // exponential backoff with jitter
pub mod detached; // futures that keep running when the client stops reading
#[cfg(feature = "archive")]
mod compute_pool; // CPU-bound work on separate threads
