//! Tests the condition that another session holds locks on rows or tables.

use futures::future::join_all;

use super::*;
use crate::locks::{Open, matrix::tables};

pub(super) const ROWS_LOCKED: Condition = Condition {
    name: "Rows locked by another session",
    cause: "A transaction that stays open after `SELECT … FOR UPDATE` on one of Howdah's tables.",
    remedy: "End the transaction; the error names its backend: `SELECT pg_terminate_backend(PID)`. Set `idle_in_transaction_session_timeout`.",
    doctor: Doctor::Finds("locks"),
    probe: "enqueue",
    exceptions: &[
        Exception {
            operations: &[
                "enqueue with a key",
                "enqueue with a request key",
                "enqueue by SQL",
                "claim",
                "cancel",
                "retry",
                "schedule",
                "statistics",
                "bulk",
                "retention",
                "second broker",
            ],
            reason: Reason::Either("locked"),
        },
        Exception { operations: logins::OUTCOMES, reason: Reason::Either("it is unknown whether this took effect") },
    ],
};

#[tokio::test]
async fn only_operations_on_rows_that_another_session_has_locked_wait() {
    // Runs several brokers at once, because at some tables operations wait for tens of seconds.
    let arenas = join_all((0..sized(1, 6)).map(|_| Arena::start())).await;
    let tables = tables(&arenas[0].broker).await;
    let tried = arenas.iter().enumerate().map(async |(nth, arena)| {
        for (at, table) in tables.iter().enumerate().skip(nth).step_by(arenas.len()) {
            let open = Open::after(&arena.broker.database, "psql", &format!("SELECT FROM {table} FOR UPDATE")).await;
            // Runs doctor for one table only, because it treats all tables alike and reports a lock only after some seconds.
            if at == 0 {
                ROWS_LOCKED.hold(arena, async || open.roll_back().await).await;
            } else {
                ROWS_LOCKED.operate(arena, async || open.roll_back().await).await;
            }
        }
    });
    join_all(tried).await;
}
