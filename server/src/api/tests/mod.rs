//! The edge against real connections and bad manners; the services need a database, and are tested in
//! `tests/` at the top.

mod answer;
mod edge;
mod fixture;
mod identity;
mod pipeline;
mod receive;
