//! Prompts for confirmation before a change.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use super::failure::Failure;

/// Fails if stdin is not a terminal, so that the command cannot prompt. `instead` tells the user what to do.
pub(super) fn needs_terminal(instead: &str) -> Result<(), Failure> {
    if io::stdin().is_terminal() {
        return Ok(());
    }
    Err(Failure::usage(format!("cannot prompt: stdin is not a terminal; {instead}")))
}

/// Prompts the user to continue. Returns whether the answer is yes.
pub(super) async fn ask() -> Result<bool, Failure> {
    let answer = tokio::task::spawn_blocking(|| {
        let _ = io::stderr().write_all(b"Continue? [y/N] ");
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer).map(|_| answer)
    });
    let answer = answer.await.map_err(|error| Failure::failed(error.to_string()))?;
    let answer = answer.map_err(|error| Failure::failed(format!("cannot read the answer: {error}")))?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
