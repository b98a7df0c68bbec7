//! Enqueues a job for each line, and prints the ids in order. A limited number of receipts wait in between, and a
//! limited number of bytes in the producer.

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

/// The most jobs submitted and not printed yet.
const WINDOW: usize = 20_000;

/// A line in flight: its number, from 1, and the receipt of its job.
type InFlight = (u64, Receipt<Enqueued>);

pub(super) async fn enqueue(client: &Client, template: NewJob, input: Input, printer: Printer) -> Result<(), Failure> {
    let signals = Signals::<1>::catch()?;
    let stop = signals.stages[0].clone();
    let (sender, receiver) = mpsc::channel(WINDOW);
    let mut reporter = Reporter { printer: Some(printer), stored: 0, refused: 0, first: None, bar: progress_bar() };
    let (read, ()) =
        tokio::join!(read(input, client.producer(), template, sender, stop.clone()), reporter.report(receiver, &stop));
    reporter.result(read, signals.exit_code())
}

/// Reads and submits until the end, or until told to stop.
async fn read(
    mut input: Input,
    producer: Producer,
    template: NewJob,
    sender: mpsc::Sender<InFlight>,
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

/// Prints the result of each line, in order.
struct Reporter {
    /// `None`: the reader has closed the output. The jobs are enqueued all the same.
    printer: Option<Printer>,
    stored: u64,
    refused: u64,
    /// The first line that failed, and why.
    first: Option<(u64, Failure)>,
    bar: ProgressBar,
}

impl Reporter {
    async fn report(&mut self, mut receiver: mpsc::Receiver<InFlight>, stop: &CancellationToken) {
        while let Some((number, receipt)) = receiver.recv().await {
            match receipt.await {
                Ok(job) => {
                    self.stored += 1;
                    // The caller may wait for the ids of the lines so far.
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
        let mut printed = printer.print(job, Some(number));
        if flush {
            printed = printed.and_then(|()| printer.output.flush());
        }
        if printed.is_err() {
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
            let what = format!("line {number}{others} not enqueued ({stored} lines were; reading stopped)");
            return Err(failure.within(&what));
        }
        read.map_err(|failure| failure.within(&format!("{stored} lines were enqueued")))?;
        match signal {
            0 => Ok(()),
            code => Err(Failure::interrupted(
                code,
                Some(format!("stopped after {stored} lines; all of them were enqueued")),
            )),
        }
    }
}

/// Shown on stderr, if that is a terminal and standard output is not.
fn progress_bar() -> ProgressBar {
    if !stderr().is_terminal() || stdout().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner();
    let rate = |state: &ProgressState, text: &mut dyn fmt::Write| {
        let _ = write!(text, "{}", HumanCount(state.per_sec() as u64));
    };
    match ProgressStyle::with_template("{spinner} {human_pos} jobs enqueued, {rate} per second, {elapsed}") {
        Ok(style) => bar.with_style(style.with_key("rate", rate)),
        Err(_) => bar,
    }
}
