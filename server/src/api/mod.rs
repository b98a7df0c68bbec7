//! The gRPC port. Connections come in through `incoming` and pass the layers of `server`: time limits, authentication, memory.
//! Each call is implemented in a file of `verbs`, which uses the shared checks, permissions and conversions of `check`,
//! `permit` and `render`.

pub(crate) mod answer; // ends responses that the client does not read, and frees their memory
mod authenticate; // checks the credential of each call
mod calls; // catches panics, and limits the time of a call
pub(crate) mod check; // converts shared messages to strict types; checks each field once
pub(crate) mod enums; // values of enums in the protocol
mod end; // ends a stream early when the broker stops or the credential ends
pub(crate) mod incoming; // the accept loop: bounded, never fatal
pub(crate) mod local; // the same calls for the page, in this process
mod metadata; // deadline and trace context of a call
mod pace; // enqueue rate limits of a principal
mod peer; // one connection: preface deadline, can be cut
mod permit; // what a caller may see and change
mod pipeline; // the order and the memory of StreamEnqueue
pub(crate) mod receive; // memory budget of received messages
mod render; // converts strict types to shared messages
pub(crate) mod server; // HTTP/2 settings, routes, serve and stop
mod tools; // health, and reflection, which lists the services
pub(crate) mod verbs; // every call of the protocol, one file each
pub(crate) mod words; // jobs from names and values of options, for HTTP and the page

#[cfg(test)]
mod tests;

pub use check::{check_jobs, check_schedule};
pub(crate) use metadata::give_trace_context;
pub use server::Server;
pub use tools::Health;
pub use verbs::rule;
pub(crate) use verbs::schedules::job_of_template;

/// Converts a finished job of the archive to the form of [`GetJob`](howdah_proto::v1::job_service_server::JobService::get_job).
/// The result has no stages and dependencies, because only the database has them.
#[cfg(feature = "archive")]
pub fn finished_job(job: &howdah_archive::Job<'_>) -> howdah_proto::v1::Job {
    render::job(howdah_engine::archive::view(job))
}
