//! Coordinated jobs: those for which something must be done when they end, or before they begin.

mod keys; // who has a key, and what the next one with it does
mod supersede; // a newer version waits for one that fails
mod expiry; // a job that has not begun in time does not begin
mod dependencies; // a job runs after others
mod revive; // a dead one is retried
mod stages; // one job goes through several task types
mod fairness; // tenants take turns
mod limits; // how many run at once, and how fast they begin
mod limits_hold; // whatever becomes of a job on its way
mod waiting; // request and reply over a queue
mod together; // options that meet
mod races; // transactions that meet
mod pairs; // every option with every other
mod model; // random sequences against a model in memory
