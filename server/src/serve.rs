//! A whole broker: bind, migrate, start, serve, drain, stop.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{
    access::Access,
    api::{self, Health, Server},
    broker::Broker,
    config::{self, Config, WakeMode},
    error::Error,
    metrics::Metrics,
    store::{Store, StoreError},
    stores::{self, StoresError},
    tls::{self, Port, Tls, TlsPort},
    traces::Collector,
    web,
};

/// The part of the drain deadline that is kept for the last writes and for leaving the database.
const LAST_WRITES: Duration = Duration::from_secs(2);
/// How long the test of LISTEN may take at the start.
const LISTEN_PROBE: Duration = Duration::from_secs(15);

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
    /// A server ended unexpectedly.
    #[error("{0}")]
    Serve(String),
}

impl From<StoresError> for StartError {
    fn from(error: StoresError) -> Self {
        match error {
            StoresError::Config(problem) => Self::Config(problem),
            StoresError::Store { error, .. } => Self::Store(error),
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
    let store = prepare(&config).await?;
    let drain_deadline = config.drain_deadline;
    let metrics = Arc::new(Metrics::with_exemplars(config.otlp.is_on()));
    let collector = Collector::of(&config).map_err(StartError::Config)?;
    let access = Access::new(&config, store.clone(), &metrics).map_err(StartError::Config)?;
    let broker = Broker::start(config, store, access, metrics, collector, api::job_of_template).await?;
    let health = Health::new().await;
    let stopping = CancellationToken::new();
    // Streams end first; then there must be time for the last writes.
    let grpc_deadline = drain_deadline.saturating_sub(LAST_WRITES + Duration::from_secs(1)).max(Duration::from_secs(1));
    let http_stop = CancellationToken::new();
    let metrics = broker.metrics().tls.clone();
    if let Some(tls) = listeners.tls.clone() {
        tokio::spawn(tls::watch(tls, metrics.clone(), http_stop.clone()));
    }
    let tls_of = |port| listeners.tls.clone().map(|tls| Arc::new(TlsPort::new(tls, port, metrics.clone())));
    let server = Server::new(broker.clone(), health.clone()).with_tls(tls_of(Port::Grpc));
    let grpc_stop = stopping.clone().cancelled_owned();
    let mut grpc = tokio::spawn(server.serve(listeners.grpc, grpc_stop, grpc_deadline));
    // The HTTP port reports health and metrics to the end: it stops last.
    let http_tls = tls_of(Port::Http);
    let http = tokio::spawn(web::serve(listeners.http, http_tls, broker.clone(), http_stop.clone().cancelled_owned()));
    on_ready(&ready);
    let ended = tokio::select! {
        () = shutdown => None,
        () = broker.failed() => None,
        ended = &mut grpc => Some(ended),
    };
    let begun = Instant::now();
    tracing::info!(deadline = ?drain_deadline, "stopping");
    health.not_serving().await;
    stopping.cancel();
    broker.drain(grpc_deadline).await;
    let failed = broker.has_failed();
    let result = match ended {
        Some(ended) => flatten(ended),
        None => flatten(grpc.await),
    };
    broker.stop(drain_deadline.saturating_sub(begun.elapsed()).max(LAST_WRITES)).await;
    http_stop.cancel();
    // A scraper that keeps its connection open must not hold us up.
    let _ = tokio::time::timeout(Duration::from_millis(200), http).await;
    tracing::info!(took = ?begun.elapsed(), "stopped");
    if failed {
        return Err(StartError::Serve("a critical task panicked; see the log".into()));
    }
    result
}

async fn prepare(config: &Config) -> Result<Store, StartError> {
    let mut ready = stores::prepare(config, "the start of a broker").await?;
    let (Some(only), true) = (ready.pop(), ready.is_empty()) else {
        return Err(StartError::Config(format!("a broker serves one store so far: {} are given", config.stores.len())));
    };
    if let Some(facts) = &only.facts {
        tracing::info!(store = %only.name, number = %facts.number, "store");
    }
    if let Some(report) = only.report {
        if report.created {
            tracing::info!(schema = only.store.schema(), "created");
        }
        for name in &report.applied {
            tracing::info!(migration = %name, "applied");
        }
        for part in &report.replaced {
            tracing::info!(part = %part, "replaced");
        }
        if let Some(release) = &report.newer {
            tracing::info!(%release, "the schema's functions are of a newer release; leaving them unchanged");
        }
    }
    let store = only.store;
    // The first ack needs the partition of today.
    store.make_partitions(1).await?;
    if config.wake == WakeMode::Listen {
        probe_listen(&store).await?;
    }
    Ok(store)
}

/// Notifies ourselves: behind a transaction pooler LISTEN succeeds, but no notification ever arrives.
async fn probe_listen(store: &Store) -> Result<(), StartError> {
    let channel = format!("{}_probe", store.schema());
    let payload = hex::encode(rand::random::<[u8; 8]>());
    let mut listener = store.listen(&channel).await?;
    store.notify(&channel, &payload).await?;
    let heard = async {
        while let Some(heard) = listener.next().await {
            if heard == payload {
                return true;
            }
        }
        false
    };
    match tokio::time::timeout(LISTEN_PROBE, heard).await {
        Ok(true) => Ok(()),
        _ => Err(StartError::NoNotifications),
    }
}

fn flatten(ended: Result<Result<(), Error>, tokio::task::JoinError>) -> Result<(), StartError> {
    match ended {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(StartError::Serve(error.to_string())),
        Err(error) => Err(StartError::Serve(format!("the gRPC server ended: {error}"))),
    }
}
