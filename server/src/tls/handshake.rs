//! TLS handshake of a connection. It runs outside the accept loop, so that a slow client delays no others.

use std::{pin::pin, sync::Arc, time::Duration};

use howdah_engine::metrics::TlsMetrics;
use rustls::{pki_types::UnixTime, server::Acceptor};
use tokio::{net::TcpStream, sync::Semaphore, time::timeout};
use tokio_rustls::{LazyConfigAcceptor, server::TlsStream};
use tokio_util::sync::CancellationToken;

use super::{
    HANDSHAKE, HANDSHAKES, PeerCertificate, Port, Tls, Transport,
    failure::{self, Failure, Failures},
    refusal::{self, Begin, NEEDS_TLS},
};

/// Maximum time that a handshake occupies one of the slots. After this time it only waits for the client, and continues
/// without a slot. So slow clients delay others for at most a second.
const PLACE: Duration = Duration::from_secs(1);
/// Maximum number of bytes that rustls buffers for a client that does not read: four TLS records. HTTP/2 waits while
/// the buffer is full.
const BUFFER_BYTES: usize = 64 << 10;

/// TLS state of one port.
pub(crate) struct TlsPort {
    tls: Arc<Tls>,
    port: Port,
    /// Semaphore for concurrent handshakes. A client needs a permit only after it has sent its complete `ClientHello`.
    slots: Arc<Semaphore>,
    failures: Failures,
}

impl TlsPort {
    pub(crate) fn new(tls: Arc<Tls>, port: Port, metrics: TlsMetrics) -> Self {
        let name = if port == Port::Grpc { "grpc" } else { "http" };
        Self { tls, port, slots: Arc::new(Semaphore::new(HANDSHAKES)), failures: Failures::new(name, metrics) }
    }

    /// Whether the port asks for client certificates.
    pub(crate) fn asks_clients(&self) -> bool {
        self.tls.asks_clients()
    }

    /// Performs the handshake of an accepted connection, and returns the client's identity. If the handshake fails,
    /// reports the failure and returns `None`. The connection ends when `cut` is cancelled or the client's certificate
    /// becomes invalid.
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
        let hello = LazyConfigAcceptor::new(Acceptor::default(), stream).await.map_err(|error| Failure::new(&error))?;
        let slot = self.slots.acquire().await;
        // The configuration is loaded after the wait for a slot, because the files may have changed meanwhile.
        let config = self.tls.in_force.load().for_port(self.port);
        let mut finish = pin!(hello.into_stream(config).into_fallible());
        let finished = timeout(PLACE, &mut finish).await;
        drop(slot);
        let finished = match finished {
            Ok(finished) => finished,
            Err(_) => finish.await,
        };
        let mut stream = match finished {
            Ok(stream) => stream,
            Err((error, stream)) => {
                // Gives the client time to read the TLS alert.
                refusal::close(stream).await;
                return Err(Failure::new(&error));
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

    /// Checks the negotiated protocol (ALPN) and the client's certificate after the handshake. The HTTP port also
    /// accepts clients without a certificate, because health probes have none. It rejects their protected requests
    /// later.
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
        // Registers the client before its certificate is verified. If the TLS files change in between, the check of
        // registered clients then covers this client, too.
        let client = self.tls.clients.enter(chain, cut).map_err(refused)?;
        let in_force = self.tls.in_force.load();
        let verifier = in_force.clients.as_ref().ok_or_else(|| refused("bug: the broker has no verifier".into()))?;
        let verified = verifier.verify_client_cert(&chain[0], &chain[1..], UnixTime::now());
        verified.map_err(|error| refused(failure::of_certificate(&error)))?;
        Ok(Some(client))
    }
}
