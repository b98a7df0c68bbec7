//! The loop: keys, figures and time come in, a picture goes out. One look is under way at a time, and one change.

use std::time::{Duration, Instant};

use howdah_client::{Client, Error};
use tokio::{
    select,
    sync::{mpsc, watch},
    time::{MissedTickBehavior, interval, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    super::failure::Failure,
    change::{self, Change, Done},
    figures::Seen,
    looker::Looker,
    screen::{self, Screen},
    state::{Effect, Top, View},
};

/// Ages are told anew this often.
const TICK: Duration = Duration::from_secs(1);
/// The least time between two looks, however fast somebody changes the view.
const LEAST: Duration = Duration::from_millis(200);
/// The longest time between two tries to reach a broker.
const LONGEST: Duration = Duration::from_secs(15);

/// Why it ended.
pub(super) enum End {
    /// Somebody is done with it, or the terminal is gone.
    Quit,
    /// A signal came.
    Stopped,
}

/// What a look found; when the next one is, if it failed.
type Look = Result<Seen, (Error, Duration)>;

pub(super) async fn live(
    client: Client,
    every: Duration,
    screen: &mut Screen,
    stop: &CancellationToken,
) -> Result<End, Failure> {
    let mut top = Top::new(client.endpoints().collect::<Vec<_>>().join(","), every);
    let mut events = screen::events();
    let (wanted, wants) = watch::channel(top.view().clone());
    let (sender, mut looks) = mpsc::channel(1);
    tokio::spawn(look_on(client.clone(), every, wants, sender));
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
                Some(Effect::Look) => drop(wanted.send(top.view().clone())),
                Some(Effect::Do(change)) => start(&client, change, done.clone()),
            },
            look = looks.recv() => match look {
                Some(Ok(seen)) => top.seen(seen, Instant::now()),
                Some(Err((error, next))) => top.failed(&error, Instant::now(), next),
                // It has panicked: the hook has told about it, and restored the terminal.
                None => return Err(Failure::failed("no more figures are read")),
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

/// Looks again and again, one look at a time: after `every`, at once if another view is wanted, later while it fails.
async fn look_on(client: Client, every: Duration, mut wants: watch::Receiver<View>, sender: mpsc::Sender<Look>) {
    let mut looker = Looker::new(client);
    let mut pause = every;
    loop {
        let view = wants.borrow_and_update().clone();
        let look = looker.look(&view).await;
        pause = if look.is_ok() { every } else { (pause * 2).min(LONGEST.max(every)) };
        if sender.send(look.map_err(|error| (error, pause))).await.is_err() {
            return;
        }
        sleep(LEAST).await;
        // A closed channel ends the next send.
        let _ = timeout(pause.saturating_sub(LEAST), wants.changed()).await;
    }
}
