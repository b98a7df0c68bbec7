//! The handshake of one connection. It never runs in the accept loop, so a slow one holds up nobody.

use std::{pin::pin, sync::Arc, time::Duration};

use rustls::{pki_types::UnixTime, server::Acceptor};
use tokio::{net::TcpStream, sync::Semaphore, time::timeout};
use tokio_rustls::{LazyConfigAcceptor, server::TlsStream};
use tokio_util::sync::CancellationToken;

use super::{
    HANDSHAKE, HANDSHAKES, PeerCertificate, Port, Tls, Transport,
    failure::{self, Failure, Failures},
    refusal::{self, Begin, NEEDS_TLS},
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
    /// reason has been reported. `cut` ends the connection, as the end of the client's certificate does.
    pub(crate) async fn accept(
        &self,
        stream: TcpStream,
        cut: &CancellationToken,
    ) -> Option<(Transport, Option<PeerCertificate>)> {
        let peer = stream.peer_addr().ok();
        let failure = match timeout(HANDSHAKE, self.handshake(stream, cut)).await {
            Ok(Ok((stream, client))) => return Some((Transport::Tls(Box::new(stream)), client)),
            Ok(Err(failure)) => failure,
            Err(_) => Failure::Late,
        };
        self.failures.report(&failure, peer);
        None
    }

    async fn handshake(
        &self,
        stream: TcpStream,
        cut: &CancellationToken,
    ) -> Result<(TlsStream<TcpStream>, Option<PeerCertificate>), Failure> {
        let begin = refusal::begin(&stream).await.map_err(|_| Failure::Closed)?;
        if begin != Begin::Tls {
            refusal::refuse(stream, begin, NEEDS_TLS).await;
            return Err(Failure::Plaintext);
        }
        let hello = LazyConfigAcceptor::new(Acceptor::default(), stream).await.map_err(|error| Failure::of(&error))?;
        let place = self.places.acquire().await;
        // Not before there is a place: the files may have changed meanwhile.
        let config = self.tls.in_force.load().of(self.port);
        let mut finish = pin!(hello.into_stream(config).into_fallible());
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
                refusal::close(stream).await;
                return Err(Failure::of(&error));
            }
        };
        stream.get_mut().1.set_buffer_limit(Some(BUFFER_BYTES));
        match self.check(&stream, cut) {
            Ok(client) => Ok((stream, client)),
            Err(failure) => {
                if let Failure::Client(why) = &failure {
                    let speaks = if self.port == Port::Grpc { Begin::Http2 } else { Begin::Http1 };
                    refusal::refuse(stream, speaks, why).await;
                }
                Err(failure)
            }
        }
    }

    /// What the handshake leaves to us: the protocol, and the client's certificate. The HTTP port also takes clients
    /// without one, since probes have none, and refuses them where it matters.
    fn check(
        &self,
        stream: &TlsStream<TcpStream>,
        cut: &CancellationToken,
    ) -> Result<Option<PeerCertificate>, Failure> {
        let connection = stream.get_ref().1;
        if self.port == Port::Grpc && connection.alpn_protocol() != Some(b"h2") {
            return Err(Failure::NoHttp2);
        }
        if !self.asks_clients() {
            return Ok(None);
        }
        let Some(chain) = connection.peer_certificates().filter(|chain| !chain.is_empty()) else {
            let none = "client certificate needed: none was shown (--tls-cert, --tls-key)".to_owned();
            return if self.port == Port::Grpc { Err(Failure::Client(none)) } else { Ok(None) };
        };
        let refused = |why| Failure::Client(format!("client certificate refused: {why}"));
        // It enters before it is verified: else, files that change in between would find it in neither place.
        let client = self.tls.clients.enter(chain, cut).map_err(refused)?;
        let in_force = self.tls.in_force.load();
        let verifier = in_force.clients.as_ref().ok_or_else(|| refused("nothing is there to verify it".into()))?;
        let verified = verifier.verify_client_cert(&chain[0], &chain[1..], UnixTime::now());
        verified.map_err(|error| refused(failure::of_certificate(&error)))?;
        Ok(Some(client))
    }
}
