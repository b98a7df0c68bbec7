//! Tests coordinated jobs: jobs that need extra work before they start or when they end.

mod key_versions; // versions of jobs that have succeeded
mod keys; // keys and key policies
mod supersede; // a newer version waits for a running one
mod expiry; // jobs that have not started in time
mod dependencies; // dependencies between jobs
mod results; // results of dependencies
mod revive; // retries of dead jobs with dependents
mod stages; // one job goes through several task types
mod fairness; // round-robin between tenants
mod limits; // concurrency and rate limits
mod limits_hold; // limits through all transitions
mod key_limits; // limits of single limit keys
mod limit_max; // limits that jobs set
mod gap_from_end; // gaps that count from the end of a job
mod waiting; // request and reply over a queue
mod together; // combined options
mod races; // concurrent transactions
mod pairs; // all pairs of options
mod model; // random sequences against a model in memory
