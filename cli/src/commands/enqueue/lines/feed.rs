//! Reads lines ahead of the requests that send them.

use std::sync::Arc;

use bytes::Bytes;
use tokio::{
    select,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use crate::commands::{failure::Failure, input::Input};

/// The most lines and bytes that are read and not stored.
const AHEAD_LINES: usize = 20_000;
const AHEAD_BYTES: u32 = 64 << 20;

/// A line of the input.
pub(super) struct Line {
    /// From 1.
    pub(super) number: u64,
    pub(super) payload: Bytes,
    /// Its part of the memory for lines.
    _room: Option<OwnedSemaphorePermit>,
}

/// Lines as they are read.
pub(super) struct Feed {
    lines: mpsc::Receiver<Line>,
    reading: JoinHandle<Result<(), Failure>>,
}

impl Feed {
    /// Reads from this line on, until the end or until told to stop.
    pub(super) fn start(input: Input, first: u64, stop: CancellationToken) -> Self {
        let (sender, lines) = mpsc::channel(AHEAD_LINES);
        Self { lines, reading: tokio::spawn(read(input, first, sender, stop)) }
    }

    /// The next line; `None` after the last.
    pub(super) async fn next(&mut self) -> Option<Line> {
        self.lines.recv().await
    }

    /// The next line, if it has been read already.
    pub(super) fn next_if_read(&mut self) -> Option<Line> {
        self.lines.try_recv().ok()
    }

    /// Whether the input was read without an error. The rest of it is not read.
    pub(super) async fn end(self) -> Result<(), Failure> {
        drop(self.lines);
        // A task that was cancelled or panicked has read no error.
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
