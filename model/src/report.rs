//! Runs the checker, and says what it found.

use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

use stateright::{Checker as _, Expectation, HasDiscoveries, Model as _, Path};

use crate::{Action, Checks, Protocol, Size, State, action, properties};

/// What came of one size.
#[derive(Debug)]
pub struct Checked {
    /// The size.
    pub size: Size,
    /// Different states.
    pub states: usize,
    /// Steps of the longest run.
    pub depth: usize,
    /// How long it took.
    pub took: Duration,
    /// What does not hold, with the shortest run that shows it.
    pub violated: Option<(&'static str, String)>,
    /// What was seen to be possible.
    pub possible: Vec<&'static str>,
}

/// Looks at every state of this size, until something does not hold.
pub fn check(size: Size, checks: Checks, threads: usize) -> Checked {
    let began = Instant::now();
    let protocol = Protocol { size, checks };
    let search = protocol.checker().threads(threads).finish_when(HasDiscoveries::AnyFailures);
    let found = search.spawn_bfs().join();
    let mut checked = Checked {
        size,
        states: found.unique_state_count(),
        depth: found.max_depth(),
        took: began.elapsed(),
        violated: None,
        possible: Vec::new(),
    };
    for property in properties::all() {
        match (found.discovery(property.name), property.expectation) {
            (Some(path), Expectation::Always) => checked.violated = Some((property.name, steps(path))),
            (Some(_), _) => checked.possible.push(property.name),
            (None, _) => {}
        }
    }
    checked
}

/// A run, step by step, with the tables where they change.
fn steps(path: Path<State, Action>) -> String {
    let mut text = String::new();
    let mut before = String::new();
    for (number, (state, step)) in (1..).zip(path.into_vec()) {
        let now = action::tables(&state);
        if now != before {
            let _ = writeln!(text, "       {now}");
            before = now;
        }
        if let Some(step) = step {
            let _ = writeln!(text, "  {number:>2}. {}", action::describe(&state, step));
        }
    }
    text
}
