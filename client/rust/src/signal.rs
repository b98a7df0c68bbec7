//! When a program is told to end.

use std::io;

/// Resolves when somebody wants the program to end: SIGTERM or Ctrl-C.
///
/// ```no_run
/// # async fn f(worker: howdah_client::Worker) -> howdah_client::Result<()> {
/// worker.run_until(howdah_client::shutdown_signal()).await?;
/// # Ok(()) }
/// ```
///
/// From the first call on, these signals do not end the program by themselves.
pub async fn shutdown_signal() {
    if let Err(error) = signalled().await {
        // The program can still be ended, if not as well.
        tracing::warn!(%error, "cannot wait for signals");
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
