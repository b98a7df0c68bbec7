//! The system's tests, through its public surface: gRPC, SQL, the command line. One Postgres for all
//! of them, a database for each, all in parallel.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, unreachable_pub)]
// Here a test that reads as a sentence beats a tidy function.
#![allow(clippy::pedantic)]

mod support;

mod bench; // howdah bench, end to end
mod commands; // the command line
mod delivery; // what reaches whom, and how often
mod direct; // straight to the worker
mod failure; // policies, fallback, dead jobs, groups of errors
mod endurance; // the same for minutes, under load (ignored)
mod faults; // kill -9, and what comes after
mod history; // written once, kept for a while
mod hostile; // junk, floods and bombs
mod http_producer; // POST /v1/jobs
mod plans; // EXPLAIN of every hot statement
mod order; // ageing, priorities that change
mod pooler; // behind PgBouncer
mod python; // the Python examples, generated and run
mod progress; // progress, checkpoints, a cancel from afar
mod ranks; // random changes of steps and priorities
mod requests; // enqueue: atomic, safe to repeat
mod schedules; // a job for each planned time
mod sessions; // resume, grace, drain, slow readers, lost wake-ups
mod schema; // made, replaced, under any name
mod settings; // of a task type
mod workers; // howdah work: commands, lines, webhooks
mod sql_api; // functions for clients that speak SQL
mod tls; // TLS to Postgres
mod storage; // its health
mod special; // keys, expiry, turns, stages, dependencies, limits, waiting
mod sql_worker; // howdah work --sql, howdah import pg_task
mod states; // random sequences keep each job in one table
