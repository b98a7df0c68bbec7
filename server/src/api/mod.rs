//! The gRPC services: translate, call the broker, translate back; decide nothing.
//!
//! A request comes in through `server` and its `incoming` connections, is checked field by field in
//! `check`, handed to the broker, and what comes back is put into wire types by `render`.

mod calls; // a panic or a hang ends its call, nothing else
mod check; // wire → strict types, each field checked once
mod health; // grpc.health.v1
mod incoming; // the accept loop: bounded, never fatal
mod job_service;
mod page_token; // where a page begins
mod pages; // the same, bound to what was asked
mod peer; // one connection: preface deadline, can be cut
mod pipeline; // StreamEnqueue
mod receive; // large messages share one budget
mod render; // strict → wire types
mod schedule_service;
mod server; // HTTP/2 settings, routes, serve and stop
mod task_type_service;
mod worker_service;

#[cfg(test)]
mod tests;

pub(crate) use check::job_of_template;
pub use check::{check_jobs, check_schedule};
pub use health::Health;
pub(crate) use job_service::enqueue;
pub use server::Server;
