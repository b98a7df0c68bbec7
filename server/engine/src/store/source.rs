//! Connection string of a database, and the files that it names. Before a connection attempt, the files are read again
//! if they were read more than 10 s ago or the last attempt failed. So a new password or certificate needs no restart.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_core::{
    config::{Dsn, UrlFile},
    logging::ThrottleByKind,
};
use parking_lot::Mutex;
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{StoreError, connect_backoff, tls};

/// Time after the last read after which a connection attempt reads the files of a connection string again.
const AGAIN: Duration = Duration::from_secs(10);

/// Origin of a connection string: a text in the configuration, or a file.
pub struct Source {
    text: String,
    file: Option<UrlFile>,
    for_reading: bool,
    last: Mutex<Option<Last>>,
    throttle: ThrottleByKind,
}

/// The servers of a connection string, each with its TLS connector.
pub struct Loaded {
    /// Connection parameters with exactly one host each.
    pub each: Vec<(Dsn, MakeRustlsConnect)>,
}

struct Last {
    loaded: Arc<Loaded>,
    read: Instant,
    asked: u64,
    is_stale: bool,
}

impl Source {
    /// Creates a source from a connection string, and the file that it comes from.
    pub fn new(text: &str, file: Option<UrlFile>) -> Self {
        Self {
            text: text.to_owned(),
            file,
            for_reading: false,
            last: Mutex::default(),
            throttle: ThrottleByKind::new(),
        }
    }

    /// Allows the connection to lead to a standby, for read-only queries.
    pub(super) fn for_reading(self) -> Self {
        Self { for_reading: true, ..self }
    }

    /// Reads the connection string and all files that it names.
    pub fn load(&self) -> Result<Arc<Loaded>, String> {
        let asked = connect_backoff::reload_requests();
        // The first load uses the field `text`, because the configuration has just read it from the file.
        let is_first = self.last.lock().is_none();
        let text = match &self.file {
            Some(file) if !is_first => file.read()?,
            _ => self.text.clone(),
        };
        let dsn = if self.for_reading { Dsn::parse_for_reading(&text) } else { Dsn::parse(&text) }?;
        let each = dsn.each_host()?.into_iter();
        let each = each.map(|dsn| Ok((tls::connector(&dsn)?, dsn))).collect::<Result<Vec<_>, String>>()?;
        let each = each.into_iter().map(|(connector, dsn)| (dsn, connector)).collect();
        let loaded = Arc::new(Loaded { each });
        *self.last.lock() = Some(Last { loaded: loaded.clone(), read: Instant::now(), asked, is_stale: false });
        Ok(loaded)
    }

    /// Reads the files of the connection string again if they were read more than 10 s ago, a connection attempt has
    /// failed, or a reload was requested. If a file is invalid, the last valid version stays in use.
    pub fn load_again(&self) -> Result<Arc<Loaded>, String> {
        let known = self.last.lock().as_ref().map(|last| {
            let is_due =
                last.is_stale || last.asked != connect_backoff::reload_requests() || last.read.elapsed() >= AGAIN;
            (last.loaded.clone(), is_due)
        });
        match known {
            Some((loaded, false)) => Ok(loaded),
            None => self.load(),
            Some((loaded, true)) => match self.load() {
                Ok(new) if new.each.len() == loaded.each.len() => Ok(new),
                Ok(_) => {
                    self.log_problem("the connection string names more or fewer hosts than before: restart the broker");
                    Ok(loaded)
                }
                Err(problem) => {
                    self.log_problem(&problem);
                    Ok(loaded)
                }
            },
        }
    }

    /// Marks the files of the connection string as stale after a failed connection attempt.
    pub fn failed(&self) {
        if let Some(last) = &mut *self.last.lock() {
            last.is_stale = true;
        }
    }

    /// Adds the name of the connection string's file to an error that stays until the configuration changes, because
    /// the file may be the cause.
    pub(super) fn name_file(&self, error: StoreError) -> StoreError {
        match (error, &self.file) {
            (StoreError::NotSent(cause), Some(file)) if cause.is_permanent() => {
                StoreError::NotSent(cause.in_file(&file.path().display().to_string()))
            }
            (error, _) => error,
        }
    }

    fn log_problem(&self, problem: &str) {
        if let Some(times) = self.throttle.count("") {
            tracing::warn!(
                problem,
                times,
                "cannot use the connection string or a file that it names; keeping the last valid version"
            );
        }
    }
}
