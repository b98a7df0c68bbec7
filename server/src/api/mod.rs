//! The gRPC port. Connections come in through `incoming` and pass the layers of `server`: time limits, authentication, memory.
//! Each call is implemented in a file of `verbs`, which uses the shared checks, permissions and conversions of `check`,
//! `permit` and `render`.

pub(crate) mod answer; // ends responses that the client does not read, and frees their memory
mod authenticate; // checks the credential of each call
mod calls; // catches panics, and limits the time of a call
pub(crate) mod check; // converts shared messages to strict types; checks each field once
mod deadline; // the deadline that a caller sends
mod end; // ends a stream early when the broker stops or the credential ends
mod health; // grpc.health.v1
pub(crate) mod incoming; // the accept loop: bounded, never fatal
pub(crate) mod local; // the same calls for the page, in this process
mod once_sent; // a callback after a response was sent
mod pace; // enqueue rate limits of a principal
mod page_token; // the position of a page, as text
mod peer; // one connection: preface deadline, can be cut
mod permit; // what a caller may see and change
mod pipeline; // the order and the memory of StreamEnqueue
pub(crate) mod receive; // memory budget of received messages
mod reflection; // lets clients list the services
mod render; // converts strict types to shared messages
pub(crate) mod server; // HTTP/2 settings, routes, serve and stop
mod trace_context; // the trace of a call, which its jobs inherit
pub(crate) mod verbs; // every call of the protocol, one file each

#[cfg(test)]
mod tests;

pub(crate) use check::job_of_template;
pub use check::{check_jobs, check_schedule};
pub use health::Health;
pub use server::Server;
pub(crate) use trace_context::give as give_trace_context;
pub use verbs::rule;

/// Converts a finished job of the archive to the form of [`GetJob`](howdah_proto::v1::job_service_server::JobService::get_job).
/// The result has no stages and dependencies, because only the database has them.
#[cfg(feature = "archive")]
pub fn finished_job(job: &howdah_archive::Job<'_>) -> howdah_proto::v1::Job {
    render::job(howdah_engine::archive::view(job))
}
