//! `howdah serve`: runs a broker.

use std::{future::pending, sync::Arc};

use howdah_core::config::{self, Config, StoreConfig, redacted};
use howdah_engine::store::reload_files;
use tokio::{
    select,
    signal::unix::{SignalKind, signal},
    sync::Notify,
};
use tokio_util::sync::CancellationToken;

use super::{
    broker_args::{BrokerArgs, ConfigArgs, DatabaseArgs, StoreArgs, flag, with_databases},
    context::{Global, block_on_threads, start_logging},
    failure::Failure,
    output::Output,
    signals::Signals,
};
use crate::secrets;
use howdah_server::{
    serve::{self, Listeners, Reload},
    tls::Tls,
};

/// Run a broker on one or several Postgres databases
///
/// Migrates the schema, then serves gRPC and HTTP. Any number of brokers may share a database. When the broker is ready, it
/// prints one line: `ready grpc=ADDR http=ADDR postgres=URL`, or with several stores `store.NAME=URL` for each store. SIGTERM or
/// SIGINT drains the broker (see --drain-deadline), and a second signal ends it immediately. SIGHUP reloads the files of TLS
/// and of database connections, and adds and removes stores as the configuration now says (like `howdah store reload`).
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah serve --database-url postgres://howdah@db.internal/app
  HOWDAH_DATABASE_URL_FILE=/run/secrets/howdah howdah serve
  howdah serve --listen 0.0.0.0:7432 --tls-cert server.pem --tls-key server.key --tls-client-ca ca.pem
  howdah serve --store shop=postgres://db1.internal/shop --store mail=postgres://db2.internal/mail
  howdah config > howdah.toml; howdah serve --config howdah.toml

Flags override HOWDAH_* variables, which override the file; `howdah config` prints the result.")]
pub(super) struct Args {
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(flatten)]
    stores: StoreArgs,
    #[command(flatten)]
    broker: BrokerArgs,
    /// Do not migrate the schema: run `howdah migrate` before [env: HOWDAH_MIGRATE=false]
    #[arg(long, help_heading = "Configuration")]
    no_migrate: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let mut flags = [args.database.flags(), args.stores.flags(), args.broker.flags()].concat();
    let off = args.no_migrate.then(|| "false".to_owned());
    flags.extend(flag("migrate", off.as_ref()));
    let settings = with_databases(args.config.load(global, flags.clone())?)?;
    start_logging(&settings.log, "info")?;
    let (config, environment) = (args.config.sources(global, flags), secrets::environment());
    let read_config = move || {
        let (file, flags) = config.clone();
        config::load(file, &environment, flags).map(|settings| settings.broker).map_err(|error| error.to_string())
    };
    let reload = Reload { read_config: Box::new(read_config), requested: Arc::default() };
    block_on_threads(settings.broker.worker_threads(), async {
        let signals = Signals::<1>::catch()?;
        let listeners = Listeners::bind(&settings.broker).await?;
        reload_on_hangup(listeners.tls.clone(), reload.requested.clone())?;
        serve(settings.broker, listeners, reload, &signals, |_| Vec::new()).await
    })
}

/// Reloads the files of TLS and of database connections, and the stores, at each SIGHUP.
fn reload_on_hangup(tls: Option<Arc<Tls>>, stores: Arc<Notify>) -> Result<(), Failure> {
    let hangups = signal(SignalKind::hangup());
    let mut hangups = hangups.map_err(|error| Failure::failed(format!("cannot catch signals: {error}")))?;
    tokio::spawn(async move {
        while hangups.recv().await.is_some() {
            tracing::info!("SIGHUP: reloading files of TLS and of database connections, and the stores");
            reload_files();
            stores.notify_one();
            if let Some(tls) = &tls {
                tls.look_now();
            }
        }
    });
    Ok(())
}

/// Serves until a signal arrives. When the broker is ready, prints the ready line and the lines that `more` returns.
pub(super) async fn serve(
    config: Config,
    listeners: Listeners,
    reload: Reload,
    signals: &Signals<1>,
    more: impl FnOnce(&serve::Ready) -> Vec<String>,
) -> Result<(), Failure> {
    let stores = config.each_store();
    let of = |store: &StoreConfig| match &stores[..] {
        [_] => format!(" postgres={}", redacted(&store.database_url)),
        _ => format!(" store.{}={}", store.name, redacted(&store.database_url)),
    };
    let databases: String = stores.iter().map(of).collect();
    let began = CancellationToken::new();
    let say_ready = |ready: &serve::Ready| {
        began.cancel();
        let mut output = Output::new();
        let line = format!("ready grpc={} http={}{databases}", ready.grpc, ready.http);
        // Write errors are ignored, because a supervisor may have closed stdout.
        let mut lines = std::iter::once(line).chain(more(ready));
        let _ = lines.try_for_each(|line| output.line(line)).and_then(|()| output.flush());
    };
    let stop = &signals.stages[0];
    // Until the broker is ready, a signal ends the process without a drain, because Postgres may take long to answer.
    let stopped_early = async {
        stop.cancelled().await;
        if began.is_cancelled() {
            pending::<()>().await;
        }
    };
    select! {
        served = serve::run(config, listeners, reload, say_ready, stop.cancelled()) => Ok(served?),
        () = stopped_early => Err(Failure::interrupted(signals.exit_code(), None)),
    }
}
