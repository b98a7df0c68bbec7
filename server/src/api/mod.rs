//! The gRPC services: they translate requests, call the broker, and translate its answers. They decide nothing.
//!
//! A request comes in through `server` and its `incoming` connections, and is checked field by field in `check`. Then
//! the broker handles it, and `render` makes the answer.

pub(crate) mod answer; // ends responses that the client does not read, and frees their memory
mod access_service;
mod actor; // principal and reason of a change, for the audit log
mod authenticate; // checks the credential of each call
mod bulk_service;
mod calls; // catches panics, and limits the time of a call
pub(crate) mod check; // converts requests to strict types; checks each field once
mod deadline; // the deadline that a caller sends
pub(crate) mod routing; // with several stores: selects the stores of a call
mod end; // ends a stream early when the broker stops or the credential ends
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz; // entry points for fuzzers
mod health; // grpc.health.v1
pub(crate) mod incoming; // the accept loop: bounded, never fatal
mod job_service;
pub(crate) mod local; // the same services for the page, in this process
mod once_sent; // a callback after a response was sent
mod pace; // enqueue rate limits of a principal
mod page_token; // the position of a page, as text
mod pages; // page tokens, signed for one request and caller
mod peer; // one connection: preface deadline, can be cut
mod permit; // what a caller may see and change
mod pipeline; // StreamEnqueue
pub(crate) mod receive; // memory budget of received messages
mod reflection; // lets clients list the services
mod render; // converts strict types to responses
pub(crate) mod schedule_service;
mod settings_service;
pub(crate) mod server; // HTTP/2 settings, routes, serve and stop
mod store_service;
mod task_type_service;
mod trace_context; // the trace of a call, which its jobs inherit
mod worker_service;

#[cfg(test)]
mod tests;

pub(crate) use check::job_of_template;
pub use check::{check_jobs, check_schedule};
pub use health::Health;
pub(crate) use job_service::enqueue;
pub use server::Server;
pub(crate) use trace_context::give as give_trace_context;

/// Converts a finished job of the archive to the form of
/// [`GetJob`](howdah_proto::v1::job_service_server::JobService::get_job). Stages and dependencies are missing, because
/// only the database has them.
#[cfg(feature = "archive")]
pub fn finished_job(job: &howdah_archive::Job<'_>) -> howdah_proto::v1::Job {
    render::job(crate::archive::view(job))
}
