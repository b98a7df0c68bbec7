//! The Howdah broker as a library.
//!
//! Modules are listed in layers, from the network ports to the lowest one. Each module uses only modules below it in
//! the list; the test in `layers.rs` checks that. A job passes six steps: 1 enqueue, 2 wake, 3 claim, 4 push, 5 settle,
//! 6 by the clock. `docs/internals/architecture.md` follows one job through them.

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzz; // entry points for the fuzzers
#[cfg(test)]
mod limits; // the limits of the reference page, collected from the modules' constants
pub mod serve; // a whole broker: bind, migrate, start, serve, drain, stop
pub mod web; // the HTTP port: health, metrics, enqueue
mod page; // the page for operators, on the HTTP port
pub mod api; // the gRPC services: translate, call, translate back
pub mod stores; // several stores in one process: migration, store numbers, moves between stores
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
mod waiters; // callers that wait for jobs to end
mod side_lane; // retries lock-blocked requests
pub mod access; // authentication and permissions of callers
mod quota; // quotas per principal and per address
pub mod traces; // exports spans of sampled jobs to a collector
pub mod doctor; // checks of the database and of this machine
pub mod registry; // names and settings of task types, cached
pub mod store; // every SQL statement
pub mod tls; // certificates of the ports, handshakes, the client's identity
pub mod metrics; // counters, gauges, histograms
mod browser; // refuses requests that browsers send for web pages
mod critical; // tasks that the broker cannot run without
mod batch; // group commit: a queue that fills while the writer is busy
mod memory; // shared memory budgets; one connection or principal gets at most a quarter
mod backoff; // exponential backoff with jitter
mod detached; // futures that keep running when the client stops reading
#[cfg(feature = "archive")]
mod compute_pool; // CPU-bound work on separate threads
pub mod config; // flags > environment > file > defaults, into one checked Config
pub mod job; // types and rules without I/O: states, rank, retry, limits
pub mod error; // the error of calls, and its only conversion to a gRPC status
pub mod durations; // durations as text for people
pub mod numbers; // numbers as text for people
pub mod logging; // text or JSON on stderr; escapes all input from outside

#[cfg(test)]
mod layers; // tests the order of this list
