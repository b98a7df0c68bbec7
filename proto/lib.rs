//! The gRPC protocol of Howdah, as Rust types, clients and servers.
//!
//! The words are those of `proto/howdah/v1/*.proto`; every message and field is described there
//! with its units and limits.
//!
//! - `job.proto`: what a job is
//! - `job_service.proto`: enqueue, look at and cancel jobs
//! - `leased_job.proto`: what a worker gets
//! - `worker_service.proto`: the `Work` stream, and its unary counterparts
//! - `task_type_service.proto`: counts and settings by task type
//! - `schedule.proto`: what a schedule is
//! - `schedule_service.proto`: create, look at, change and run schedules
//! - `settings_service.proto`: settings of the cluster
//! - `storage.proto`: how the storage is

pub mod codec;
#[cfg(feature = "json")]
pub mod json;

/// Version 1 of the protocol.
// The code below is generated: its style is not ours to choose.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
pub mod v1 {
    tonic::include_proto!("howdah.v1");
}

/// The compiled descriptors of every `.proto` file, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/howdah_descriptor.bin"));

/// The domain of every `ErrorInfo` that Howdah sends.
pub const ERROR_DOMAIN: &str = "howdah.dev";

impl v1::Lease {
    /// A lease of job `id`, proved by `token`.
    pub const fn new(id: i64, token: i64) -> Self {
        Self { id, token }
    }
}
