//! Connection limits of the role, the database and the server, and the number of open connections.

use std::fmt;

use super::{Statement, Store, StoreError, locks};

/// Maximum number of connections of a broker to one store outside the hot pool: side lanes, 4 for operators' calls, 1
/// for LISTEN.
const BESIDES_POOL: u32 = locks::CONNECTIONS + 4 + 1;

/// A connection limit and its usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Maximum number of connections. Negative if there is no limit.
    pub most: i64,
    /// Number of open connections.
    pub open: i64,
}

/// Connection limits of the role, the database and the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Name of the broker's database role.
    pub role_name: String,
    /// Limit of the role (`rolconnlimit`).
    pub role: Limit,
    /// Limit of the database (`datconnlimit`).
    pub database: Limit,
    /// Limit of the server: `max_connections` without connections reserved for superusers.
    pub server: Limit,
}

impl fmt::Display for ConnectionLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = |limit: Limit| match limit.most {
            ..0 => format!("{} (no limit)", limit.open),
            most => format!("{} of {most}", limit.open),
        };
        let Self { role_name, role, database, server } = self;
        write!(
            f,
            "role {role_name} has {} connections, the database {}, the server {}",
            limit(*role),
            limit(*database),
            limit(*server)
        )
    }
}

impl Store {
    /// Returns the maximum number of connections that a broker opens to one store.
    #[must_use]
    pub const fn most_connections(pool_size: u32) -> u32 {
        pool_size + BESIDES_POOL
    }

    /// Queries the connection limits and their usage, through a connection of the hot pool.
    pub async fn connection_limits(&self) -> Result<ConnectionLimits, StoreError> {
        let row = self.hot().await?.query_one(Statement::ConnectionLimits, &[]).await?;
        let limit = |most: &str, open: &str| Limit { most: i64::from(row.get::<_, i32>(most)), open: row.get(open) };
        Ok(ConnectionLimits {
            role_name: row.get("role"),
            role: limit("of_role", "in_role"),
            database: limit("of_database", "in_database"),
            server: limit("of_server", "in_server"),
        })
    }

    /// Waits until the role, the database or the server has no connection left for this store.
    pub(crate) async fn until_out_of_connections(&self) {
        self.breaker.until_out_of_connections().await;
    }
}
