//! Imports of jobs from other systems to a broker.

pub mod pg_task; // tasks of pg_task, as jobs for the SQL worker
