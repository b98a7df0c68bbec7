//! Runs a broker process: bind, migrate, start, serve, drain, stop.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_core::{
    config::{self, Config},
    error::Error,
};
use howdah_engine::store::StoreError;
use tokio::{net::TcpListener, sync::Notify};
use tokio_util::sync::CancellationToken;

use crate::{
    api::{self, Health, Server},
    stores::{ReadConfig, SharedStores, StoresError},
    tls::{self, Port, Tls, TlsPort},
    web,
};

/// Part of `drain_deadline` reserved for the last writes and for unregistering from the database.
const LAST_WRITES: Duration = Duration::from_secs(2);

/// The reason why a broker could not start, or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be bound.
    #[error("cannot listen on {address}: {error}; is another program using it?")]
    Bind {
        address: SocketAddr,
        /// Error of the operating system.
        error: std::io::Error,
    },
    /// The configuration is invalid.
    #[error("{0}")]
    Config(String),
    /// The database refused a request or is unreachable.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// Notifications (LISTEN/NOTIFY) do not arrive.
    #[error(
        "LISTEN does not work on this connection (a pooler in transaction mode?): give a direct one with \
         --listen-database-url, or poll with --wake poll"
    )]
    NoNotifications,
    /// A store cannot be served together with the other stores.
    #[error("{0}")]
    Stores(String),
    /// The gRPC server ended unexpectedly, or a critical task panicked.
    #[error("{0}")]
    Serve(String),
}

impl StartError {
    /// Converts an error of starting the stores. The message names the store only if several stores are configured.
    fn new(error: StoresError, config: &Config) -> Self {
        match error {
            StoresError::Config(problem) => Self::Config(problem),
            error if config.stores.len() > 1 => Self::Stores(error.to_string()),
            StoresError::Store { error, .. } => Self::Store(error),
            StoresError::NoNotifications(_) => Self::NoNotifications,
        }
    }
}

/// Bound sockets of the gRPC port and the HTTP port.
pub struct Listeners {
    /// Port for gRPC.
    pub grpc: TcpListener,
    /// Port for health and metrics.
    pub http: TcpListener,
    /// TLS for both ports, if configured.
    pub tls: Option<Arc<Tls>>,
}

impl Listeners {
    /// Reads the TLS files and binds the configured addresses; port 0 selects a free port. Refuses non-loopback addresses
    /// without authentication or TLS, unless the configuration allows them.
    pub async fn bind(config: &Config) -> Result<Self, StartError> {
        config::check_addresses(config).map_err(StartError::Config)?;
        let tls = Tls::load(&config.tls).map_err(StartError::Config)?;
        let bind = |address: SocketAddr| async move {
            TcpListener::bind(address).await.map_err(|error| StartError::Bind { address, error })
        };
        Ok(Self { grpc: bind(config.listen).await?, http: bind(config.http).await?, tls })
    }
}

/// The addresses on which a started broker listens.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    /// Address of the gRPC port.
    pub grpc: SocketAddr,
    /// Address of the port for health and metrics.
    pub http: SocketAddr,
}

/// How a running broker reads its configuration again.
pub struct Reload {
    /// Reads the configuration.
    pub read_config: ReadConfig,
    /// Notified when the stores are to be compared with the configuration.
    pub requested: Arc<Notify>,
}

impl Reload {
    /// Always finds this configuration.
    pub fn fixed(config: &Config) -> Self {
        let config = config.clone();
        Self { read_config: Box::new(move || Ok(config.clone())), requested: Arc::default() }
    }
}

/// Serves until `shutdown` completes, then drains. Returns before `drain_deadline` has passed.
pub async fn run(
    config: Config,
    listeners: Listeners,
    reload: Reload,
    on_ready: impl FnOnce(&Ready),
    shutdown: impl Future<Output = ()>,
) -> Result<(), StartError> {
    let address = |listener: &TcpListener| listener.local_addr().map_err(|e| StartError::Serve(e.to_string()));
    let ready = Ready { grpc: address(&listeners.grpc)?, http: address(&listeners.http)? };
    let drain_deadline = config.drain_deadline;
    if cfg!(debug_assertions) {
        tracing::warn!(
            "this is a debug build, several times slower than a release build: build with `cargo build --release`"
        );
    }
    let stores = Box::pin(SharedStores::start(&config, api::job_of_template, reload.read_config))
        .await
        .map_err(|error| StartError::new(error, &config))?;
    let reloading = tokio::spawn(reload_on_request(stores.clone(), reload.requested));
    let health = Health::new().await;
    let stopping = CancellationToken::new();
    // Worker streams must end before `drain_deadline`, so that time is left for the last writes.
    let grpc_deadline = drain_deadline.saturating_sub(LAST_WRITES + Duration::from_secs(1)).max(Duration::from_secs(1));
    let http_stop = CancellationToken::new();
    let metrics = stores.main().metrics().tls.clone();
    if let Some(tls) = listeners.tls.clone() {
        tokio::spawn(tls::watch(tls, metrics.clone(), http_stop.clone()));
    }
    let tls_of = |port| listeners.tls.clone().map(|tls| Arc::new(TlsPort::new(tls, port, metrics.clone())));
    let server = Server::new(stores.clone(), health.clone()).with_tls(tls_of(Port::Grpc));
    let grpc_stop = stopping.clone().cancelled_owned();
    let mut grpc = tokio::spawn(server.serve(listeners.grpc, grpc_stop, grpc_deadline));
    // The HTTP port stops last, because it reports health and metrics until the end.
    let http_tls = tls_of(Port::Http);
    let http = tokio::spawn(web::serve(listeners.http, http_tls, stores.clone(), http_stop.clone().cancelled_owned()));
    on_ready(&ready);
    let first = stores.now();
    let ended = tokio::select! {
        () = shutdown => None,
        () = first.failed() => None,
        ended = &mut grpc => Some(ended),
    };
    let begun = Instant::now();
    tracing::info!(deadline = ?drain_deadline, "stopping");
    health.not_serving().await;
    stopping.cancel();
    reloading.abort();
    let stores = stores.now();
    stores.drain(grpc_deadline).await;
    let failed = stores.has_failed();
    let result = match ended {
        Some(ended) => flatten(ended),
        None => flatten(grpc.await),
    };
    stores.stop(drain_deadline.saturating_sub(begun.elapsed()).max(LAST_WRITES)).await;
    http_stop.cancel();
    // Waits only briefly: a metrics scraper that keeps its connection open must not delay the stop.
    let _ = tokio::time::timeout(Duration::from_millis(200), http).await;
    tracing::info!(took = ?begun.elapsed(), "stopped");
    if failed {
        return Err(StartError::Serve("a critical task panicked; see the log".into()));
    }
    result
}

/// Reloads the stores whenever that is requested.
async fn reload_on_request(stores: SharedStores, requested: Arc<Notify>) {
    loop {
        requested.notified().await;
        if let Err(error) = stores.reload().await {
            tracing::error!(%error, "cannot reload the stores; the broker goes on with its present stores");
        }
    }
}

fn flatten(ended: Result<Result<(), Error>, tokio::task::JoinError>) -> Result<(), StartError> {
    match ended {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(StartError::Serve(error.to_string())),
        Err(error) => Err(StartError::Serve(format!("the gRPC server ended: {error}"))),
    }
}
