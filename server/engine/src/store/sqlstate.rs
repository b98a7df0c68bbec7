//! Classifies SQLSTATEs: which party is at fault, and advice for the operator.

use std::error::Error as _;

use tokio_postgres::error::SqlState;

use super::StoreError;

/// SQLSTATE classes that concern the whole server or session, so that a smaller batch would fail too: connection (08),
/// unsupported feature (0A), transaction and statement state (25, 26), login (28), missing database (3D), resources
/// (53), shutdown and timeouts (57), system (58).
const SERVER_CLASSES: [&str; 9] = ["08", "0A", "25", "26", "28", "3D", "53", "57", "58"];

/// Whether the error concerns every statement, independent of its parameter values.
pub(super) fn concerns_every_statement(code: &SqlState) -> bool {
    SERVER_CLASSES.iter().any(|class| code.code().starts_with(class))
}

/// Whether a value of the statement caused the error: data (22) and constraints (23). An exhausted sequence (2200H) is
/// not a value of the statement.
pub(super) fn is_value_error(code: &SqlState) -> bool {
    let code = code.code();
    (code.starts_with("22") && code != "2200H") || code.starts_with("23")
}

/// Whether the server starts or stops, or has ended the session (57P01 `admin_shutdown`). The next statement opens a new
/// connection.
pub(super) fn ends_session(code: &str) -> bool {
    code.starts_with("57P")
}

/// Whether logins fail with this error until the configuration or the server is changed: refused logins (28) and a
/// missing database (3D).
pub(super) fn is_permanent(code: &SqlState) -> bool {
    ["28", "3D"].iter().any(|class| code.code().starts_with(class))
}

/// Whether a connection failed because of its certificates, its TLS mode or its connection string, so that a retry
/// fails too.
pub(super) fn is_wrong_tls(error: &tokio_postgres::Error) -> bool {
    let mut cause = error.source();
    while let Some(inner) = cause {
        let of_rustls =
            |error: &rustls::Error| !matches!(error, rustls::Error::General(_) | rustls::Error::FailedToGetCurrentTime);
        if inner.downcast_ref::<rustls::Error>().is_some_and(of_rustls) {
            return true;
        }
        let within = inner.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        if within.and_then(|within| within.downcast_ref::<rustls::Error>()).is_some_and(of_rustls) {
            return true;
        }
        cause = inner.source();
    }
    // tokio-postgres exposes wrong TLS modes and connection strings only as error text.
    let text = howdah_core::error::describe(error);
    ["server does not support TLS", "invalid configuration", "password missing", "channel binding"]
        .iter()
        .any(|words| text.contains(words))
}

/// Returns the text of a log line that tells the operator what to do about an error.
pub(super) fn advice(error: &StoreError) -> &'static str {
    let Some(code) = error.code() else {
        return match error {
            StoreError::NotSent(_) if error.is_permanent() => {
                "Correct the connection string, its files, or the server's certificate; the broker reads them again"
            }
            StoreError::NotSent(_) | StoreError::Unknown(_) => {
                "Check that Postgres runs and can be reached from this machine"
            }
            _ => "See the error message",
        };
    };
    match code {
        "53100" => "Free space on the disk of Postgres",
        "53200" => "Give Postgres more memory, or raise max_locks_per_transaction",
        "53300" => {
            "Raise the connection limit of the role, the database or the server, or lower pool_size; howdah doctor compares them"
        }
        "25006" => "This server is read-only: name the primary in the connection string",
        "42501" => "Give the brokers' role its rights on the schema; howdah doctor names the owner",
        "54000" => {
            "A limit of Postgres is reached, such as the queue of notifications; howdah doctor and the log of Postgres name it"
        }
        "55000" if matches!(error, StoreError::NotSent(_)) => {
            "The database allows no connections: ALTER DATABASE … ALLOW_CONNECTIONS true"
        }
        "3D000" => "Create the database, or correct its name in the connection string",
        "XX001" | "XX002" => "A table or index is damaged: see the log of Postgres, then REINDEX or restore it",
        code if code.starts_with("28") => {
            "Correct the user, the password or its file, or pg_hba.conf; the broker reads files again"
        }
        code if ends_session(code) => "Postgres is starting or stopping: wait, or see its log",
        code if code.starts_with("57") || code.starts_with("25P") => {
            "Check what the statement waits for, and the timeouts of the database role"
        }
        _ if error.is_schema_missing() => {
            "The schema is missing or incomplete: restart a broker, or run howdah migrate"
        }
        code if code.starts_with("22") || code.starts_with("23") => {
            "A constraint or trigger of the tables refuses a value: see the log of Postgres"
        }
        _ => "See the log of Postgres, and whether a trigger or rule of the tables refuses the statement",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_a_server_error_unless_its_sqlstate_is_about_a_value() {
        let values = ["22001", "22P02", "23502", "23514"];
        for code in values {
            assert!(is_value_error(&SqlState::from_code(code)), "{code}");
        }
        for code in [
            "2200H", "42501", "42P01", "54000", "55000", "57014", "53100", "25006", "25P04", "P0001", "XX000", "XX001",
            "XX002",
        ] {
            assert!(!is_value_error(&SqlState::from_code(code)), "{code}");
        }
        for code in ["53100", "57014", "25P04", "28P01"] {
            assert!(concerns_every_statement(&SqlState::from_code(code)), "{code}");
        }
        for code in ["54000", "XX001", "P0001", "42501"] {
            assert!(!concerns_every_statement(&SqlState::from_code(code)), "{code}");
        }
    }
}
