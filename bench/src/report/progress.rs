//! Progress of the run, on standard error if that is a terminal.

use std::{
    borrow::Cow,
    io::{IsTerminal as _, stderr},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};

/// Resolution of a progress bar. Positions are seconds or jobs, and fractions of a second must move the bar.
const STEPS: f64 = 1_000.0;

/// A progress bar for one step of the run, removed when dropped.
#[derive(Debug)]
pub(crate) struct Bar {
    bar: ProgressBar,
    whole: f64,
}

impl Bar {
    /// Creates a progress bar that is full at position `whole`.
    pub(crate) fn new(message: impl Into<Cow<'static, str>>, whole: f64) -> Self {
        let bar = if stderr().is_terminal() { ProgressBar::new(STEPS as u64) } else { ProgressBar::hidden() };
        let style = ProgressStyle::with_template("{msg:32} {wide_bar} {percent:>3} %  {elapsed}");
        if let Ok(style) = style {
            bar.set_style(style);
        }
        bar.set_message(message);
        Self { bar, whole }
    }

    /// Creates a spinner for a step of unknown length.
    pub(crate) fn spinner(message: impl Into<Cow<'static, str>>) -> Self {
        let bar = if stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
        bar.set_message(message);
        bar.enable_steady_tick(Duration::from_millis(100));
        Self { bar, whole: 1.0 }
    }

    pub(crate) fn at(&self, position: f64) {
        self.bar.set_position((position / self.whole * STEPS) as u64);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
