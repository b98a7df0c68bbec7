//! Tests access control of gRPC, HTTP and the command line.

#[path = "access/commands.rs"]
mod commands;
#[path = "access/disclosure.rs"]
mod disclosure;
#[path = "access/fixture.rs"]
pub mod fixture;
#[path = "access/foreign.rs"]
mod foreign;
#[path = "access/issuer.rs"]
mod issuer;
#[path = "access/jwt.rs"]
mod jwt;
#[path = "access/limits.rs"]
mod limits;
#[path = "access/rules.rs"]
mod rules;
#[path = "access/shares.rs"]
mod shares;
#[path = "../../server/src/credentials/jwt/signing.rs"]
mod signing;
#[path = "access/targets.rs"]
mod targets;
#[path = "access/moved.rs"]
mod moved;
#[path = "access/tokens.rs"]
mod tokens;

pub use fixture::Guarded;
pub use rules::call;
