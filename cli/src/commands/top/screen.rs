//! Opens the terminal, draws on it, and restores it.

use std::{io, time::Duration};

use ratatui::{
    DefaultTerminal, Frame,
    crossterm::event::{self, Event},
};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::super::failure::Failure;

/// Number of key events that may wait while the screen is drawn.
const WAITING: usize = 64;
/// Interval at which the thread that reads keys checks whether the receiver is closed.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The terminal in full-screen mode. Dropping this value restores the terminal. A panic of any thread restores it too, before
/// the panic message is printed.
pub(super) struct Screen {
    terminal: DefaultTerminal,
}

impl Screen {
    pub(super) fn open() -> Result<Self, Failure> {
        Ok(Self { terminal: ratatui::try_init().map_err(failed)? })
    }

    pub(super) fn draw(&mut self, picture: impl FnOnce(&mut Frame<'_>)) -> Result<(), Failure> {
        self.terminal.draw(picture).map(drop).map_err(failed)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

#[allow(clippy::needless_pass_by_value)] // for map_err
fn failed(error: io::Error) -> Failure {
    Failure::failed(format!("cannot use the terminal: {error}"))
}

/// Key and resize events. The channel closes when the terminal is gone.
pub(super) fn events() -> Receiver<Event> {
    let (sender, receiver) = channel(WAITING);
    std::thread::spawn(move || read(&sender));
    receiver
}

/// Reads events until the terminal is gone or the receiver is closed.
fn read(sender: &Sender<Event>) -> io::Result<()> {
    while !sender.is_closed() {
        if event::poll(POLL_INTERVAL)? {
            sender.blocking_send(event::read()?).map_err(io::Error::other)?;
        }
    }
    Ok(())
}
