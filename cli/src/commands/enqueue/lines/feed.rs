//! Prefetches input lines for the requests that send them.

use std::sync::Arc;

use bytes::Bytes;
use tokio::{
    select,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use crate::commands::{failure::Failure, input::Input};

/// Maximum lines and bytes in memory that are read from the input and not yet sent. More input waits for a request to finish.
const AHEAD_LINES: usize = 20_000;
const AHEAD_BYTES: u32 = 64 << 20;

/// Line of the input.
pub(super) struct Line {
    /// Line number, from 1.
    pub(super) number: u64,
    pub(super) payload: Bytes,
    /// Semaphore permit for the bytes of the line. It limits the unsent input in memory, and is released when the line is
    /// dropped.
    _room: Option<OwnedSemaphorePermit>,
}

/// Stream of input lines.
pub(super) struct Feed {
    lines: mpsc::Receiver<Line>,
    reading: JoinHandle<Result<(), Failure>>,
}

impl Feed {
    /// Starts reading at line `first`, until the end of the input or until `stop` is cancelled.
    pub(super) fn start(input: Input, first: u64, stop: CancellationToken) -> Self {
        let (sender, lines) = mpsc::channel(AHEAD_LINES);
        Self { lines, reading: tokio::spawn(read(input, first, sender, stop)) }
    }

    /// Returns the next line; `None` after the last one.
    pub(super) async fn next(&mut self) -> Option<Line> {
        self.lines.recv().await
    }

    /// Returns the next line if it has already been read.
    pub(super) fn next_if_read(&mut self) -> Option<Line> {
        self.lines.try_recv().ok()
    }

    /// Stops reading, and returns the read error, if any.
    pub(super) async fn end(self) -> Result<(), Failure> {
        drop(self.lines);
        // A join error (the reading task was cancelled or has panicked) is not an error of the input.
        self.reading.await.unwrap_or(Ok(()))
    }
}

async fn read(
    mut input: Input,
    first: u64,
    sender: mpsc::Sender<Line>,
    stop: CancellationToken,
) -> Result<(), Failure> {
    let room = Arc::new(Semaphore::new(AHEAD_BYTES as usize));
    for number in 1.. {
        let line = select! {
            line = input.line() => line.map_err(|failure| failure.within(&format!("line {number}")))?,
            () = stop.cancelled() => None,
            () = sender.closed() => None,
        };
        let Some(line) = line else { break };
        if number < first {
            continue;
        }
        let bytes = u32::try_from(line.len() + 64).unwrap_or(AHEAD_BYTES).min(AHEAD_BYTES);
        let permit = Arc::clone(&room).acquire_many_owned(bytes).await.ok();
        if sender.send(Line { number, payload: line.into(), _room: permit }).await.is_err() {
            break;
        }
    }
    Ok(())
}
