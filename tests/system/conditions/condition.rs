//! A condition of the database: how it shows, what still works, and what ends it.

use std::fmt::Write as _;

use super::{
    arena::Arena,
    operation::{self, Cell, Operation},
};
use crate::support::*;

/// A condition of the database, which is also a section of `docs/operate/conditions.md`. A test proves the statements of the
/// section.
pub(crate) struct Condition {
    pub(crate) name: &'static str,
    /// Cause of the condition, as printed in `docs/operate/conditions.md`.
    pub(crate) cause: &'static str,
    /// The command or setting that ends the condition.
    pub(crate) remedy: &'static str,
    /// How `howdah doctor` reports the condition.
    pub(crate) doctor: Doctor,
    /// Operation that a short test run tries; a full run tries all operations.
    pub(crate) probe: &'static str,
    /// Operations that wait or fail under this condition. All others work.
    pub(crate) exceptions: &'static [Exception],
}

/// How `howdah doctor` reports a condition.
pub(crate) enum Doctor {
    /// Doctor reports a finding of this check.
    Finds(&'static str),
    /// Doctor reports a finding of this check, until a broker starts and ends the condition.
    FindsBeforeStart(&'static str),
    /// Doctor reports a finding of this check, or fails with an error that has the text.
    FindsOrFails(&'static str, &'static str),
    /// Doctor fails, because it cannot connect. The text is a part of its error.
    Fails(&'static str),
    /// Doctor does not report the condition, because nothing needs to be changed.
    Nothing,
}

/// Operations that wait or fail while the condition lasts, with the reason.
pub(crate) struct Exception {
    pub(crate) operations: &'static [&'static str],
    pub(crate) reason: Reason,
}

pub(crate) enum Reason {
    /// The operations wait and then succeed. The text names the cause of the wait.
    Waits(&'static str),
    /// The operations fail. The text is part of the error that the caller gets.
    Refused(&'static str),
    /// An operation works, waits or fails, depending on the rows that it needs. The text is part of the error.
    Either(&'static str),
}

impl Condition {
    /// Tries the operations and `howdah doctor` under the condition, calls `end`, and tries the operations again. Fails if a
    /// job is lost or an attempt is used up.
    pub(crate) async fn hold(&self, arena: &Arena, end: impl AsyncFnOnce()) {
        let diagnose_and_end = async || {
            if !matches!(self.doctor, Doctor::FindsBeforeStart(_)) {
                self.diagnose(&arena.doctor()).await;
            }
            end().await;
        };
        self.operate(arena, diagnose_and_end).await;
    }

    /// Does the same as [`Self::hold`] without `howdah doctor`.
    pub(crate) async fn operate(&self, arena: &Arena, end: impl AsyncFnOnce()) {
        let tested: Vec<&Operation> =
            operation::ALL.iter().filter(|one| is_full_run() || one.name == self.probe).collect();
        assert!(!tested.is_empty(), "no operation is called {}", self.probe);
        let may_wait = |one: &Operation| {
            self.reason(one).is_some_and(|reason| matches!(reason, Reason::Waits(_) | Reason::Either(_)))
        };
        let cells = futures::future::join_all(tested.iter().map(|one| one.try_once(arena, may_wait(one)))).await;
        let wrong: Vec<String> = tested.iter().zip(&cells).filter_map(|(one, cell)| self.differs(one, cell)).collect();
        assert!(wrong.is_empty(), "{}:\n{}", self.name, wrong.join("\n"));
        end().await;
        futures::future::join_all(tested.iter().map(|one| one.recover(arena))).await;
        arena.check(is_full_run()).await;
    }

    /// Runs `howdah doctor` with these arguments until it reports the condition.
    pub(crate) async fn diagnose(&self, args: &[&str]) {
        let (check, error) = match self.doctor {
            Doctor::Finds(check) | Doctor::FindsBeforeStart(check) => (Some(check), None),
            Doctor::FindsOrFails(check, error) => (Some(check), Some(error)),
            Doctor::Fails(error) => (None, Some(error)),
            Doctor::Nothing => return,
        };
        eventually("the report of doctor", async || {
            let (_, found, failed) = run(args, b"").await;
            check.is_some_and(|check| found.contains(&format!("\"check\":\"{check}\"")))
                || error.is_some_and(|error| failed.contains(error))
        })
        .await;
    }

    /// Returns why this operation waits or fails under the condition; `None` if it works.
    fn reason(&self, operation: &Operation) -> Option<&Reason> {
        let exception = self.exceptions.iter().find(|exception| exception.operations.contains(&operation.name));
        exception.map(|exception| &exception.reason)
    }

    fn differs(&self, operation: &Operation, cell: &Cell) -> Option<String> {
        let as_expected = match (self.reason(operation), cell) {
            (None, Cell::Works) | (Some(Reason::Waits(_)), Cell::Waits) => true,
            (Some(Reason::Refused(part) | Reason::Either(part)), Cell::Refused(text)) => text.contains(part),
            (Some(Reason::Either(_)), _) => true,
            _ => false,
        };
        (!as_expected).then(|| format!("{}: {cell:?}", operation.name))
    }

    fn section(&self, page: &mut String) {
        let Self { name, cause, remedy, doctor, .. } = self;
        writeln!(page, "\n## {name}\n\n{cause}\n").expect("a string");
        if self.exceptions.is_empty() {
            page.push_str("Every operation works.\n");
        }
        for Exception { operations, reason } in self.exceptions {
            let operations = operations.join(", ");
            match reason {
                Reason::Waits(reason) => writeln!(page, "- **waits**: {operations}: {reason}"),
                Reason::Refused(text) => writeln!(page, "- **refused**: {operations}: `{text}`"),
                Reason::Either(text) => {
                    writeln!(page, "- **works, waits or is refused**, by the jobs it needs: {operations}: `{text}`")
                }
            }
            .expect("a string");
        }
        if !self.exceptions.is_empty()
            && self.exceptions.iter().map(|one| one.operations.len()).sum::<usize>() < operation::ALL.len()
        {
            page.push_str("\nThe other operations work.\n");
        }
        writeln!(page, "\n{remedy}").expect("a string");
        match doctor {
            Doctor::Finds(check) => writeln!(page, "`howdah doctor` reports it as `{check}`."),
            Doctor::FindsBeforeStart(check) => {
                writeln!(page, "Before the start, `howdah doctor` reports it as `{check}`.")
            }
            Doctor::FindsOrFails(check, error) => {
                writeln!(page, "`howdah doctor` reports it as `{check}`, or fails with `{error}`.")
            }
            Doctor::Fails(error) => writeln!(page, "`howdah doctor` fails with `{error}`."),
            Doctor::Nothing => Ok(()),
        }
        .expect("a string");
    }
}

/// `docs/operate/conditions.md`.
pub(crate) fn page(conditions: &[&Condition]) -> String {
    let operations: Vec<&str> = operation::ALL.iter().map(|one| one.name).collect();
    let mut page = format!(
        "# Conditions of the database

This page says what works while something is wrong with the database, and how to mend it. It is for people who operate Howdah.

It is generated from the tests in `tests/system/conditions/`: under each condition they run the operations {}. An operation
works, waits until the condition ends, or is refused with an error that names the reason. No job is lost and no attempt is used
up by a condition, and everything works again when it ends. `just conditions` runs all of it.
",
        operations.join(", ")
    );
    conditions.iter().for_each(|condition| condition.section(&mut page));
    page
}
