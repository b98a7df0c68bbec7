//! Settings from the environment.

use std::env;

use crate::{Client, ClientBuilder, Error, Result};

impl ClientBuilder {
    /// Applies the same environment variables as the command line. Unset and empty variables change nothing.
    ///
    /// | variable | equivalent |
    /// |---|---|
    /// | `HOWDAH_SERVER` | [`endpoint`](Self::endpoint) |
    /// | `HOWDAH_TOKEN` | [`token`](Self::token) |
    /// | `HOWDAH_TOKEN_FILE` | [`token_file`](Self::token_file) |
    /// | `HOWDAH_TLS_CA` | [`tls`](Self::tls) with [`ca_file`](crate::Tls::ca_file) |
    /// | `HOWDAH_TLS_CLIENT_CERT`, `HOWDAH_TLS_CLIENT_KEY` | [`tls`](Self::tls) with [`client_files`](crate::Tls::client_files) |
    /// | `HOWDAH_CLIENT_INSECURE` | [`insecure_token`](Self::insecure_token), unless `0`, `n`, `no`, `f`, `false` or `off` |
    pub fn environment(self) -> Result<Self> {
        self.looked_up(|name| env::var(name).ok())
    }

    fn looked_up(mut self, lookup: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let given = |name: &str| lookup(name).filter(|value| !value.is_empty());
        if let Some(server) = given("HOWDAH_SERVER") {
            self = self.endpoint(server);
        }
        self = match (given("HOWDAH_TOKEN"), given("HOWDAH_TOKEN_FILE")) {
            (Some(_), Some(_)) => {
                return Err(Error::refused("token", "HOWDAH_TOKEN and HOWDAH_TOKEN_FILE are both set: unset one"));
            }
            (Some(token), None) => self.token(&token)?,
            (None, Some(file)) => self.token_file(file)?,
            (None, None) => self,
        };
        // `HOWDAH_CLIENT_INSECURE` is false for these values and true for all others, as on the command line.
        let no = |value: &String| ["0", "n", "no", "f", "false", "off"].contains(&value.to_lowercase().as_str());
        if given("HOWDAH_CLIENT_INSECURE").is_some_and(|value| !no(&value)) {
            self = self.insecure_token();
        }
        match ["HOWDAH_TLS_CA", "HOWDAH_TLS_CLIENT_CERT", "HOWDAH_TLS_CLIENT_KEY"].map(given) {
            [None, None, None] => Ok(self),
            files => self.with_files(files),
        }
    }

    #[cfg(feature = "tls")]
    fn with_files(self, [ca, certificate, key]: [Option<String>; 3]) -> Result<Self> {
        let mut tls = crate::Tls::new();
        if let Some(ca) = ca {
            tls = tls.ca_file(ca)?;
        }
        match (certificate, key) {
            (Some(certificate), Some(key)) => tls = tls.client_files(certificate, key)?,
            (None, None) => {}
            _ => {
                let message = "only one of HOWDAH_TLS_CLIENT_CERT and HOWDAH_TLS_CLIENT_KEY is set: set both";
                return Err(Error::refused("tls", message));
            }
        }
        Ok(self.tls(tls))
    }

    #[cfg(not(feature = "tls"))]
    fn with_files(self, _: [Option<String>; 3]) -> Result<Self> {
        Err(Error::refused(
            "tls",
            "a variable HOWDAH_TLS_* is set, but this program was built without the feature `tls` of howdah-client",
        ))
    }
}

impl Client {
    /// Connects to the broker that the environment variables name: see [`ClientBuilder::environment`].
    pub async fn from_env() -> Result<Self> {
        Self::builder().environment()?.connect().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Result<ClientBuilder> {
        let found =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        Client::builder().looked_up(found)
    }

    #[tokio::test]
    async fn the_environment_names_brokers() {
        let client =
            with(&[("HOWDAH_SERVER", "a:1,https://b:2"), ("HOWDAH_TOKEN", "")]).unwrap().connect_lazy().unwrap();
        assert_eq!(client.endpoints().collect::<Vec<_>>(), ["http://a:1/", "https://b:2/"]);
    }

    #[test]
    fn conflicting_or_incomplete_environment_variables_are_refused() {
        let twice = with(&[("HOWDAH_TOKEN", "t"), ("HOWDAH_TOKEN_FILE", "f")]).unwrap_err();
        assert_eq!(twice.field(), Some("token"));
        assert_eq!(with(&[("HOWDAH_TLS_CLIENT_CERT", "c")]).unwrap_err().field(), Some("tls"));
        let missing = with(&[("HOWDAH_TLS_CA", "/nowhere/ca.pem")]).unwrap_err();
        assert!(missing.to_string().contains("/nowhere/ca.pem"), "{missing}");
    }
}
