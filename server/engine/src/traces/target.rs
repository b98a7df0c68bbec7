//! Connection to the OpenTelemetry collector: address, certificate and request headers. Errors never contain header
//! values.

use std::{env, fs, path::Path, str::FromStr as _, time::Duration};

use howdah_core::config::Config;
use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::KeyValue;
use opentelemetry_otlp::{SpanExporter, WithTonicConfig as _};
use opentelemetry_sdk::{Resource, resource::EnvResourceDetector, trace::SpanExporter as _};
use tonic::{
    metadata::MetadataMap,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint},
};

/// Time limit of an export request.
pub(super) const EXPORT_WITHIN: Duration = Duration::from_secs(10);
/// Time limit of connecting to the collector.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// Maximum size of the headers file and of the CA file, in bytes.
const FILE_BYTES: u64 = 1 << 20;

/// An OpenTelemetry collector, to which spans are exported.
#[derive(Debug)]
pub struct Collector(pub(super) SpanExporter);

impl Collector {
    /// Returns the configured collector; `None` without an endpoint. Reads the files that the settings name; an error
    /// names the setting. The connection is made when the first spans are sent.
    pub fn from_config(config: &Config) -> Result<Option<Self>, String> {
        let Some(endpoint) = config.otlp.endpoint.as_deref().filter(|_| config.otlp.is_on()) else { return Ok(None) };
        let channel = channel(endpoint, config.otlp.ca.as_deref())?;
        let headers = match &config.otlp.headers_file {
            Some(path) => headers_of(path)?,
            None => HeaderMap::new(),
        };
        let exporter = SpanExporter::builder()
            .with_tonic()
            .with_channel(channel)
            .with_metadata(MetadataMap::from_headers(headers))
            .build();
        let mut exporter = exporter.map_err(|error| format!("otlp_endpoint cannot be used: {error}"))?;
        exporter.set_resource(&resource(&config.name));
        Ok(Some(Self(exporter)))
    }
}

/// Creates a gRPC channel that connects when the first spans are sent.
fn channel(endpoint: &str, ca: Option<&Path>) -> Result<Channel, String> {
    let is_tls = endpoint.starts_with("https://");
    let failed = |error| format!("otlp_endpoint {endpoint} cannot be used: {error}");
    let mut address = Endpoint::from_shared(endpoint.to_owned()).map_err(failed)?;
    if is_tls {
        let tls = match ca {
            Some(path) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read("otlp_ca", path)?)),
            None => ClientTlsConfig::new().with_native_roots(),
        };
        address = address.tls_config(tls).map_err(failed)?;
    }
    Ok(address.connect_timeout(CONNECT_WITHIN).timeout(EXPORT_WITHIN).connect_lazy())
}

/// Parses request headers, one per line: `NAME: VALUE`. Ignores empty lines and lines that start with `#`.
fn headers_of(path: &Path) -> Result<HeaderMap, String> {
    let text = read("otlp_headers_file", path)?;
    let mut headers = HeaderMap::new();
    for (n, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = || format!("otlp_headers_file {}: line {} is not NAME: VALUE", path.display(), n + 1);
        let (name, value) = line.split_once(':').ok_or_else(wrong)?;
        let name = HeaderName::from_str(name.trim()).map_err(|_| wrong())?;
        let mut value = HeaderValue::from_str(value.trim()).map_err(|_| wrong())?;
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Ok(headers)
}

fn read(setting: &str, path: &Path) -> Result<String, String> {
    let failed = |problem: String| format!("{setting} {} cannot be used: {problem}", path.display());
    let size = fs::metadata(path).map_err(|error| failed(error.to_string()))?.len();
    if size > FILE_BYTES {
        return Err(failed(format!("it has {size} bytes; at most {FILE_BYTES} are read")));
    }
    fs::read_to_string(path).map_err(|error| failed(error.to_string()))
}

/// Returns the OpenTelemetry resource attributes of this broker. As in other programs, `OTEL_RESOURCE_ATTRIBUTES` and
/// `OTEL_SERVICE_NAME` add to them.
fn resource(name: &str) -> Resource {
    let resource = Resource::builder_empty()
        .with_service_name("howdah")
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_attribute(KeyValue::new("service.instance.id", name.to_owned()))
        .with_detector(Box::new(EnvResourceDetector::new()));
    match env::var("OTEL_SERVICE_NAME").ok().filter(|name| !name.is_empty()) {
        Some(name) => resource.with_service_name(name).build(),
        None => resource.build(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(text: &str) -> Result<HeaderMap, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        headers_of(file.path())
    }

    #[test]
    fn a_line_of_the_file_is_a_header_whose_value_is_never_shown() {
        let headers = headers("# ours\n\nAuthorization: Bearer s3cret\nx-scope-orgid:jobs\n").unwrap();
        assert_eq!(headers["authorization"], "Bearer s3cret");
        assert_eq!(headers["x-scope-orgid"], "jobs");
        assert!(!format!("{headers:?}").contains("s3cret"));
    }

    #[test]
    fn a_wrong_line_is_named_by_its_number_and_not_repeated() {
        for text in ["a: b\ns3cret", "a: b\ns3 cret: x", "a: b\nx: s3\u{7}cret"] {
            let error = headers(text).unwrap_err();
            assert!(error.contains("line 2 is not NAME: VALUE") && !error.contains("s3"), "{error}");
        }
        let error = headers_of(Path::new("/nowhere/headers")).unwrap_err();
        assert!(error.contains("otlp_headers_file /nowhere/headers"), "{error}");
    }
}
