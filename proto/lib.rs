//! The gRPC protocol of Howdah, as Rust types, clients and servers.
//!
//! The files `proto/howdah/v1/*.proto` describe every message and field, with its units and limits.
//!
//! - `job.proto`: jobs
//! - `job_service.proto`: enqueue, get, wait for, cancel, retry jobs
//! - `explain.proto`: why a job does not run
//! - `search.proto`: jobs by id, key, header or payload
//! - `leased_job.proto`: jobs as workers get them
//! - `worker_service.proto`: the `Work` stream and its unary counterparts, and a list of workers
//! - `worker.proto`: workers as operators see them
//! - `task_type_service.proto`: numbers of jobs and settings by task type
//! - `schedule.proto`: schedules
//! - `schedule_service.proto`: create, update, get and run schedules
//! - `bulk_service.proto`: bulk operations: preview, start, pause, resume, cancel, list
//! - `access_service.proto`: make, list and revoke tokens
//! - `settings_service.proto`: get and change the settings of the cluster
//! - `store_service.proto`: list, close and open stores
//! - `storage.proto`: the health of the storage

pub mod codec;
#[cfg(feature = "json")]
pub mod json;

/// Version 1 of the protocol.
// The code below is generated, so its style is not ours.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
pub mod v1 {
    tonic::include_proto!("howdah.v1");
}

include!(concat!(env!("OUT_DIR"), "/rpcs.rs"));

// `job_service!(Type)` and its like, for the broker: `build.rs` says why.
include!(concat!(env!("OUT_DIR"), "/services.rs"));
#[doc(hidden)]
pub use tonic;

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
