//! gRPC protocol of Howdah: Rust types, clients and servers.
//!
//! The files `proto/howdah/v1/*.proto` describe every message and field, with its units and limits.
//!
//! - `job.proto`: jobs, as producers enqueue them and operators see them
//! - `job_service.proto`: enqueue, get, list, search, wait for, cancel, retry and discard jobs
//! - `explain.proto`: reasons why a job does not run
//! - `search.proto`: search for jobs by id, key, tag, header or payload
//! - `leased_job.proto`: jobs as workers receive them
//! - `worker_service.proto`: the `Work` stream and its unary counterparts, and the list of workers
//! - `worker.proto`: workers as operators see them
//! - `task_type_service.proto`: numbers of jobs, settings, limit keys and statistics of task types
//! - `schedule.proto`: schedules
//! - `schedule_service.proto`: create, update, get and run schedules
//! - `bulk_service.proto`: bulk operations: preview, start, pause, resume, cancel, list
//! - `access_service.proto`: create, list and revoke tokens, and list the audit log
//! - `settings_service.proto`: get and change the settings of the cluster
//! - `store_service.proto`: list, close and open stores, and move task types between them
//! - `storage.proto`: health of the storage

#![warn(missing_docs)]

pub mod codec;
#[cfg(feature = "json")]
pub mod json;

/// Version 1 of the protocol.
// Lints are off in this module, because its code is generated.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
pub mod v1 {
    tonic::include_proto!("howdah.v1");
}

include!(concat!(env!("OUT_DIR"), "/rpcs.rs"));

/// An RPC with one request and one response. `build.rs` generates a type for each, in `calls`.
#[doc(hidden)]
pub trait Unary {
    /// The RPC.
    const RPC: Rpc;
    /// The request message.
    type Request: prost::Message + Default + Clone + 'static;
    /// The response message.
    type Response: prost::Message + Default + 'static;
}

// Defines the macro `services!`, with which the broker implements all gRPC services. `build.rs` generates and explains it.
include!(concat!(env!("OUT_DIR"), "/services.rs"));
#[doc(hidden)]
pub use tonic;

/// Compiled descriptors of all `.proto` files, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/howdah_descriptor.bin"));

/// Domain of every `ErrorInfo` that Howdah sends.
pub const ERROR_DOMAIN: &str = "howdah.dev";

impl v1::Lease {
    /// Creates a lease of job `id` with the fencing token `token`.
    pub const fn new(id: i64, token: i64) -> Self {
        Self { id, token }
    }
}
