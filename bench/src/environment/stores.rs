//! Stores for brokers with several stores: in the first private Postgres, in a second one, or unavailable.

use std::io::Write as _;

use tempfile::NamedTempFile;

use crate::error::{Error, Result};

/// Postgres server of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreServer {
    /// The store is a database in the Postgres of the run.
    First,
    /// The store is a database in a second private Postgres.
    Second,
    /// The store is unavailable: no Postgres answers at its URL.
    Unavailable,
}

/// URL with a socket directory that does not exist.
const NOWHERE: &str = "postgres://howdah@/away?host=/nonexistent/howdah-bench";

/// Writes a configuration file with these stores; `None` stands for an unavailable store.
pub(super) fn file(urls: &[Option<String>]) -> Result<NamedTempFile> {
    let failed =
        |error: std::io::Error| Error::Process(format!("cannot write the brokers' configuration file: {error}"));
    let mut file = tempfile::Builder::new().prefix("howdah-bench-").suffix(".toml").tempfile().map_err(failed)?;
    for (number, url) in urls.iter().enumerate() {
        let url = url.as_deref().unwrap_or(NOWHERE);
        // With explicit numbers, a broker starts even while a store is unavailable.
        let store = format!("[[stores]]\nname = \"store{number}\"\nnumber = {number}\ndatabase_url = \"{url}\"\n");
        file.write_all(store.as_bytes()).map_err(failed)?;
    }
    Ok(file)
}
