//! The handshake of one connection. It never runs in the accept loop, so a slow one holds up nobody.

use std::{pin::pin, sync::Arc, time::Duration};

use rustls::{HandshakeKind, pki_types::UnixTime, server::Acceptor};
use tokio::{net::TcpStream, sync::Semaphore, time::timeout};
use tokio_rustls::{LazyConfigAcceptor, server::TlsStream};

use super::{
    HANDSHAKE, HANDSHAKES, PeerIdentity, Port, Tls, Transport,
    failure::{Failure, Failures},
    plaintext::{self, Begin},
    server_config::InForce,
};
use crate::metrics::TlsMetrics;

/// How long a handshake keeps its place. Afterwards it goes on without one, to the deadline: what it waits for then is the
/// client. So clients that stall keep others waiting for a second at most.
const PLACE: Duration = Duration::from_secs(1);
/// Bytes that rustls keeps of what the client does not take: four records. HTTP/2 then waits.
const BUFFER_BYTES: usize = 64 << 10;

/// TLS on one port.
pub(crate) struct TlsPort {
    tls: Arc<Tls>,
    port: Port,
    /// Handshakes at once. A client that has not sent all of its hello takes none.
    places: Arc<Semaphore>,
    failures: Failures,
}

impl TlsPort {
    pub(crate) fn new(tls: Arc<Tls>, port: Port, metrics: TlsMetrics) -> Self {
        let name = if port == Port::Grpc { "grpc" } else { "http" };
        Self { tls, port, places: Arc::new(Semaphore::new(HANDSHAKES)), failures: Failures::new(name, metrics) }
    }

    /// Whether clients show certificates.
    pub(crate) fn asks_clients(&self) -> bool {
        self.tls.asks_clients()
    }

    /// Makes a TLS connection of one that has been accepted, and says who the client is. `None`: there is none, and the
    /// reason has been reported.
    pub(crate) async fn accept(&self, stream: TcpStream) -> Option<(Transport, Option<PeerIdentity>)> {
        let peer = stream.peer_addr().ok();
        let failure = match timeout(HANDSHAKE, self.handshake(stream)).await {
            Ok(Ok((stream, identity))) => return Some((Transport::Tls(Box::new(stream)), identity)),
            Ok(Err(failure)) => failure,
            Err(_) => Failure::Late,
        };
        self.failures.report(&failure, peer);
        None
    }

    async fn handshake(&self, stream: TcpStream) -> Result<(TlsStream<TcpStream>, Option<PeerIdentity>), Failure> {
        let begin = plaintext::begin(&stream).await.map_err(|_| Failure::Closed)?;
        if begin != Begin::Tls {
            plaintext::answer(stream, begin).await;
            return Err(Failure::Plaintext);
        }
        let hello = LazyConfigAcceptor::new(Acceptor::default(), stream).await.map_err(|error| Failure::of(&error))?;
        let place = self.places.acquire().await;
        // Not before there is a place: the files may have changed meanwhile.
        let in_force = self.tls.in_force.load_full();
        let mut finish = pin!(hello.into_stream(in_force.of(self.port)).into_fallible());
        let finished = timeout(PLACE, &mut finish).await;
        drop(place);
        let finished = match finished {
            Ok(finished) => finished,
            Err(_) => finish.await,
        };
        let mut stream = match finished {
            Ok(stream) => stream,
            Err((error, stream)) => {
                // The client shall read the alert.
                plaintext::close(stream).await;
                return Err(Failure::of(&error));
            }
        };
        let identity = self.check(&in_force, &stream)?;
        stream.get_mut().1.set_buffer_limit(Some(BUFFER_BYTES));
        Ok((stream, identity))
    }

    /// What rustls leaves to us.
    fn check(&self, in_force: &InForce, stream: &TlsStream<TcpStream>) -> Result<Option<PeerIdentity>, Failure> {
        let connection = stream.get_ref().1;
        if self.port == Port::Grpc && connection.alpn_protocol() != Some(b"h2") {
            return Err(Failure::NoHttp2);
        }
        let Some(clients) = &in_force.clients else { return Ok(None) };
        let Some([certificate, above @ ..]) = connection.peer_certificates() else {
            let no_certificate = Failure::Client("the client shows no certificate".into());
            return if self.port == Port::Grpc { Err(no_certificate) } else { Ok(None) };
        };
        // A resumed session has the certificate of the first one, which may have expired or been revoked since.
        if connection.handshake_kind() == Some(HandshakeKind::Resumed) {
            let verified = clients.verify_client_cert(certificate, above, UnixTime::now());
            verified.map_err(|error| Failure::Client(format!("the client's certificate: {error}")))?;
        }
        let identity = PeerIdentity::in_certificate(certificate);
        let nobody = || {
            Failure::Client(
                "the client's certificate names nobody: it needs a URI or a DNS name as subject alternative name"
                    .into(),
            )
        };
        identity.map(Some).ok_or_else(nobody)
    }
}
