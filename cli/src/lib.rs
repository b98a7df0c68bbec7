//! The program `howdah` as a library, for its tests. Modules are listed in call order, callers first.

pub mod commands; // the command line: one file per command
pub mod keda; // the external scaler for KEDA, an ordinary client of the broker
pub mod workers; // the built-in workers, ordinary clients of the broker
pub mod import; // tasks of pg_task, as jobs for the SQL worker
pub mod postgres; // the private Postgres of `howdah dev` and of the tests
pub mod secrets; // credentials in environment variables
