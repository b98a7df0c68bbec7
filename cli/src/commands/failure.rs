//! Failure of a command: an exit code and a line on stderr.

use std::{io, process::ExitCode};

use howdah_client::Error;
use howdah_core::{config::ConfigError, logging::escaped};
use howdah_engine::store::StoreError;
use tonic::Code;

use super::field_errors;
use crate::postgres::DevError;
use howdah_server::serve::StartError;

const FAILED: u8 = 1;
/// Exit code of wrong usage or configuration, which clap also uses.
const USAGE: u8 = 2;
/// `EX_DATAERR` of sysexits.h: the broker refused the input. A job that runs `howdah` and exits with the same code fails for
/// good.
const DATA_ERROR: u8 = 65;
/// `EX_NOPERM` of sysexits.h: the broker rejected the credential, or the credential does not allow the call.
const NO_PERMISSION: u8 = 77;
/// `EX_UNAVAILABLE` of sysexits.h: a later attempt may succeed.
const UNAVAILABLE: u8 = 69;

/// Failure of a command: exit code and message.
#[derive(Debug)]
pub(super) struct Failure {
    code: u8,
    /// `None` if the command has already printed its message.
    message: Option<String>,
    /// Field of the request that the broker refused.
    field: Option<String>,
    /// Whether a call that changes something got no answer.
    is_effect_unknown: bool,
}

impl Failure {
    fn new(code: u8, message: Option<String>) -> Self {
        Self { code, message, field: None, is_effect_unknown: false }
    }

    /// Failure of the command (exit code 1).
    pub(super) fn failed(message: impl Into<String>) -> Self {
        Self::new(FAILED, Some(message.into()))
    }

    /// Error in the command line or the configuration (exit code 2).
    pub(super) fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, Some(message.into()))
    }

    /// Input that the broker refused (exit code 65).
    pub(super) fn data(message: impl Into<String>) -> Self {
        Self::new(DATA_ERROR, Some(message.into()))
    }

    /// Broker or database without an answer (exit code 69).
    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(UNAVAILABLE, Some(message.into()))
    }

    /// Credential that the broker rejected (exit code 77).
    fn denied(message: String) -> Self {
        Self::new(NO_PERMISSION, Some(message))
    }

    /// Interruption by a signal. `code` is the exit code for that signal.
    pub(super) fn interrupted(code: u8, message: Option<String>) -> Self {
        Self::new(code, message)
    }

    /// Clean end (exit code 0) because the reader of stdout has closed it.
    pub(super) fn output_closed() -> Self {
        Self::new(0, None)
    }

    /// Puts `context` before the message.
    pub(super) fn within(self, context: &str) -> Self {
        Self { message: self.message.map(|message| format!("{context}: {message}")), ..self }
    }

    /// Appends `more` to the message.
    pub(super) fn followed_by(self, more: &str) -> Self {
        Self { message: self.message.map(|message| format!("{message}; {more}")), ..self }
    }

    /// Replaces the field name in the message by the flag of the command line.
    pub(super) fn with_flag_names(self, command: &clap::Command, matches: &clap::ArgMatches) -> Self {
        let Self { mut message, field, .. } = self;
        if let (Some(text), Some(field)) = (&mut message, &field) {
            *text = field_errors::with_flag_names(text, field, command, matches);
        }
        Self { message, field, ..self }
    }

    /// If it is unknown whether the last call took effect, appends `advice` about repeating the command.
    pub(super) fn with_advice(self, advice: Option<&str>) -> Self {
        match advice {
            Some(advice) if self.is_effect_unknown => self.followed_by(advice),
            _ => self,
        }
    }

    /// Prints the message and returns the exit code.
    pub(super) fn report(self) -> ExitCode {
        if let Some(message) = &self.message {
            // Errors are ignored: if stderr is closed, there is no other place to report them.
            let line = format!("howdah: {}\n", escaped(message));
            let _ = io::Write::write_all(&mut io::stderr(), line.as_bytes());
        }
        ExitCode::from(self.code)
    }
}

/// Failure of a check that has found problems.
pub(super) fn problems(count: usize) -> Failure {
    Failure::failed(if count == 1 { "found 1 problem".into() } else { format!("found {count} problems") })
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<DevError> for Failure {
    fn from(error: DevError) -> Self {
        Self::failed(error.to_string())
    }
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Bind { .. } => Self::usage(format!("{error}; choose other addresses with --listen and --http")),
            StartError::Config(_) | StartError::NoNotifications => Self::usage(error.to_string()),
            StartError::Store(error) => error.into(),
            StartError::Stores(_) | StartError::Serve(_) => Self::failed(error.to_string()),
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        match error {
            error if error.is_permanent() => Self::usage(error.to_string()),
            StoreError::NotSent(_) | StoreError::Unknown(_) => {
                let hint =
                    if error.is_read_only() { "" } else { "; is Postgres running, and is the database URL right?" };
                Self::unavailable(format!("{error}{hint}"))
            }
            other => Self::failed(other.to_string()),
        }
    }
}

/// Returns a hint for a TLS error of the client; `None` for other errors.
fn tls_hint(message: &str) -> Option<&'static str> {
    const HINTS: [(&str, &str); 5] = [
        ("the broker's certificate is not trusted", "give the file of its authority with --tls-ca or HOWDAH_TLS_CA"),
        ("the broker asks for a client certificate", "give one with --tls-cert and --tls-key"),
        ("the broker refused the client certificate", "give another one with --tls-cert and --tls-key"),
        ("this port needs TLS", "set the address with --server or HOWDAH_SERVER"),
        ("this port does not speak", "set the address with --server or HOWDAH_SERVER"),
    ];
    HINTS.iter().find(|(text, _)| message.contains(text)).map(|(_, hint)| *hint)
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        if let Some(hint) = tls_hint(&message) {
            return Self::unavailable(format!("{message}; {hint}"));
        }
        let failure = match &error {
            Error::Connect { .. } => Self::unavailable(format!(
                "{message}; is `howdah dev` or `howdah serve` running there? Set another address with --server or HOWDAH_SERVER"
            )),
            _ => match error.code() {
                Code::Unavailable | Code::DeadlineExceeded | Code::ResourceExhausted => Self::unavailable(message),
                Code::InvalidArgument | Code::OutOfRange | Code::AlreadyExists => {
                    let field = error.field().map(str::to_owned);
                    Self { field, ..Self::data(message) }
                }
                Code::Unauthenticated => {
                    Self::denied(format!("{message}; give a token with --token-file or HOWDAH_TOKEN"))
                }
                Code::PermissionDenied => Self::denied(message),
                Code::Unimplemented => Self::failed(format!("{message}; is this server a Howdah broker?")),
                _ => Self::failed(message),
            },
        };
        Self { is_effect_unknown: error.is_effect_unknown(), ..failure }
    }
}
