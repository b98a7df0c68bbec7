//! Compiles `proto/` with protox, so that no `protoc` is needed, and keeps the descriptor set for
//! gRPC reflection.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;
use prost_types::{FileDescriptorSet, MethodDescriptorProto, ServiceDescriptorProto};

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
    fs::write(out.join("rpcs.rs"), rpcs(&descriptors) + &calls(&descriptors))?;
    fs::write(out.join("services.rs"), services(&descriptors))?;
    tonic_prost_build::configure()
        // Keeps payloads as slices of the received message instead of copying them.
        .bytes(".howdah.v1")
        // Uses a codec that limits the memory of a decoded message.
        .codec_path("crate::codec::BoundedCodec")
        .compile_fds(descriptors)?;
    Ok(())
}

/// Generates an enum with one variant per gRPC method, so that the compiler finds each `match` that lacks a method.
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
        "/// An RPC of the protocol.\n\
         #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]\n\
         pub enum Rpc {{ {variants} }}\n\
         impl Rpc {{\n\
             /// All RPCs.\n\
             pub const ALL: &'static [Self] = &[{all}];\n\
             /// Returns the path of the RPC in HTTP/2.\n\
             pub const fn path(self) -> &'static str {{ match self {{ {to_path} }} }}\n\
             /// Returns the name of the RPC.\n\
             pub const fn name(self) -> &'static str {{ match self {{ {to_name} }} }}\n\
             /// Returns the RPC with this path in HTTP/2.\n\
             pub fn of_path(path: &str) -> Option<Self> {{ match path {{ {of_path} _ => None }} }}\n\
         }}\n",
        variants = each(&|name, path| format!("#[doc = \"`{path}`\"] {name}, ")),
        all = each(&|name, _| format!("Self::{name}, ")),
        to_path = each(&|name, path| format!("Self::{name} => \"{path}\", ")),
        to_name = each(&|name, _| format!("Self::{name} => \"{name}\", ")),
        of_path = each(&|name, path| format!("\"{path}\" => Some(Self::{name}), ")),
    )
}

/// Generates a type for each RPC with one request and one response. It implements the trait `Unary`.
fn calls(descriptors: &FileDescriptorSet) -> String {
    let files = descriptors.file.iter().filter(|file| file.package() == "howdah.v1");
    let unary =
        files.flat_map(|file| &file.service).flat_map(|service| &service.method).filter(|method| is_unary(method));
    let call = |method: &MethodDescriptorProto| {
        format!(
            "#[doc = \"The call `{name}`.\"]\n\
             pub struct {name};\n\
             impl crate::Unary for {name} {{\n\
                 const RPC: crate::Rpc = crate::Rpc::{name};\n\
                 type Request = crate::v1::{request};\n\
                 type Response = crate::v1::{response};\n\
             }}\n",
            name = method.name(),
            request = message(method.input_type()),
            response = message(method.output_type()),
        )
    };
    format!(
        "/// The RPCs with one request and one response.\n#[doc(hidden)]\npub mod calls {{\n{}}}\n",
        unary.map(call).collect::<String>()
    )
}

fn is_unary(method: &MethodDescriptorProto) -> bool {
    !method.client_streaming() && !method.server_streaming()
}

/// Returns the name of a message without its package.
fn message(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or_default()
}

/// The macro `services!(Type)`, which implements tonic's traits of all services for a type. A unary call runs
/// `Type::call::<Name>`. A streaming call runs the method of the type with the name of the call.
///
/// Each future is boxed in a function without bounds. Inside a method of tonic's traits the compiler proves that a future is
/// `Send` under the method's own bounds and cannot reuse the proof for the next method. With `async_trait`, these proofs took
/// half of the compile time of the server crate.
fn services(descriptors: &FileDescriptorSet) -> String {
    let files = descriptors.file.iter().filter(|file| file.package() == "howdah.v1");
    let implemented = |service: &ServiceDescriptorProto| {
        let methods: String = service.method.iter().map(method).collect();
        format!(
            "impl $crate::v1::{module}_server::{name} for $service {{\n{methods}}}\n",
            module = snake_case(service.name()),
            name = service.name(),
        )
    };
    let all: String = files.flat_map(|file| &file.service).map(implemented).collect();
    format!("#[doc(hidden)] #[macro_export] macro_rules! services {{ ($service:ty) => {{\n{all}\n}} }}\n")
}

fn method(method: &MethodDescriptorProto) -> String {
    let of_crate = |path: &str| format!("$crate::v1::{}", message(path));
    let (input, output) = (of_crate(method.input_type()), of_crate(method.output_type()));
    let request = if method.client_streaming() { format!("$crate::tonic::Streaming<{input}>") } else { input };
    let (kind, response) = if method.server_streaming() {
        let stream = format!("$crate::tonic::codegen::BoxStream<{output}>");
        (format!("type {}Stream = {stream};\n", method.name()), stream)
    } else {
        (String::new(), output)
    };
    let run =
        if is_unary(method) { format!("call::<$crate::calls::{}>", method.name()) } else { snake_case(method.name()) };
    let future = |lifetime: &str| {
        format!(
            "::core::pin::Pin<::std::boxed::Box<dyn ::core::future::Future<Output = ::core::result::Result<\
             $crate::tonic::Response<{response}>, $crate::tonic::Status>> + ::core::marker::Send + {lifetime}>>"
        )
    };
    format!(
        "{kind}fn {name}<'a, 'b>(&'a self, request: $crate::tonic::Request<{request}>) -> {result}\n\
         where 'a: 'b, Self: 'b {{\n\
         fn boxed(service: &$service, request: $crate::tonic::Request<{request}>) -> {boxed} {{\n\
         ::std::boxed::Box::pin(<$service>::{run}(service, request))\n}}\n\
         boxed(self, request)\n}}\n",
        name = snake_case(method.name()),
        result = future("'b"),
        boxed = future("'_"),
    )
}

fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for (index, letter) in name.char_indices() {
        if letter.is_uppercase() && index > 0 {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}
