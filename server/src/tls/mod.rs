//! TLS of both ports: the files of the certificate, the handshake, and who the client is.
//!
//! The files are read at the start, and again while the broker runs. New ones replace those in force only if they are
//! good, and only for connections that come later. The open connections of clients whose certificate is
//! good no longer are closed.

mod certificate; // when it expires, whom it names
mod clients; // connections end with the client's certificate
mod deferred; // certificates are verified right after the handshake
mod failure; // handshakes that failed: counted, logged
mod files; // PEM files, and what is wrong with them
mod handshake; // from a TCP connection to a TLS one, within bounds
mod refusal; // clients that do not get in are told why
mod server_config; // files in force, as rustls wants them
mod transport; // a connection with TLS or without
mod watch; // the files are read again

#[cfg(test)]
mod tests;

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::pki_types::UnixTime;
use tokio::sync::Notify;

pub use certificate::PeerIdentity;
pub(crate) use clients::PeerCertificate;
pub(crate) use handshake::TlsPort;
pub(crate) use transport::Transport;
pub(crate) use watch::watch;

use self::{clients::OpenClients, files::Files, server_config::InForce};
use crate::config::TlsFiles;

/// How long a handshake may take.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(5);
/// Handshakes that a port works on at once.
pub(crate) const HANDSHAKES: usize = 256;
/// How often the files are read again.
pub(crate) const LOOK: Duration = Duration::from_secs(10);
/// How long before its end the log warns of the certificate.
pub(crate) const WARN_BEFORE: Duration = Duration::from_hours(14 * 24);

/// One of the two ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Port {
    Grpc,
    Http,
}

/// The certificate of a broker, which its ports share.
pub struct Tls {
    paths: TlsFiles,
    tickets: server_config::Tickets,
    in_force: ArcSwap<InForce>,
    /// The files as last read, good or not, so that a change is reported once.
    seen: Mutex<Result<Files, String>>,
    look_now: Notify,
    clients: Arc<OpenClients>,
}

impl Tls {
    /// Reads the files; `None` if the configuration has no certificate. An error names the flag, the file and what to do.
    pub fn load(paths: &TlsFiles) -> Result<Option<Arc<Self>>, String> {
        if paths.cert.is_none() {
            return Ok(None);
        }
        let tickets = server_config::Tickets::new()?;
        let files = Files::read(paths)?;
        let in_force = InForce::new(&files, paths, &tickets)?;
        files::warn_of_modes(paths);
        if in_force.expires <= UnixTime::now().as_secs() {
            let expired = certificate::date(in_force.expires);
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

    /// Reads the files again now.
    pub fn look_now(&self) {
        self.look_now.notify_one();
    }

    /// When the certificate in force expires.
    pub fn expires(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(self.in_force.load().expires)
    }

    /// Whether clients show certificates.
    pub(crate) fn asks_clients(&self) -> bool {
        self.paths.client_ca.is_some()
    }

    /// Reads the files, and puts them in force if they have changed and are good. `None`: nothing has changed.
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
                let expired = certificate::date(next.expires);
                return Err(files::problem("--tls-cert", self.paths.cert.as_deref(), &format!("expired on {expired}")));
            }
            self.in_force.store(Arc::new(next));
            Ok(())
        });
        *seen = now;
        Some(replaced)
    }
}
