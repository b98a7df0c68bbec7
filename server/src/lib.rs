//! The Howdah broker. Modules in the order of a job's way; calls go down this list, or to `store`
//! and `job`, never up. `docs/ARCHITECTURE.md` walks one job through them.

pub mod config; // flags > env > file > defaults, into one checked Config
pub mod error; // one Error; the only conversion to a gRPC Status
pub mod job; // types and pure rules: states, rank, retry, limits. No I/O
pub mod metrics; // what is measured
pub mod store; // every SQL statement and nothing else
pub mod registry; // names and settings of task types, cached
pub mod intake; // 1 enqueue: gather, write
pub mod wake; // 2 tell who can run it: in memory, NOTIFY, LISTEN, poll
pub mod dispatch; // 3 claim and deal to sessions
pub mod session; // 4 one worker's stream: window, leases held, resume, drain
pub mod settle; // 5 gather outcomes, write, confirm
pub mod progress; // how far jobs have come: the same, for reports
pub mod maintain; // 6 promote, rescue, partitions: what brokers do by the clock
pub mod broker; // puts 1 to 6 together; what the services call
pub mod api; // gRPC services: translate, call, translate back; decide nothing
pub mod web; // the HTTP port: health, metrics
pub mod serve; // a whole broker: bind, migrate, start, serve, drain, stop
pub mod logging; // text or JSON on stderr, everything foreign escaped
