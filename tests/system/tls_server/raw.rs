//! Plain TLS connections.

use std::{io, sync::Arc};

use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{Authority, Files};
use crate::support::*;

/// Returns a TLS client configuration with this ALPN protocol and certificate. Connections with the same configuration resume
/// each other's TLS sessions.
pub fn config(authority: &Authority, alpn: Option<&str>, shows: Option<&Files>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.ca()).expect("PEM")).expect("a root");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("versions");
    let builder = builder.with_root_certificates(roots);
    let mut config = match shows {
        None => builder.with_no_client_auth(),
        Some(files) => {
            let cert = CertificateDer::from_pem_file(&files.cert).expect("PEM");
            let key = PrivateKeyDer::from_pem_file(&files.key).expect("PEM");
            builder.with_client_auth_cert(vec![cert], key).expect("a pair")
        }
    };
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    Arc::new(config)
}

pub async fn connect(address: &str, config: Arc<ClientConfig>) -> io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await.expect("connect");
    let name = "localhost".try_into().expect("a name");
    with_timeout("a handshake", TlsConnector::from(config).connect(name, stream)).await
}

/// Sends an HTTP `GET` request over TLS, and returns the whole response.
pub async fn get(https: &str, path: &str, config: Arc<ClientConfig>) -> String {
    let mut stream = connect(https, config).await.expect("a handshake");
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("write");
    let mut answer = String::new();
    with_timeout("an answer", stream.read_to_string(&mut answer)).await.expect("read");
    answer
}

/// Reads until the broker closes the connection, and returns the data.
pub async fn until_closed(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A reset also closes the connection.
    let _ = with_timeout("the end of the connection", stream.read_to_end(&mut bytes)).await;
    bytes
}
