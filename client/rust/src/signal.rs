//! Shutdown signals.

use std::io;

/// Resolves on SIGTERM or Ctrl-C.
///
/// ```no_run
/// # async fn f(worker: howdah_client::Worker) -> howdah_client::Result<()> {
/// worker.run_until(howdah_client::shutdown_signal()).await?;
/// # Ok(()) }
/// ```
///
/// After the first call, these signals no longer terminate the program.
pub async fn shutdown_signal() {
    if let Err(error) = signalled().await {
        // Without a signal handler, the future never resolves. The signals then end the program at once, not gracefully.
        tracing::warn!(%error, "cannot listen for SIGTERM and Ctrl-C: they do not stop this program gracefully");
        std::future::pending::<()>().await;
    }
}

#[cfg(unix)]
async fn signalled() -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut term, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = term.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

#[cfg(not(unix))]
async fn signalled() -> io::Result<()> {
    tokio::signal::ctrl_c().await
}
