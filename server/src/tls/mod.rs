//! TLS for the gRPC and the HTTP port: certificate files, handshake, and client identity.
//!
//! The files are read at the start, and again while the broker runs. Changed files take effect only if they are valid,
//! and only for new connections. Open connections of clients whose certificate is no longer valid are closed.

mod clients; // certificates; connections end with the client's certificate
mod failure; // failed handshakes: counted, logged
mod files; // PEM files and their errors
mod handshake; // from a TCP connection to a TLS connection, within limits
mod refusal; // tells rejected clients the reason
mod server_config; // active files as a rustls configuration; clients are verified after the handshake
mod transport; // a connection with or without TLS
mod watch; // reloads the files; the check of `howdah doctor`

#[cfg(test)]
mod tests;

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use arc_swap::ArcSwap;
use howdah_core::config::TlsFiles;
use parking_lot::Mutex;
use rustls::pki_types::UnixTime;
use tokio::sync::Notify;

pub(crate) use clients::PeerCertificate;
pub use clients::PeerIdentity;
pub(crate) use handshake::TlsPort;
pub(crate) use transport::Transport;
pub use watch::examine;
pub(crate) use watch::watch;

use self::{clients::OpenClients, files::Files, server_config::InForce};

/// Time limit of a TLS handshake.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(5);
/// Maximum number of concurrent TLS handshakes per port.
pub(crate) const HANDSHAKES: usize = 256;
/// Interval at which the TLS files are read again.
pub(crate) const LOOK: Duration = Duration::from_secs(10);
/// Time before the certificate's expiry at which warnings in the log begin.
pub(crate) const WARN_BEFORE: Duration = Duration::from_hours(14 * 24);

/// One of the broker's two ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Port {
    Grpc,
    Http,
}

/// The broker's certificate and the other TLS state that both ports share.
pub struct Tls {
    paths: TlsFiles,
    tickets: server_config::Tickets,
    in_force: ArcSwap<InForce>,
    /// Contents of the files when last read, valid or not. Kept so that each change is reported once.
    seen: Mutex<Result<Files, String>>,
    look_now: Notify,
    clients: Arc<OpenClients>,
}

impl Tls {
    /// Reads the TLS files. Returns `None` if the configuration has no certificate. An error names the flag, the file
    /// and the remedy.
    pub fn load(paths: &TlsFiles) -> Result<Option<Arc<Self>>, String> {
        if paths.cert.is_none() {
            return Ok(None);
        }
        let tickets = server_config::Tickets::new()?;
        let files = Files::read(paths)?;
        let in_force = InForce::new(&files, paths, &tickets)?;
        files::warn_of_modes(paths);
        if in_force.expires <= UnixTime::now().as_secs() {
            let expired = clients::date(in_force.expires);
            tracing::error!(%expired, "the broker's certificate has expired (tls_cert); clients will refuse it");
        }
        Ok(Some(Arc::new(Self {
            paths: paths.clone(),
            tickets,
            in_force: ArcSwap::from_pointee(in_force),
            seen: Mutex::new(Ok(files)),
            look_now: Notify::new(),
            clients: Arc::default(),
        })))
    }

    /// Makes the broker read the TLS files again at once.
    pub fn look_now(&self) {
        self.look_now.notify_one();
    }

    /// Returns the expiry time of the active certificate.
    pub fn expires(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(self.in_force.load().expires)
    }

    /// Whether the ports ask for client certificates.
    pub(crate) fn asks_clients(&self) -> bool {
        self.paths.client_ca.is_some()
    }

    /// Reads the TLS files, and activates them if they have changed and are valid. Returns `None` if nothing has
    /// changed.
    fn reload(&self) -> Option<Result<(), String>> {
        let now = Files::read(&self.paths);
        let mut seen = self.seen.lock();
        if now == *seen {
            return None;
        }
        let replaced = now.as_ref().map_err(Clone::clone).and_then(|files| {
            let next = InForce::new(files, &self.paths, &self.tickets)?;
            let old = self.in_force.load();
            let now = UnixTime::now().as_secs();
            if next.expires <= now && old.expires > now {
                let expired = clients::date(next.expires);
                return Err(files::problem("--tls-cert", self.paths.cert.as_deref(), &format!("expired on {expired}")));
            }
            self.in_force.store(Arc::new(next));
            Ok(())
        });
        *seen = now;
        Some(replaced)
    }
}
