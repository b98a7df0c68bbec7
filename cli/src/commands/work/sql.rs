//! Flags of the worker that runs jobs as SQL.

use std::{collections::BTreeMap, time::Duration};

use howdah_core::config::UrlFile;

use super::{super::failure::Failure, kind::Kind};

use crate::{
    commands::dsn,
    workers::{
        exec::StopTokens,
        sql::{Database, Sql},
    },
};

/// Default task type of SQL jobs.
pub(super) const TASK_TYPE: &str = "sql";

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "SQL")]
pub(super) struct SqlArgs {
    /// Run each job as SQL in this database: a connection string, or env:NAME or file:PATH to read it from there, which keeps the
    /// password secret
    #[arg(long, value_name = "DSN")]
    sql: Option<String>,
    /// Add a database for jobs whose header sql-database is NAME, and for jobs of the store NAME without this header; repeatable.
    /// If the broker serves several stores, the worker's token then needs read:*
    #[arg(long, value_name = "NAME=DSN", requires = "sql",
          conflicts_with_all = ["exec", "argv", "post"], value_parser = named)]
    name: Vec<(String, String)>,
}

/// Parses `NAME=DSN`. Errors do not contain the DSN.
fn named(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, dsn)) if is_name(name) && !dsn.is_empty() => Ok((name.to_owned(), dsn.to_owned())),
        _ => Err("write NAME=DSN, with a NAME of letters, digits and . _ -".into()),
    }
}

/// Returns whether the text is a valid name of a database.
pub(in crate::commands) fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=200).contains(&name.len()) && name.bytes().all(fits)
}

impl SqlArgs {
    /// Creates the SQL worker, or returns `None` without `--sql`.
    pub(super) fn kind(
        &self,
        stop_tokens: &StopTokens,
        max_result: usize,
        timeout: Option<Duration>,
    ) -> Result<Option<Kind>, Failure> {
        let Some(given) = &self.sql else { return Ok(None) };
        let database = database("--sql", given)?;
        let mut others = BTreeMap::new();
        for (name, given) in &self.name {
            let flag = format!("--name {name}");
            if others.insert(name.clone(), self::database(&flag, given)?).is_some() {
                return Err(Failure::usage(format!("{flag} is given twice")));
            }
        }
        let sql = Sql::new(database, others, stop_tokens.clone(), max_result).with_timeout(timeout);
        Ok(Some(Kind::Sql(Box::new(sql))))
    }
}

fn database(flag: &str, given: &str) -> Result<Database, Failure> {
    let text = dsn::resolve(flag, given)?;
    let file = given.strip_prefix("file:").map(|path| UrlFile::without_store(path.as_ref(), &text));
    Database::new(&text, file).map_err(|problem| Failure::usage(format!("{flag}: {problem}")))
}
