//! Runs the checker and reports the result.

use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

use stateright::{Checker as _, Expectation, HasDiscoveries, Model as _, Path};

use crate::{Action, Checks, Protocol, Size, State, action, properties};

/// Result of the check for one model size.
#[derive(Debug)]
pub struct Checked {
    pub size: Size,
    /// Number of distinct states.
    pub states: usize,
    /// Length of the longest run.
    pub depth: usize,
    /// Run time of the check.
    pub took: Duration,
    /// Violated property, with the shortest run that violates it.
    pub violated: Option<(&'static str, String)>,
    /// Names of the `sometimes` properties that the checker found to be reachable.
    pub possible: Vec<&'static str>,
}

/// Explores all states of a model size, or until a property is violated.
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

/// Formats a run step by step, with the tables whenever they change.
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
