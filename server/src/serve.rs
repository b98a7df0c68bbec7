//! A whole broker: bind, migrate, start, serve, drain, stop.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{
    api::{self, Health, Server},
    config::{self, Config},
    error::Error,
    store::StoreError,
    stores::{Fleet, StoresError},
    tls::{self, Port, Tls, TlsPort},
    web,
};

/// The part of the drain deadline that is kept for the last writes and for leaving the database.
const LAST_WRITES: Duration = Duration::from_secs(2);

/// Why a broker could not start, or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be bound.
    #[error("cannot listen on {address}: {error}; is another program using it?")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The cause.
        error: std::io::Error,
    },
    /// The configuration cannot work.
    #[error("{0}")]
    Config(String),
    /// The database refused or could not be reached.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// Notifications do not come through.
    #[error(
        "LISTEN does not work on this connection (a pooler in transaction mode?): give a direct one with \
         --listen-database-url, or poll with --wake poll"
    )]
    NoNotifications,
    /// A store cannot be served together with the others.
    #[error("{0}")]
    Stores(String),
    /// A server ended unexpectedly.
    #[error("{0}")]
    Serve(String),
}

impl StartError {
    /// Of one store nobody needs to know the name.
    fn of(error: StoresError, config: &Config) -> Self {
        match error {
            StoresError::Config(problem) => Self::Config(problem),
            error if config.stores.len() > 1 => Self::Stores(error.to_string()),
            StoresError::Store { error, .. } => Self::Store(error),
            StoresError::NoNotifications(_) => Self::NoNotifications,
        }
    }
}

/// Bound sockets: no other program can take the addresses any more.
pub struct Listeners {
    /// For gRPC.
    pub grpc: TcpListener,
    /// For health and metrics.
    pub http: TcpListener,
    /// TLS on both, if it is configured.
    pub tls: Option<Arc<Tls>>,
}

impl Listeners {
    /// Reads the files of TLS and binds the configured addresses; port 0 picks a free one. It refuses addresses that
    /// others can reach if nothing shows who calls.
    pub async fn bind(config: &Config) -> Result<Self, StartError> {
        config::check_addresses(config).map_err(StartError::Config)?;
        let tls = Tls::load(&config.tls).map_err(StartError::Config)?;
        let bind = |address: SocketAddr| async move {
            TcpListener::bind(address).await.map_err(|error| StartError::Bind { address, error })
        };
        Ok(Self { grpc: bind(config.listen).await?, http: bind(config.http).await?, tls })
    }
}

/// The addresses of a broker that is ready.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    /// gRPC.
    pub grpc: SocketAddr,
    /// Health and metrics.
    pub http: SocketAddr,
}

/// Serves until `shutdown` is ready, then drains and returns by the drain deadline.
pub async fn run(
    config: Config,
    listeners: Listeners,
    on_ready: impl FnOnce(&Ready),
    shutdown: impl Future<Output = ()>,
) -> Result<(), StartError> {
    let address = |listener: &TcpListener| listener.local_addr().map_err(|e| StartError::Serve(e.to_string()));
    let ready = Ready { grpc: address(&listeners.grpc)?, http: address(&listeners.http)? };
    let drain_deadline = config.drain_deadline;
    if cfg!(debug_assertions) {
        tracing::warn!(
            "this build is not optimised: `cargo build --release` makes one that does several times the work"
        );
    }
    let fleet =
        Box::pin(Fleet::start(&config, api::job_of_template)).await.map_err(|error| StartError::of(error, &config))?;
    let health = Health::new().await;
    let stopping = CancellationToken::new();
    // Streams end first; then there must be time for the last writes.
    let grpc_deadline = drain_deadline.saturating_sub(LAST_WRITES + Duration::from_secs(1)).max(Duration::from_secs(1));
    let http_stop = CancellationToken::new();
    let metrics = fleet.main().metrics().tls.clone();
    if let Some(tls) = listeners.tls.clone() {
        tokio::spawn(tls::watch(tls, metrics.clone(), http_stop.clone()));
    }
    let tls_of = |port| listeners.tls.clone().map(|tls| Arc::new(TlsPort::new(tls, port, metrics.clone())));
    let server = Server::new(fleet.clone(), health.clone()).with_tls(tls_of(Port::Grpc));
    let grpc_stop = stopping.clone().cancelled_owned();
    let mut grpc = tokio::spawn(server.serve(listeners.grpc, grpc_stop, grpc_deadline));
    // The HTTP port reports health and metrics to the end: it stops last.
    let http_tls = tls_of(Port::Http);
    let http = tokio::spawn(web::serve(listeners.http, http_tls, fleet.clone(), http_stop.clone().cancelled_owned()));
    on_ready(&ready);
    let ended = tokio::select! {
        () = shutdown => None,
        () = fleet.failed() => None,
        ended = &mut grpc => Some(ended),
    };
    let begun = Instant::now();
    tracing::info!(deadline = ?drain_deadline, "stopping");
    health.not_serving().await;
    stopping.cancel();
    fleet.drain(grpc_deadline).await;
    let failed = fleet.has_failed();
    let result = match ended {
        Some(ended) => flatten(ended),
        None => flatten(grpc.await),
    };
    fleet.stop(drain_deadline.saturating_sub(begun.elapsed()).max(LAST_WRITES)).await;
    http_stop.cancel();
    // A scraper that keeps its connection open must not hold us up.
    let _ = tokio::time::timeout(Duration::from_millis(200), http).await;
    tracing::info!(took = ?begun.elapsed(), "stopped");
    if failed {
        return Err(StartError::Serve("a critical task panicked; see the log".into()));
    }
    result
}

fn flatten(ended: Result<Result<(), Error>, tokio::task::JoinError>) -> Result<(), StartError> {
    match ended {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(StartError::Serve(error.to_string())),
        Err(error) => Err(StartError::Serve(format!("the gRPC server ended: {error}"))),
    }
}
