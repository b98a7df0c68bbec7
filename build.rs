//! Compiles `proto/` with protox, so that no `protoc` is needed, and keeps the descriptor set for
//! gRPC reflection.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;
use prost_types::FileDescriptorSet;

const FILES: [&str; 15] = [
    "howdah/v1/access_service.proto",
    "howdah/v1/bulk_service.proto",
    "howdah/v1/explain.proto",
    "howdah/v1/job.proto",
    "howdah/v1/job_service.proto",
    "howdah/v1/leased_job.proto",
    "howdah/v1/schedule.proto",
    "howdah/v1/schedule_service.proto",
    "howdah/v1/search.proto",
    "howdah/v1/settings_service.proto",
    "howdah/v1/storage.proto",
    "howdah/v1/store_service.proto",
    "howdah/v1/task_type_service.proto",
    "howdah/v1/worker.proto",
    "howdah/v1/worker_service.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(FILES, ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("howdah_descriptor.bin"), descriptors.encode_to_vec())?;
    fs::write(out.join("rpcs.rs"), rpcs(&descriptors))?;
    tonic_prost_build::configure()
        // Payloads stay slices of the received message instead of being copied.
        .bytes(".howdah.v1")
        // A bound on what a message may grow into when it is decoded.
        .codec_path("crate::codec::BoundedCodec")
        .compile_fds(descriptors)?;
    Ok(())
}

/// An enum with every call of the services, so that the compiler finds each place that must know all of them.
fn rpcs(descriptors: &FileDescriptorSet) -> String {
    let mut paths = Vec::new();
    for file in descriptors.file.iter().filter(|file| file.package() == "howdah.v1") {
        for service in &file.service {
            let path = |method: &str| format!("/howdah.v1.{}/{method}", service.name());
            paths.extend(service.method.iter().map(|method| (method.name().to_owned(), path(method.name()))));
        }
    }
    let each =
        |line: &dyn Fn(&str, &str) -> String| paths.iter().map(|(name, path)| line(name, path)).collect::<String>();
    format!(
        "/// A call of the protocol.\n\
         #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]\n\
         pub enum Rpc {{ {variants} }}\n\
         impl Rpc {{\n\
             /// Every call.\n\
             pub const ALL: &'static [Self] = &[{all}];\n\
             /// Its path in HTTP/2.\n\
             pub const fn path(self) -> &'static str {{ match self {{ {to_path} }} }}\n\
             /// Its name.\n\
             pub const fn name(self) -> &'static str {{ match self {{ {to_name} }} }}\n\
             /// The call of a path.\n\
             pub fn of_path(path: &str) -> Option<Self> {{ match path {{ {of_path} _ => None }} }}\n\
         }}\n",
        variants = each(&|name, path| format!("#[doc = \"`{path}`\"] {name}, ")),
        all = each(&|name, _| format!("Self::{name}, ")),
        to_path = each(&|name, path| format!("Self::{name} => \"{path}\", ")),
        to_name = each(&|name, _| format!("Self::{name} => \"{name}\", ")),
        of_path = each(&|name, path| format!("\"{path}\" => Some(Self::{name}), ")),
    )
}
