//! The terminal, and the event loop: handles keys, figures and ticks, and draws. At most one read and one change run at a time.

use std::{
    io,
    time::{Duration, Instant},
};

use howdah_client::{Client, Error};
use ratatui::{
    DefaultTerminal, Frame,
    crossterm::event::{self, Event},
};
use tokio::{
    select,
    sync::{
        mpsc::{self, Receiver, Sender, channel},
        watch,
    },
    time::{MissedTickBehavior, interval, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    super::failure::Failure,
    change::{self, Change, Done},
    figures::Figures,
    reader::Reader,
    state::{Effect, Top, View},
};

/// Interval at which displayed ages are updated.
const TICK: Duration = Duration::from_secs(1);
/// Minimum pause between two reads, however often the view changes.
const MIN_PAUSE: Duration = Duration::from_millis(200);
/// Maximum pause between two reads after errors.
const MAX_PAUSE: Duration = Duration::from_secs(15);

/// Reason for the end of the loop.
pub(super) enum End {
    /// The user quit, or the terminal is gone.
    Quit,
    /// The process received a signal.
    Stopped,
}

/// Result of a read; an error comes with the pause before the next read.
type ReadResult = Result<Figures, (Error, Duration)>;

pub(super) async fn live(
    client: Client,
    every: Duration,
    screen: &mut Screen,
    stop: &CancellationToken,
) -> Result<End, Failure> {
    let mut top = Top::new(client.endpoints().collect::<Vec<_>>().join(","), every);
    let mut events = events();
    let (wanted, wants) = watch::channel(top.view().clone());
    let (sender, mut results) = mpsc::channel(1);
    tokio::spawn(read_repeatedly(client.clone(), every, wants, sender));
    let (done, mut changes) = mpsc::channel(1);
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        screen.draw(|frame| top.draw(frame, Instant::now()))?;
        select! {
            () = stop.cancelled() => return Ok(End::Stopped),
            event = events.recv() => match event.map(|event| top.event(&event)) {
                None | Some(Effect::Quit) => return Ok(End::Quit),
                Some(Effect::Nothing) => {}
                Some(Effect::Read) => drop(wanted.send(top.view().clone())),
                Some(Effect::Do(change)) => start(&client, change, done.clone()),
            },
            result = results.recv() => match result {
                Some(Ok(figures)) => top.update(figures, Instant::now()),
                Some(Err((error, next))) => top.failed(&error, Instant::now(), next),
                // The reader has panicked. The panic hook has printed the message and restored the terminal.
                None => return Err(Failure::failed("bug: the task that reads from the broker has panicked")),
            },
            Some(result) = changes.recv() => {
                top.done(result);
                let _ = wanted.send(top.view().clone());
            }
            _ = tick.tick() => {}
        }
    }
}

fn start(client: &Client, change: Change, done: mpsc::Sender<Result<Done, Error>>) {
    let client = client.clone();
    tokio::spawn(async move {
        let result = change::perform(&client, change).await;
        let _ = done.send(result).await;
    });
}

/// Reads the wanted view repeatedly: after `every`, immediately if the view changes, and with exponential backoff after errors.
async fn read_repeatedly(
    client: Client,
    every: Duration,
    mut wants: watch::Receiver<View>,
    sender: mpsc::Sender<ReadResult>,
) {
    let mut reader = Reader::new(client);
    let mut pause = every;
    loop {
        let view = wants.borrow_and_update().clone();
        let result = reader.read(&view).await;
        pause = if result.is_ok() { every } else { (pause * 2).min(MAX_PAUSE.max(every)) };
        if sender.send(result.map_err(|error| (error, pause))).await.is_err() {
            return;
        }
        sleep(MIN_PAUSE).await;
        // If the channel for wanted views is closed, the next send of a result ends the loop.
        let _ = timeout(pause.saturating_sub(MIN_PAUSE), wants.changed()).await;
    }
}

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
fn events() -> Receiver<Event> {
    let (sender, receiver) = channel(WAITING);
    std::thread::spawn(move || read_events(&sender));
    receiver
}

/// Reads events until the terminal is gone or the receiver is closed.
fn read_events(sender: &Sender<Event>) -> io::Result<()> {
    while !sender.is_closed() {
        if event::poll(POLL_INTERVAL)? {
            sender.blocking_send(event::read()?).map_err(io::Error::other)?;
        }
    }
    Ok(())
}
