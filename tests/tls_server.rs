//! TLS on the ports of a broker: what goes through, who gets in, and what does not hold it up.

pub mod authority; // certificates to test with
mod bounds; // clients that stall, or speak something else
mod clients; // certificates of clients
mod dev; // howdah dev --tls
mod raw; // TLS connections without anything around them
mod reload; // files that change while the broker runs
mod served; // jobs over TLS; errors of clients
mod start; // what must be so before a broker serves

use howdah_client::{Client, Tls};
use howdah_server::config::{Config, TlsFiles};

use self::authority::{Authority, Files};
use crate::support::*;

/// A broker in this process that serves with these files.
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

/// What a client trusts.
fn trust(authority: &Authority) -> Tls {
    Tls::new().ca_file(authority.ca()).expect("the CA")
}

/// What a client trusts, and shows.
fn with_certificate(authority: &Authority, files: &Files) -> Tls {
    trust(authority).client_files(&files.cert, &files.key).expect("the certificate")
}

async fn connect(service: &Service, tls: Tls) -> howdah_client::Result<Client> {
    Client::builder().endpoint(https(service)).tls(tls).connect_timeout(PATIENCE).connect().await
}
