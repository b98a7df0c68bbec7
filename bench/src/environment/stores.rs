//! The stores of a broker that has several: in the first private Postgres, in a second one, or away.

use std::io::Write as _;

use tempfile::NamedTempFile;

use crate::error::{Error, Result};

/// Where a store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StorePlace {
    /// In the Postgres of the run.
    First,
    /// In a second one.
    Second,
    /// Where no Postgres is.
    Away,
}

/// A directory that nobody makes, so no socket of a Postgres is in it.
const NOWHERE: &str = "postgres://howdah@/away?host=/nonexistent/howdah-bench";

/// A configuration file with these stores; `None`: one that is away.
pub(super) fn file(urls: &[Option<String>]) -> Result<NamedTempFile> {
    let failed = |error: std::io::Error| Error::Process(format!("cannot write the configuration of stores: {error}"));
    let mut file = tempfile::Builder::new().prefix("howdah-bench-").suffix(".toml").tempfile().map_err(failed)?;
    for (number, url) in urls.iter().enumerate() {
        let url = url.as_deref().unwrap_or(NOWHERE);
        // With numbers, a broker starts while one of them is away.
        let store = format!("[[stores]]\nname = \"store{number}\"\nnumber = {number}\ndatabase_url = \"{url}\"\n");
        file.write_all(store.as_bytes()).map_err(failed)?;
    }
    Ok(file)
}
