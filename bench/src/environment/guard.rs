//! Tokens, TLS and limits of brokers: the brokers' settings, and the matching settings of clients.

use std::{fs, path::PathBuf};

use howdah_client::{Client, ClientBuilder, Tls};
use tempfile::TempDir;

use super::Launcher;
use crate::{
    error::{Error, Result},
    load::{ALLOWED, CONNECTIONS, Flooder},
};

/// Security that the brokers of an environment require of their clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guard {
    Nothing,
    /// A token, whose scopes are checked for every job.
    Tokens,
    /// A token, on connections with TLS.
    TlsAndTokens,
    /// A token for each of two principals, with limits per principal.
    Limits,
}

impl Guard {
    /// Guards whose cost the workload `security` compares.
    pub(crate) const ALL: [Self; 3] = [Self::Nothing, Self::Tokens, Self::TlsAndTokens];

    /// Name of the case in the results.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "plain",
            Self::Tokens => "tokens",
            Self::TlsAndTokens => "TLS and tokens",
            Self::Limits => "limits",
        }
    }
}

/// Files of a guard, removed when dropped.
#[derive(Debug)]
pub(super) struct Files {
    directory: TempDir,
    has_tls: bool,
    has_tokens: bool,
    client: ClientBuilder,
    flooder: Option<Flooder>,
}

impl Files {
    /// Creates the token and certificate that the guard needs.
    pub(super) fn make(guard: Guard, launcher: &Launcher) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("howdah-bench-").tempdir().map_err(failed)?;
        let (has_tls, has_tokens) = (guard == Guard::TlsAndTokens, guard != Guard::Nothing);
        let mut files = Self { directory, has_tls, has_tokens, client: Client::builder(), flooder: None };
        if has_tokens {
            let token = launcher.output(&["token", "generate"])?;
            // Give the token narrow scopes, as the token of a real program has, so that the cost of checking them is measured.
            let mut lines = vec![format!("{token} bench enqueue:bench.* work:bench.*\n")];
            files.client = files.client.token(&token)?;
            if guard == Guard::Limits {
                let [flood, nobody] =
                    [launcher.output(&["token", "generate"])?, launcher.output(&["token", "generate"])?];
                lines.push(format!("{flood} flood enqueue:flood.* read:flood.*\n"));
                let with = |token: &str| Ok::<_, Error>(Client::builder().token(token)?);
                let task_type = "flood.jobs".to_owned();
                files.flooder = Some(Flooder { client: with(&flood)?, stranger: with(&nobody)?, task_type });
            }
            fs::write(files.path("tokens"), lines.concat()).map_err(failed)?;
        }
        if has_tls {
            let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
            let made = rcgen::generate_simple_self_signed(names).map_err(failed)?;
            let certificate = made.cert.pem();
            fs::write(files.path("server.pem"), &certificate).map_err(failed)?;
            fs::write(files.path("server.key"), made.signing_key.serialize_pem()).map_err(failed)?;
            files.client = files.client.tls(Tls::new().ca_pem(certificate));
        }
        Ok(files)
    }

    /// Command-line flags for a broker.
    pub(super) fn args(&self) -> Vec<String> {
        let mut args = Vec::new();
        let mut flag = |name: &str, value: String| args.extend([name.to_owned(), value]);
        let file = |name| self.path(name).display().to_string();
        if self.has_tokens {
            flag("--auth", "token".into());
            flag("--auth-token-file", file("tokens"));
        }
        if self.flooder.is_some() {
            flag("--set", format!("limits.principal_jobs_per_second={ALLOWED}"));
            flag("--set", format!("limits.principal_connections={CONNECTIONS}"));
        }
        if self.has_tls {
            flag("--tls-cert", file("server.pem"));
            flag("--tls-key", file("server.key"));
        }
        args
    }

    /// Client settings for the measured clients.
    pub(super) fn client(&self) -> ClientBuilder {
        self.client.clone()
    }

    /// Client settings for the flooding client.
    pub(super) fn flooder(&self) -> Option<&Flooder> {
        self.flooder.as_ref()
    }

    /// Address of a broker, given the `grpc` field of its ready line.
    pub(super) fn address(&self, grpc: &str) -> String {
        if self.has_tls { format!("https://{grpc}") } else { grpc.to_owned() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Process(format!("cannot create a certificate or a token: {error}"))
}
