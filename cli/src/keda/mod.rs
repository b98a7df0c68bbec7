//! An external scaler for KEDA, which computes the number of replicas of a worker. It is a client of the brokers.
//!
//! - `metadata`: parses the trigger of a `ScaledObject`
//! - `demand`: computes the concurrency that is needed; no I/O
//! - `scaler`: the gRPC service
//! - this module: its port

mod demand;
mod metadata;
mod scaler;

use std::{net::SocketAddr, time::Duration};

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Server, ServerTlsConfig, server::TcpIncoming};

use self::proto::external_scaler_server::ExternalScalerServer;
pub use self::scaler::Scaler;

/// The gRPC interface published by KEDA.
#[allow(clippy::all, clippy::pedantic, unreachable_pub)]
pub mod proto {
    tonic::include_proto!("externalscaler");
}

/// Maximum size of a request from KEDA. A request holds little more than the `metadata` of a trigger.
const MESSAGE: usize = 256 << 10;
/// Maximum number of concurrent calls per connection. KEDA opens one connection, with a stream for each `ScaledObject`.
const CALLS: u32 = 2_000;
const PING: Duration = Duration::from_secs(30);
const PING_ANSWER: Duration = Duration::from_secs(10);

/// Reason why the scaler cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Other machines can reach the address, and callers are not authenticated.
    #[error(
        "--listen is {0}, which other machines may reach, and callers are not authenticated: require client certificates \
         (--serve-tls-cert, --serve-tls-key, --serve-tls-client-ca), listen on 127.0.0.1, or accept all callers \
         with --insecure-listen"
    )]
    Open(SocketAddr),
    /// TLS files or the connection failed.
    #[error("{0}")]
    Transport(#[from] tonic::transport::Error),
}

/// Refuses a non-loopback address, unless callers are authenticated or `is_open` allows it.
pub(crate) fn check_address(address: SocketAddr, is_known: bool, is_open: bool) -> Result<(), ServeError> {
    let is_safe = address.ip().to_canonical().is_loopback() || is_known || is_open;
    if is_safe { Ok(()) } else { Err(ServeError::Open(address)) }
}

/// Serves the scaler and the gRPC health service until `stop`.
pub async fn serve(
    scaler: Scaler,
    listener: TcpListener,
    tls: Option<ServerTlsConfig>,
    stop: CancellationToken,
) -> Result<(), ServeError> {
    let (reporter, health) = tonic_health::server::health_reporter();
    let service = ExternalScalerServer::new(scaler).max_decoding_message_size(MESSAGE);
    reporter.set_serving::<ExternalScalerServer<Scaler>>().await;
    let mut server = Server::builder()
        .max_concurrent_streams(CALLS)
        .http2_keepalive_interval(Some(PING))
        .http2_keepalive_timeout(Some(PING_ANSWER));
    if let Some(tls) = tls {
        server = server.tls_config(tls)?;
    }
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    server
        .add_service(health)
        .add_service(service)
        .serve_with_incoming_shutdown(incoming, stop.cancelled_owned())
        .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::check_address;

    #[test]
    fn an_address_other_than_loopback_needs_client_certificates_or_permission() {
        let check =
            |address: &str, is_known, is_open| check_address(address.parse().unwrap(), is_known, is_open).is_ok();
        assert!(check("127.0.0.1:1", false, false) && check("[::ffff:127.0.0.1]:1", false, false));
        assert!(!check("0.0.0.0:1", false, false) && !check("10.0.0.1:1", false, false));
        assert!(check("0.0.0.0:1", true, false) && check("0.0.0.0:1", false, true));
    }
}
