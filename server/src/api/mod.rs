//! The gRPC services: they translate requests, call the broker, and translate its answers. They decide nothing.
//!
//! A request comes in through `server` and its `incoming` connections, and is checked field by field in `check`. Then
//! the broker handles it, and `render` makes the answer.

pub(crate) mod answer; // answers that nobody reads end, and their memory is free
mod access_service;
mod actor; // who changes something, and why
mod authenticate; // who calls
mod bulk_service;
mod calls; // a panic or a hang ends only its call
pub(crate) mod check; // wire → strict types, each field checked once
mod deadline; // how long the caller waits
pub(crate) mod fleet; // several stores: where a call goes
mod end; // why a stream ends before its time
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz; // what fuzzers call
mod health; // grpc.health.v1
mod incoming; // the accept loop: bounded, never fatal
mod job_service;
pub(crate) mod local; // the same services for the page, in this process
mod once_sent; // what follows when an answer has left
mod pace; // how fast a principal may enqueue
mod page_token; // where a page begins
mod pages; // the same, bound to what was asked
mod peer; // one connection: preface deadline, can be cut
mod permit; // what a caller may see and change
mod pipeline; // StreamEnqueue
pub(crate) mod receive; // messages share one budget
mod reflection; // what the services are, for whoever asks
mod render; // strict → wire types
pub(crate) mod schedule_service;
mod settings_service;
pub(crate) mod server; // HTTP/2 settings, routes, serve and stop
mod store_service;
mod task_type_service;
mod trace_context; // the trace of a call, for its jobs
mod worker_service;

#[cfg(test)]
mod tests;

pub(crate) use check::job_of_template;
pub use check::{check_jobs, check_schedule};
pub use health::Health;
pub(crate) use job_service::enqueue;
pub use server::Server;
pub(crate) use trace_context::give as give_trace_context;

/// A finished job of the archive's form as [`GetJob`](howdah_proto::v1::job_service_server::JobService::get_job) answers it,
/// without what the database knows of stages and dependencies.
#[cfg(feature = "archive")]
pub fn finished_job(job: &howdah_archive::Job<'_>) -> howdah_proto::v1::Job {
    render::job(crate::archive::view(job))
}
