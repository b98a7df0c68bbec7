//! What few jobs ask for: keys with policies, expiry, fair turns, stages, dependencies, limits, waiting.

mod dependencies;
mod fair;
mod keys;
mod limits;
mod limits_hold;
mod model;
mod pairs;
mod races;
mod stages;
mod time;
mod together;
mod wait;
