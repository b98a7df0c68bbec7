//! Token of `howdah dev --auth token`. It has all scopes, so that it can create further tokens.

use std::{
    fs,
    path::{Path, PathBuf},
};

use howdah_engine::access::Token;
use howdah_server::credentials;

use super::{dev_files::DevFiles, failure::Failure};

/// Principal of the token.
const PRINCIPAL: &str = "dev";
const SCOPES: &str = "admin:* operate:* read:* payload:* enqueue:* work:*";

/// Generated token: one file with the token for clients, and one with token and scopes for the broker.
pub(super) struct DevToken {
    files: DevFiles,
}

impl DevToken {
    /// Generates a token beside the data directory, or uses an existing valid one. Without a data directory it is temporary.
    pub(super) fn prepare(data_dir: Option<&Path>) -> Result<Self, Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::failed(format!("cannot generate a token: {error}"));
        let own = DevFiles::beside(data_dir, "token").map(|files| Self { files }).map_err(|error| failed(&error))?;
        if !own.is_good() {
            let token = Token::generate();
            let line = format!("{} {PRINCIPAL} {SCOPES}\n", token.secret());
            own.files.write("broker", &line, 0o600).map_err(|error| failed(&error))?;
            own.files.write("client", token.secret(), 0o600).map_err(|error| failed(&error))?;
        }
        Ok(own)
    }

    /// Token file for the broker.
    pub(super) fn for_broker(&self) -> PathBuf {
        self.files.path("broker")
    }

    /// Token file for clients.
    pub(super) fn for_clients(&self) -> PathBuf {
        self.files.path("client")
    }

    fn is_good(&self) -> bool {
        let token = fs::read_to_string(self.for_clients()).ok().and_then(|text| Token::parse(text.trim()).ok());
        let known = credentials::read_token_file(&self.for_broker()).unwrap_or_default();
        token.is_some_and(|token| known.iter().any(|known| known.id == *token.id()))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_token_is_kept_beside_the_data_for_this_user_alone() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("dev");
        let own = DevToken::prepare(Some(&data)).unwrap();
        let token = || fs::read_to_string(directory.path().join("dev-token/client")).unwrap();
        let first = token();
        for file in [own.for_broker(), own.for_clients()] {
            assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
        }
        let known = credentials::read_token_file(&own.for_broker()).unwrap();
        for (_, word) in howdah_engine::access::Operation::ALL {
            assert!(known[0].scopes.contains(&format!("{word}:*")), "it has all scopes: {:?}", known[0].scopes);
        }
        drop(DevToken::prepare(Some(&data)).unwrap());
        assert_eq!(token(), first, "clients continue after a restart");
        fs::write(own.for_broker(), "junk").unwrap();
        drop(DevToken::prepare(Some(&data)).unwrap());
        assert_ne!(token(), first, "a token that the broker rejects is regenerated");
    }
}
