//! The Howdah broker as a library. The modules are listed from the ports inwards, in the order of a job's way; each uses
//! only modules below it in this list, which a test checks. `docs/internals/architecture.md` walks one job through them.

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzz; // what fuzzers call
pub mod limits; // every limit in words, from the constants of the modules
pub mod serve; // a whole broker: bind, migrate, start, serve, drain, stop
pub mod web; // the HTTP port: health, metrics, enqueue
mod page; // the page for operators, on that port
pub mod api; // the gRPC services: translate, call, translate back
pub mod stores; // several databases: brought up to date, told apart by their numbers
pub mod broker; // every part, started and stopped in order
pub mod operate; // calls of people and programs: list, wait, cancel, retry, settings, schedules
pub mod maintain; // background tasks: promote, rescue, time out, schedules, retention
#[cfg(feature = "archive")]
pub mod archive; // finished jobs as Parquet files, before they are dropped
pub mod intake; // 1 enqueue: gather, write
pub mod session; // 2 one worker's stream: window, leases held, resume, drain
pub mod progress; // progress reports: gather, write
pub mod settle; // 4 outcomes: gather, write; leases that the broker ends itself
pub mod dispatch; // 3 claim, and deal to workers
pub mod wake; // alarms, and notifications between brokers
mod waiters; // callers that wait for jobs to end
mod side_lane; // work that met somebody else's lock
pub mod access; // who calls, and what that caller may do
mod quota; // what one principal, and one address, may use
pub mod traces; // spans of sampled jobs, for a collector
pub mod registry; // names and settings of task types, cached
pub mod store; // every SQL statement, and nothing else
pub mod tls; // certificates of the ports, handshakes, who the client is
pub mod metrics; // counters, gauges, histograms
mod browser; // requests that a web page makes a browser send
mod critical; // tasks without which the broker stops
mod batch; // natural batching: what gathers while a writer is busy
mod memory; // bytes that many share, a quarter of them to one connection or principal
mod backoff; // pauses between attempts
mod driven; // work that goes on though nobody asks for its answer
#[cfg(feature = "archive")]
mod apart; // work that computes for long, on a thread of its own
pub mod config; // flags > environment > file > defaults, into one checked Config
pub mod job; // types and rules without I/O: states, rank, retry, limits
pub mod error; // one Error; the only conversion to a gRPC Status
pub mod durations; // durations as people read them
pub mod numbers; // numbers as people read them
pub mod logging; // text or JSON on stderr; everything foreign is escaped

#[cfg(test)]
mod layers; // the test of the order above
