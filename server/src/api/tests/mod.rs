//! Tests of the gRPC server with real connections and misbehaving clients. The services need a database and are tested in `tests/`
//! of the repository.

mod answer;
mod edge;
mod fixture;
mod identity;
mod pipeline;
mod receive;
