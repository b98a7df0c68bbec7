//! Runs interactive commands of documentation pages. In the output that a page shows, a line that begins with `> ` is input;
//! the lines after it are the response.

use std::{fs, io::Write as _};

use super::{compare, markdown::Step, shell::Shell};
use crate::support::*;

/// Whether the output that the page shows contains input.
pub(super) fn is_dialog(step: &Step) -> bool {
    step.shown.lines().any(|line| line.starts_with("> "))
}

/// Runs an interactive command. Sends each line of input after all output before it has arrived.
pub(super) async fn follow(shell: &mut Shell, step: &Step, at: &str) {
    let (input, output) = shell.typed(&step.command).await;
    // Opening the pipe blocks until the command opens its end.
    let opened = tokio::task::spawn_blocking(move || fs::OpenOptions::new().write(true).open(input));
    let mut input = with_timeout("a command that reads", opened).await.expect("no panic").expect("a pipe");
    let read = || fs::read_to_string(&output).unwrap_or_default();
    let mut shown = String::new();
    for line in step.shown.lines() {
        match line.strip_prefix("> ") {
            Some(typed) => {
                came(shell, &shown, &read, at).await;
                writeln!(input, "{}", shell.real(typed)).expect("a command that reads");
            }
            None => shown.extend([line, "\n"]),
        }
    }
    came(shell, &shown, &read, at).await;
}

/// Waits for the output that the page shows, and learns the lease tokens of this run from the actual output.
async fn came(shell: &mut Shell, shown: &str, read: &impl Fn() -> String, at: &str) {
    let is_there = async || same(&shell.real(shown), &read()).is_ok();
    if tokio::time::timeout(PATIENCE / 2, eventually("what is shown", is_there)).await.is_err() {
        panic!("{at}: {:?}\n--- shown\n{shown}\n--- came\n{}", same(&shell.real(shown), &read()), read());
    }
    for (shown, real) in tokens(shown).zip(tokens(&read())) {
        shell.put(shown, real);
    }
}

/// Compares shown and actual output except for lease tokens, which differ from run to run.
fn same(shown: &str, came: &str) -> Result<(), String> {
    let hide = |text: &str| tokens(text).fold(text.to_owned(), |text, token| text.replace(token, "TOKEN"));
    compare::same(&hide(shown), &hide(came))
}

fn tokens(text: &str) -> impl Iterator<Item = &str> {
    let values = text.lines().filter_map(|line| line.trim().strip_prefix("\"token\": \""));
    values.filter_map(|rest| rest.split('"').next()).filter(|token| token.len() > 9)
}
