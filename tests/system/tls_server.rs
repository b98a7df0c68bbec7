//! Tests TLS on the broker's ports: accepted protocols, client certificates, and clients that stall.

pub mod authority; // certificates to test with
mod bounds; // clients that stall or use another protocol
mod clients; // client certificates
mod dev; // howdah dev --tls
mod raw; // plain TLS connections
mod reload; // files that change while the broker runs
mod served; // jobs over TLS; errors of clients
mod start; // checks before a broker serves

use howdah_client::{Client, Tls};
use howdah_core::config::{Config, TlsFiles};

use self::authority::{Authority, Files};
use crate::support::*;

/// Starts a broker in this process that serves with these certificate files.
async fn broker_with(files: &Files, change: impl FnOnce(&mut Config)) -> TestBroker {
    TestBroker::start_with(|config| {
        config.tls = TlsFiles { cert: Some(files.cert.clone()), key: Some(files.key.clone()), ..TlsFiles::default() };
        change(config);
    })
    .await
}

fn https(service: &Service) -> String {
    format!("https://{}", service.address())
}

/// Returns the TLS options of a client that trusts this authority.
fn trust(authority: &Authority) -> Tls {
    Tls::new().ca_file(authority.ca()).expect("the CA")
}

/// Returns the TLS options of a client that trusts this authority and presents this certificate.
fn with_certificate(authority: &Authority, files: &Files) -> Tls {
    trust(authority).client_files(&files.cert, &files.key).expect("the certificate")
}

async fn connect(service: &Service, tls: Tls) -> howdah_client::Result<Client> {
    Client::builder().endpoint(https(service)).tls(tls).connect_timeout(PATIENCE).connect().await
}
