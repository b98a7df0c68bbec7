//! System tests through the public interfaces: gRPC, SQL, HTTP and the command line. The tests share one Postgres, have one
//! database each, and run in parallel.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]
// In this crate, readable tests matter more than pedantic lints.
#![allow(clippy::pedantic)]

mod support; // the test kit; start here

// Enqueueing.
mod requests; // enqueue: atomic, safe to repeat
mod backlog; // limit of waiting jobs
mod sql_api; // SQL functions for clients
mod http_producer; // POST /v1/jobs
mod schedules; // a job for each planned time

// Delivery.
mod delivery; // at-least-once delivery
mod direct; // jobs enqueued directly into leased
mod small_batches; // special statements for few jobs
mod order; // ageing, priorities that change
mod windows; // windows of workers
mod selection; // conditions of jobs to change
mod sessions; // sessions of workers that return or not
mod liveness; // silent workers, and outcomes that come late
mod elsewhere; // workers that reconnect to another broker
mod drain; // draining workers and brokers
mod pull; // pulling jobs by unary calls

// Tests of the execution and the end of jobs.
mod progress; // progress, checkpoints, a cancel on another broker
mod due; // due jobs, without waiting for a sweep
mod clock; // the clock of the database
mod test_clock; // a clock that tests advance
mod attempts; // acks, failures, snoozes, timeouts, tokens
mod brake; // failures in a row
mod failure; // policies, fallback, dead jobs, groups of errors
mod coordinated; // keys, expiry, dependencies, stages, fairness, limits, waiting
mod most_attempts; // jobs with the most attempts
mod history; // history of finished jobs
mod rerun; // finished jobs that run again

// Random sequences.
mod states; // each job stays in one table
mod ranks; // changes of steps and priorities

// Operation.
mod settings; // settings of task types
mod cluster_settings; // cluster-wide limits
#[cfg(feature = "archive")]
mod archive; // finished jobs as files
mod storage; // health of the storage
mod statistics; // statistics by period
mod read_replica; // lists from a read replica
mod search; // by id, key, tag, header and payload
mod explain; // why a job does not run
mod traces; // spans of jobs
mod watching; // alerts, the dashboard, the metrics behind them
mod bulk; // changes of many jobs, in the background
mod who_works; // workers and the holders of jobs
mod commands; // the command line
mod top; // howdah top
mod idle; // cost of an idle broker
mod refusing; // a Postgres that refuses, or cannot be reached
mod keda; // howdah keda
mod conditions; // operations while something is wrong with the database
mod doctor; // recommended changes of Postgres and the machine
mod enqueue_lines; // many jobs from a pipe
mod workers; // howdah work: commands, lines, webhooks
mod proxies; // nginx between clients and brokers, and silent addresses
mod sql_worker; // howdah work --sql, howdah import pg_task
mod bench; // howdah bench, end to end
mod pages; // the documentation, block by block

mod access; // access control
mod audit; // audit log
mod ui; // the operator page

// Tests of failures of the environment.
mod failover; // failover to another primary
mod faults; // recovery after kill -9
mod locks; // locks of other transactions
mod hostile; // junk, floods and bombs
mod pooler; // behind PgBouncer
mod tls; // TLS to Postgres
mod tls_server; // TLS on the broker's ports
mod schema; // creating, replacing and naming the schema
mod catalog; // rules for every table, index, sequence and function
mod stores; // store numbers and ids
mod plans; // EXPLAIN of every hot statement
mod endurance; // faults for minutes, under load (ignored)
