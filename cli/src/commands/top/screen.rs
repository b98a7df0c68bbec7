//! The terminal: taken, drawn on, and given back as it was.

use std::{io, time::Duration};

use ratatui::{
    DefaultTerminal, Frame,
    crossterm::event::{self, Event},
};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::super::failure::Failure;

/// Keys that wait while a picture is drawn.
const WAITING: usize = 64;
/// How long the thread that reads keys waits before it looks whether anybody listens.
const LOOK: Duration = Duration::from_millis(200);

/// The terminal. It is restored when this is dropped, and by a panic of any thread before its message is printed.
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

/// Keys and changes of size. The end: the terminal is gone.
pub(super) fn events() -> Receiver<Event> {
    let (sender, receiver) = channel(WAITING);
    std::thread::spawn(move || read(&sender));
    receiver
}

/// Until the terminal is gone, or nobody listens any more.
fn read(sender: &Sender<Event>) -> io::Result<()> {
    while !sender.is_closed() {
        if event::poll(LOOK)? {
            sender.blocking_send(event::read()?).map_err(io::Error::other)?;
        }
    }
    Ok(())
}
