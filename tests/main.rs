//! The system's tests, through its public surface: gRPC, SQL, the command line. One Postgres for all
//! of them, a database for each, all in parallel.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, unreachable_pub)]
// Here a test that reads as a sentence beats a tidy function.
#![allow(clippy::pedantic)]

mod support; // start here: what all of them are written with

// A job comes in.
mod requests; // enqueue: atomic, safe to repeat
mod backlog; // the most jobs that may wait
mod sql_api; // functions for clients that speak SQL
mod http_producer; // POST /v1/jobs
mod schedules; // a job for each planned time

// It goes to a worker.
mod delivery; // what reaches whom, and how often
mod direct; // enqueued directly into leased
mod few; // statements for one job or a few
mod order; // ageing, priorities that change
mod windows; // what a worker holds at once
mod sessions; // workers that come back, and those that do not
mod elsewhere; // workers that go on at another broker
mod drain; // workers that leave, brokers that stop
mod pull; // jobs without a stream

// It is worked on, and ends.
mod progress; // progress, checkpoints, a cancel on another broker
mod due; // what becomes due, without a sweep
mod attempts; // acks, failures, snoozes, timeouts, tokens
mod failure; // policies, fallback, dead jobs, groups of errors
mod coordinated; // keys, expiry, dependencies, stages, fairness, limits, waiting
mod most_attempts; // which jobs have been tried most often
mod history; // written once, kept for a while

// Random sequences.
mod states; // each job stays in one table
mod ranks; // changes of steps and priorities

// It is operated.
mod settings; // of a task type
mod cluster_settings; // limits that hold everywhere
#[cfg(feature = "archive")]
mod archive; // finished jobs as files
mod storage; // its health
mod statistics; // what happened, by period
mod read_replica; // lists from another server
mod search; // by id, key, tag, header and payload
mod explain; // why a job does not run
mod traces; // spans of jobs, at a collector
mod watching; // alerts, the dashboard, the metrics behind them
mod bulk; // changes of many jobs, in the background
mod who_works; // the workers, and who holds a job
mod commands; // the command line
mod top; // howdah top
mod idle; // what waiting costs
mod keda; // howdah keda
mod doctor; // what should be changed on Postgres and on the machine
mod enqueue_lines; // many jobs from a pipe
mod workers; // howdah work: commands, lines, webhooks
mod sql_worker; // howdah work --sql, howdah import pg_task
mod bench; // howdah bench, end to end
mod pages; // the documentation, block by block

mod access; // who may do what
mod audit; // who did what
mod ui; // the page for operators

// What is around it fails.
mod failover; // another server becomes the primary
mod faults; // kill -9, and what comes after
mod locks; // what others have locked
mod hostile; // junk, floods and bombs
mod pooler; // behind PgBouncer
mod tls; // TLS to Postgres
mod tls_server; // TLS on the broker's own ports
mod schema; // made, replaced, under any name
mod stores; // their numbers, and the ids that begin with them
mod plans; // EXPLAIN of every hot statement
mod endurance; // the same for minutes, under load (ignored)
