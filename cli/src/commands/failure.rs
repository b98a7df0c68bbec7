//! The failure of a command: an exit code, and a line on stderr.

use std::{io, process::ExitCode};

use howdah_client::Error;
use tonic::Code;

use super::refused;
use crate::postgres::DevError;
use howdah_server::{config::ConfigError, logging::escaped, serve::StartError, store::StoreError};

const FAILED: u8 = 1;
/// Wrong usage or configuration; clap uses it too.
const USAGE: u8 = 2;
/// `EX_DATAERR`: the broker refused the input. A job that runs `howdah` and passes this on fails
/// for good.
const DATA_ERROR: u8 = 65;
/// `EX_NOPERM` of sysexits.h: the broker refused the credential, or it does not allow the call.
const NO_PERMISSION: u8 = 77;
/// `EX_UNAVAILABLE`: it may work later.
const UNAVAILABLE: u8 = 69;

/// The failure of a command: its exit status and message.
#[derive(Debug)]
pub(super) struct Failure {
    code: u8,
    /// `None`: the command has printed everything.
    message: Option<String>,
    /// The field of the request that the broker has refused.
    field: Option<String>,
}

impl Failure {
    /// The command failed.
    pub(super) fn failed(message: impl Into<String>) -> Self {
        Self { code: FAILED, message: Some(message.into()), field: None }
    }

    /// The command line or the configuration is wrong.
    pub(super) fn usage(message: impl Into<String>) -> Self {
        Self { code: USAGE, message: Some(message.into()), field: None }
    }

    /// The broker refused the input.
    pub(super) fn data(message: impl Into<String>) -> Self {
        Self { code: DATA_ERROR, message: Some(message.into()), field: None }
    }

    /// The broker or the database does not answer.
    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        Self { code: UNAVAILABLE, message: Some(message.into()), field: None }
    }

    /// The broker refused the credential.
    fn denied(message: String) -> Self {
        Self { code: NO_PERMISSION, message: Some(message), field: None }
    }

    /// The signal with this exit code stopped the command.
    pub(super) fn interrupted(code: u8, message: Option<String>) -> Self {
        Self { code, message, field: None }
    }

    /// The reader of our output has closed it, which is a success.
    pub(super) fn nobody_listens() -> Self {
        Self { code: 0, message: None, field: None }
    }

    /// The same failure with `context` before its message.
    pub(super) fn within(self, context: &str) -> Self {
        Self { message: self.message.map(|message| format!("{context}: {message}")), ..self }
    }

    /// The same failure with more after its message.
    pub(super) fn followed_by(self, more: &str) -> Self {
        Self { message: self.message.map(|message| format!("{message}; {more}")), ..self }
    }

    /// The same failure in words of this command line.
    pub(super) fn in_words(self, command: &clap::Command, matches: &clap::ArgMatches) -> Self {
        let Self { code, mut message, field } = self;
        if let (Some(said), Some(field)) = (&mut message, &field) {
            *said = refused::in_words(said, field, command, matches);
        }
        Self { code, message, field }
    }

    /// Prints the message, and returns the exit code.
    pub(super) fn report(self) -> ExitCode {
        if let Some(message) = &self.message {
            // Nothing can be done if stderr is closed.
            let line = format!("howdah: {}\n", escaped(message));
            let _ = io::Write::write_all(&mut io::stderr(), line.as_bytes());
        }
        ExitCode::from(self.code)
    }
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
            StoreError::NotSent(_) | StoreError::Unknown(_) => {
                Self::unavailable(format!("{error}; is it running, and is the database URL right?"))
            }
            other => Self::failed(other.to_string()),
        }
    }
}

/// What to do about an error of the client that concerns TLS.
fn tls_hint(message: &str) -> Option<&'static str> {
    const HINTS: [(&str, &str); 5] = [
        ("the broker's certificate is not trusted", "name the file of its authority with --tls-ca or HOWDAH_TLS_CA"),
        ("the broker asks for a client certificate", "show one with --tls-cert and --tls-key"),
        ("the broker refused the client certificate", "show another one with --tls-cert and --tls-key"),
        ("this port needs TLS", "set the address with --server or HOWDAH_SERVER"),
        ("this port does not speak", "set the address with --server or HOWDAH_SERVER"),
    ];
    HINTS.iter().find(|(said, _)| message.contains(said)).map(|(_, hint)| *hint)
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        if let Some(hint) = tls_hint(&message) {
            return Self::unavailable(format!("{message}; {hint}"));
        }
        match &error {
            Error::Connect { .. } => Self::unavailable(format!(
                "{message}; is `howdah dev` or `howdah serve` running there? Set another address with --server or HOWDAH_SERVER"
            )),
            _ => match error.code() {
                Code::Unavailable | Code::DeadlineExceeded | Code::ResourceExhausted => Self::unavailable(message),
                Code::InvalidArgument | Code::OutOfRange | Code::AlreadyExists => {
                    let field = error.field().map(str::to_owned);
                    Self { code: DATA_ERROR, message: Some(message), field }
                }
                Code::Unauthenticated => {
                    Self::denied(format!("{message}; give a token with --token-file or HOWDAH_TOKEN"))
                }
                Code::PermissionDenied => Self::denied(message),
                Code::Unimplemented => Self::failed(format!("{message}; is this server a Howdah broker?")),
                _ => Self::failed(message),
            },
        }
    }
}
