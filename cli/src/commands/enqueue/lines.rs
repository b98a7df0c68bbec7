//! A job a line: read, handed to a producer, told in order. In between wait at most so many
//! receipts, and so many bytes in the producer.

use std::{
    fmt,
    io::{IsTerminal as _, stderr, stdout},
};

use howdah_client::{Client, Enqueued, NewJob, Producer, Receipt};
use indicatif::{HumanCount, ProgressBar, ProgressState, ProgressStyle};
use tokio::{select, sync::mpsc};
use tokio_util::sync::CancellationToken;

use super::{Failure, Input, Printer};
use crate::commands::signals::Signals;

/// Jobs submitted and not told yet.
const WINDOW: usize = 20_000;

/// A line on its way: its number, from 1, and the receipt of its job.
type OnItsWay = (u64, Receipt<Enqueued>);

pub(super) async fn enqueue(client: &Client, template: NewJob, input: Input, printer: Printer) -> Result<(), Failure> {
    let signals = Signals::<1>::catch()?;
    let stop = signals.stages[0].clone();
    let (sender, receiver) = mpsc::channel(WINDOW);
    let mut teller = Teller { printer: Some(printer), stored: 0, refused: 0, first: None, bar: progress_bar() };
    let (read, ()) =
        tokio::join!(read(input, client.producer(), template, sender, stop.clone()), teller.tell(receiver, &stop));
    teller.result(read, signals.exit_code())
}

/// Reads and submits until the end, or until told to stop.
async fn read(
    mut input: Input,
    producer: Producer,
    template: NewJob,
    sender: mpsc::Sender<OnItsWay>,
    stop: CancellationToken,
) -> Result<(), Failure> {
    for number in 1.. {
        let line = select! {
            line = input.line() => line.map_err(|failure| failure.within(&format!("line {number}")))?,
            () = stop.cancelled() => None,
        };
        let Some(line) = line else { break };
        let receipt = producer.submit(template.clone().payload(line)).await;
        let receipt = receipt.map_err(|error| Failure::from(error).within(&format!("line {number}")))?;
        if sender.send((number, receipt)).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// Tells what became of the lines, in their order.
struct Teller {
    /// `None`: nobody listens any more. The jobs are enqueued all the same.
    printer: Option<Printer>,
    stored: u64,
    refused: u64,
    /// The first line that failed, and why.
    first: Option<(u64, Failure)>,
    bar: ProgressBar,
}

impl Teller {
    async fn tell(&mut self, mut receiver: mpsc::Receiver<OnItsWay>, stop: &CancellationToken) {
        while let Some((number, receipt)) = receiver.recv().await {
            match receipt.await {
                Ok(job) => {
                    self.stored += 1;
                    // Somebody may wait for the ids of the lines given so far.
                    let flush = receiver.is_empty();
                    self.print(job, number, flush);
                }
                Err(error) => {
                    stop.cancel();
                    self.refused += 1;
                    self.first.get_or_insert((number, error.into()));
                }
            }
            self.bar.set_position(self.stored);
        }
        self.bar.finish_and_clear();
    }

    fn print(&mut self, job: Enqueued, number: u64, flush: bool) {
        let Some(printer) = &mut self.printer else { return };
        let mut told = printer.print(job, Some(number));
        if flush {
            told = told.and_then(|()| printer.output.flush());
        }
        if told.is_err() {
            self.printer = None;
        }
    }

    fn result(mut self, read: Result<(), Failure>, signal: u8) -> Result<(), Failure> {
        if let Some(printer) = &mut self.printer {
            printer.output.flush()?;
        }
        let stored = self.stored;
        if let Some((number, failure)) = self.first {
            let others = match self.refused {
                1 => String::new(),
                more => format!(" and {} more", more - 1),
            };
            let what = format!("line {number}{others} not enqueued ({stored} lines are; reading stopped)");
            return Err(failure.within(&what));
        }
        read.map_err(|failure| failure.within(&format!("{stored} lines are enqueued")))?;
        match signal {
            0 => Ok(()),
            code => Err(Failure::interrupted(code, Some(format!("stopped after {stored} lines, all enqueued")))),
        }
    }
}

/// On stderr, if that is a terminal and the ids go elsewhere.
fn progress_bar() -> ProgressBar {
    if !stderr().is_terminal() || stdout().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner();
    let rate = |state: &ProgressState, text: &mut dyn fmt::Write| {
        let _ = write!(text, "{}", HumanCount(state.per_sec() as u64));
    };
    match ProgressStyle::with_template("{spinner} {human_pos} jobs enqueued, {rate} a second, {elapsed}") {
        Ok(style) => bar.with_style(style.with_key("rate", rate)),
        Err(_) => bar,
    }
}
