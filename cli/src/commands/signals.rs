//! Handles SIGINT and SIGTERM in stages: the first signal requests a graceful stop, the last one ends the process immediately.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
};

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::failure::Failure;

/// Signal handler with one cancellation token per stage.
#[derive(Debug)]
pub(super) struct Signals<const STAGES: usize> {
    /// Tokens, cancelled in order, one per signal.
    pub(super) stages: [CancellationToken; STAGES],
    code: Arc<AtomicU8>,
}

impl<const STAGES: usize> Signals<STAGES> {
    /// Starts catching signals. Needs a Tokio runtime.
    pub(super) fn catch() -> Result<Self, Failure> {
        Self::try_catch().map_err(|error| Failure::failed(format!("cannot catch signals: {error}")))
    }

    fn try_catch() -> io::Result<Self> {
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let stages = std::array::from_fn(|_| CancellationToken::new());
        let signals = Self { stages, code: Arc::default() };
        let stages = signals.stages.clone();
        let code = Arc::clone(&signals.code);
        tokio::spawn(async move {
            let mut stages = stages.iter();
            loop {
                let number = tokio::select! {
                    _ = interrupt.recv() => 2,
                    _ = terminate.recv() => 15,
                };
                code.store(128 + number, Ordering::Relaxed);
                match stages.next() {
                    Some(stage) => stage.cancel(),
                    None => std::process::exit(128 + i32::from(number)),
                }
            }
        });
        Ok(signals)
    }

    /// Exit code of the last signal (130 or 143), or 0 before the first signal.
    pub(super) fn exit_code(&self) -> u8 {
        self.code.load(Ordering::Relaxed)
    }
}
