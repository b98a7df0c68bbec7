//! `howdah top`: a live view of task types, workers and jobs in a terminal.
//!
//! - `live`: the terminal and the event loop
//! - `state`: the state of the display and the effect of keys, without I/O
//! - `reader`: the calls that read; `change`: the calls that change something
//! - `draw`: drawing
//!
//! Public items are for the integration tests, which draw the answers of a real broker.

mod change;
mod draw;
mod figures;
mod keys;
mod live;
mod reader;
mod state;

use std::{
    io::{IsTerminal as _, stdin, stdout},
    time::Duration,
};

pub use self::{
    change::{Change, Done, Question, perform},
    figures::Figures,
    reader::Reader,
    state::{Effect, Top, View},
};
use super::{
    context::{Global, block_on},
    failure::Failure,
    signals::Signals,
    values,
};

/// Timeout of a call. After that the figures are marked as stale, and the next call begins.
const CALL: Duration = Duration::from_secs(10);

/// Watch task types, workers and jobs in a terminal
///
/// Shows for each type the jobs that are ready, leased and dead, throughput, wait time and run time; the connected workers; and
/// why a job does not run. Types can be paused and resumed, and dead jobs retried, after a confirmation. Press ? for the keys.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah top
  howdah top --interval 10s --server broker.internal:7432
  howdah top --reason 'incident 17'

Without a terminal, use `howdah types`, `howdah stats` and `howdah workers`.")]
pub(super) struct Args {
    /// Interval between reads, 500ms to 1h
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = interval)]
    interval: Duration,
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = values::duration(text)?;
    let range = Duration::from_millis(500)..=Duration::from_hours(1);
    if range.contains(&interval) { Ok(interval) } else { Err("use 500ms to 1h".into()) }
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    if !stdin().is_terminal() || !stdout().is_terminal() {
        return Err(Failure::usage("this is not a terminal: use `howdah types`, `howdah stats` and `howdah workers`"));
    }
    // Logging is off, because log lines would disturb the display.
    global.start_logging("off")?;
    block_on(async {
        let client = global.connect_with(|builder| builder.request_timeout(CALL)).await?;
        let signals = Signals::<1>::catch()?;
        let mut screen = live::Screen::open()?;
        let ended = live::live(client, args.interval, &mut screen, &signals.stages[0]).await;
        drop(screen);
        match ended {
            Ok(live::End::Quit) => Ok(()),
            Ok(live::End::Stopped) => Err(Failure::interrupted(signals.exit_code(), None)),
            Err(failure) => Err(failure),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_is_asked_at_most_twice_a_second() {
        assert_eq!(interval("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(interval("1m"), Ok(Duration::from_secs(60)));
        for wrong in ["0s", "499ms", "2h", "soon"] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }
}
