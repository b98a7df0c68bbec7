//! Tests of client certificates: the identity of the caller, as a service sees it.

use std::sync::Arc;

use howdah_core::{config::TlsFiles, job::Limits};
use howdah_engine::metrics::TlsMetrics;
use hyper_util::rt::TokioIo;
use rcgen::{CertificateParams, KeyPair, SanType};
use rustls::{ClientConfig, RootCertStore, pki_types::PrivateKeyDer};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::{
    codegen::http::Uri,
    transport::{Channel, Endpoint},
};

use super::fixture::{Running, Times, named, serve, serve_tls};
use crate::tls::{Port, Tls, TlsPort};

/// A self-signed certificate that serves as authority, broker certificate and client certificate.
struct Own {
    cert: rcgen::Certificate,
    key: KeyPair,
}

fn own() -> Own {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["localhost".into()]).unwrap();
    params.subject_alt_names.push(SanType::URI("spiffe://example.org/mailer".try_into().unwrap()));
    Own { cert: params.self_signed(&key).unwrap(), key }
}

/// Returns a channel that presents the client certificate.
async fn channel(running: &Running, own: &Own) -> Channel {
    let mut roots = RootCertStore::empty();
    roots.add(own.cert.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let key = PrivateKeyDer::try_from(own.key.serialize_der()).unwrap();
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![own.cert.der().clone()], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let (connector, address) = (TlsConnector::from(Arc::new(config)), running.address);
    let connect = tower::service_fn(move |_: Uri| {
        let connector = connector.clone();
        async move {
            let stream = TcpStream::connect(address).await?;
            connector.connect("localhost".try_into().unwrap(), stream).await.map(TokioIo::new)
        }
    });
    Endpoint::from_static("http://localhost").connect_with_connector(connect).await.unwrap()
}

async fn who(channel: Channel) -> String {
    let mut client = howdah_proto::v1::task_type_service_client::TaskTypeServiceClient::new(channel);
    client.list_task_types(named("who")).await.unwrap().into_inner().task_types.remove(0).name
}

#[tokio::test]
async fn a_service_learns_who_calls_from_the_clients_certificate() {
    let (own, directory) = (own(), tempfile::tempdir().unwrap());
    let write = |name: &str, text: String| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        Some(path)
    };
    let cert = write("cert.pem", own.cert.pem());
    let files =
        TlsFiles { client_ca: cert.clone(), cert, key: write("key.pem", own.key.serialize_pem()), client_crl: None };
    let tls = Tls::load(&files).unwrap().unwrap();
    let port = Arc::new(TlsPort::new(tls, Port::Grpc, TlsMetrics::default()));
    let running = serve_tls(Limits::default(), Times::default(), Some(port)).await;
    assert_eq!(who(channel(&running, &own).await).await, "spiffe://example.org/mailer");
}

#[tokio::test]
async fn without_tls_a_caller_has_no_identity() {
    let running = serve(Limits::default()).await;
    assert_eq!(who(running.channel().await).await, "");
}
