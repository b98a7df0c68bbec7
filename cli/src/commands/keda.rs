//! `howdah keda`: runs an external scaler for KEDA.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::net::TcpListener;
use tonic::transport::{Certificate, Identity, ServerTlsConfig};

use super::{
    context::{Global, block_on},
    failure::Failure,
    output::Output,
    signals::Signals,
    tls_args, values,
};
use crate::keda::{self, Scaler, ServeError};

/// Timeout of a call to a broker, slightly shorter than KEDA's.
const CALL: Duration = Duration::from_secs(5);

/// Tell KEDA how many replicas of a worker to run
///
/// Serves the gRPC service `externalscaler.ExternalScaler`. Chooses the number of replicas, also zero, so that ready jobs start
/// within a given time. Prints one line when it listens: `ready keda=ADDR`. Brokers may start later.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah keda --server broker-a:7432,broker-b:7432
  howdah keda --listen 0.0.0.0:7434 --serve-tls-cert scaler.pem --serve-tls-key scaler.key --serve-tls-client-ca ca.pem

Fields of a ScaledObject's trigger: taskType, jobsPerReplica, drainSeconds and activationJobs.")]
pub(super) struct Args {
    /// Listen for KEDA on this address
    #[arg(
        long,
        value_name = "ADDR",
        default_value = "127.0.0.1:7434",
        env = "HOWDAH_KEDA_LISTEN",
        hide_env_values = true
    )]
    listen: SocketAddr,
    /// Poll the brokers for jobs at this interval, for triggers of type external-push
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = values::duration)]
    interval: Duration,
    /// Server certificate (PEM); needs --serve-tls-key
    #[arg(long, value_name = "FILE", requires = "serve_tls_key")]
    serve_tls_cert: Option<PathBuf>,
    /// Private key of --serve-tls-cert (PEM)
    #[arg(long, value_name = "FILE", requires = "serve_tls_cert")]
    serve_tls_key: Option<PathBuf>,
    /// Require client certificates signed by these authorities (PEM)
    #[arg(long, value_name = "FILE", requires = "serve_tls_cert")]
    serve_tls_client_ca: Option<PathBuf>,
    /// Accept callers without client certificates on a non-loopback address
    #[arg(long)]
    insecure_listen: bool,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    global.start_logging("info")?;
    let every = args.interval.max(Duration::from_millis(100));
    keda::check_address(args.listen, args.serve_tls_client_ca.is_some(), args.insecure_listen)?;
    let tls = args.tls()?;
    block_on(async {
        let client = global.connect_lazy(|builder| builder.request_timeout(CALL))?;
        let signals = Signals::<1>::catch()?;
        let stop = signals.stages[0].clone();
        let listener = TcpListener::bind(args.listen).await;
        let wrong =
            |error| Failure::usage(format!("cannot listen on {}: {error}; choose another with --listen", args.listen));
        let listener = listener.map_err(wrong)?;
        let address = listener.local_addr().map_err(wrong)?;
        let mut output = Output::new();
        // Ignores write errors: the scaler continues even if a supervisor has closed stdout.
        let _ = output.line(format_args!("ready keda={address}")).and_then(|()| output.flush());
        Ok(keda::serve(Scaler::new(client, every, stop.clone()), listener, tls, stop).await?)
    })
}

impl Args {
    fn tls(&self) -> Result<Option<ServerTlsConfig>, Failure> {
        let (Some(cert), Some(key)) = (&self.serve_tls_cert, &self.serve_tls_key) else { return Ok(None) };
        let read = |flag, path: &Path, kind| tls_args::read(flag, path, kind);
        let identity = Identity::from_pem(
            read("--serve-tls-cert", cert, "CERTIFICATE")?,
            read("--serve-tls-key", key, "PRIVATE KEY")?,
        );
        let tls = ServerTlsConfig::new().identity(identity);
        Ok(Some(match &self.serve_tls_client_ca {
            Some(ca) => tls.client_ca_root(Certificate::from_pem(read("--serve-tls-client-ca", ca, "CERTIFICATE")?)),
            None => tls,
        }))
    }
}

impl From<ServeError> for Failure {
    fn from(error: ServeError) -> Self {
        match error {
            ServeError::Open(_) => Self::usage(error.to_string()),
            ServeError::Transport(_) => Self::failed(error.to_string()),
        }
    }
}
