//! Compiles `proto/` with protox, so that no `protoc` is needed, and keeps the descriptor set for
//! gRPC reflection.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;

const FILES: [&str; 9] = [
    "howdah/v1/job.proto",
    "howdah/v1/job_service.proto",
    "howdah/v1/leased_job.proto",
    "howdah/v1/schedule.proto",
    "howdah/v1/schedule_service.proto",
    "howdah/v1/settings_service.proto",
    "howdah/v1/storage.proto",
    "howdah/v1/task_type_service.proto",
    "howdah/v1/worker_service.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(FILES, ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("howdah_descriptor.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        // Payloads stay slices of the received message instead of being copied.
        .bytes(".howdah.v1")
        // A bound on what a message may grow into when it is decoded.
        .codec_path("crate::codec::BoundedCodec")
        .compile_fds(descriptors)?;
    Ok(())
}
