//! Settings of a client, set by a program or by environment variables.

use std::{
    env,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tonic::transport::{Channel, Endpoint};

use super::{Broker, Client, Inner};
use crate::{
    Error, Result,
    connection::Credential,
    endpoint::{self, Settings},
    setters::setters,
    telemetry::Address,
};

/// Settings of a [`Client`].
#[derive(Debug, Clone, Default)]
#[must_use = "a builder does nothing until it connects"]
pub struct ClientBuilder {
    addresses: Vec<String>,
    pub(crate) settings: Settings,
}

impl ClientBuilder {
    /// Adds a broker, or several separated by commas. The client uses the first one that it can reach. Workers and producers switch
    /// to the next one when their broker fails. Default: `http://127.0.0.1:7432`.
    pub fn endpoint(mut self, endpoint: impl Into<String>) -> Self {
        let given = endpoint.into();
        self.addresses.extend(given.split(',').map(str::to_owned));
        self
    }

    /// Adds several brokers, like repeated calls of [`endpoint`](Self::endpoint).
    pub fn endpoints<E: Into<String>>(self, endpoints: impl IntoIterator<Item = E>) -> Self {
        endpoints.into_iter().fold(self, Self::endpoint)
    }

    setters! {
        /// Sets the timeout of an attempt to connect, including TLS. Default: 5 s.
        connect_timeout(timeout: Duration) => settings.connect_timeout = timeout;

        /// Sets the timeout of a call, including its retries. Default: 30 s.
        request_timeout(timeout: Duration) => settings.request_timeout = timeout;

        /// Sets the largest message sent or accepted, in bytes. Default: 16 MiB.
        max_message_bytes(bytes: usize) => settings.max_message_bytes = bytes;

        /// Sets certificates for `https://` endpoints, instead of the system's root certificates.
        #[cfg(feature = "tls")]
        tls(tls: crate::Tls) => settings.tls = Some(tls);

        /// Sets the `user-agent` header of all calls. Default: `howdah-client/` and the version.
        user_agent(name: impl Into<String>) => settings.user_agent = Some(name.into());
    }

    /// Sets the token for brokers that require one (`howdah token create`). Brokers on other machines need `https://`, because
    /// `http://` exposes the token to the network (see [`insecure_token`](Self::insecure_token)).
    pub fn token(mut self, token: &str) -> Result<Self> {
        self.settings.credential = Credential::token(token)?;
        Ok(self)
    }

    /// Sets a file with the token. The client rereads the file every 10 s, so the token can be replaced.
    pub fn token_file(mut self, path: impl Into<PathBuf>) -> Result<Self> {
        self.settings.credential = Credential::token_file(path.into())?;
        Ok(self)
    }

    /// Sends the token over `http://` to brokers on other machines too, which exposes it to the network. Use it only on encrypted
    /// networks, such as a VPN or a service mesh with mutual TLS.
    pub fn insecure_token(mut self) -> Self {
        self.settings.insecure_token = true;
        self
    }

    /// Adds middleware around each enqueue of this client, and around each handler of its workers.
    pub fn middleware(mut self, middleware: impl crate::Middleware) -> Self {
        self.settings.middleware.add(middleware);
        self
    }

    /// Connects to the first endpoint that can be reached.
    pub async fn connect(self) -> Result<Client> {
        let endpoints = self.parse()?;
        let mut last =
            Error::refused("endpoint", "no endpoint was given; give at least one, such as http://127.0.0.1:7432");
        for (index, endpoint) in endpoints.iter().enumerate() {
            match endpoint::connect(endpoint, &self.settings).await {
                Ok(channel) => {
                    let client = self.build(endpoints, index, Some(channel));
                    client.check_all().await?;
                    return Ok(client);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Connects at the first use, so that the broker may start later than this program.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime.
    pub fn connect_lazy(self) -> Result<Client> {
        let endpoints = self.parse()?;
        Ok(self.build(endpoints, 0, None))
    }

    /// A client without a broker, which records the enqueued jobs.
    #[cfg(feature = "testing")]
    pub(crate) fn recording(mut self, recorder: crate::testing::Recorder) -> Client {
        self.settings.recorder = Some(recorder);
        let nowhere = Endpoint::from_static("http://127.0.0.1:1");
        self.build(vec![nowhere], 0, None)
    }

    fn parse(&self) -> Result<Vec<Endpoint>> {
        let default = ["http://127.0.0.1:7432".to_owned()];
        let addresses = if self.addresses.is_empty() { default.as_slice() } else { self.addresses.as_slice() };
        addresses.iter().map(|address| endpoint::parse(address, &self.settings)).collect()
    }

    fn build(self, endpoints: Vec<Endpoint>, current: usize, channel: Option<Channel>) -> Client {
        let mut connected = channel;
        let brokers = endpoints
            .into_iter()
            .enumerate()
            .map(|(index, endpoint)| {
                let ready = connected.take_if(|_| index == current);
                let channel = ready.unwrap_or_else(|| endpoint.connect_lazy());
                let address = Address::from_uri(endpoint.uri());
                Broker { endpoint, address, channel, is_checked: AtomicBool::new(false) }
            })
            .collect();
        let (settings, current) = (self.settings, AtomicUsize::new(current));
        let credential = settings.credential.clone();
        Client { inner: Arc::new(Inner { settings, brokers, current, database: Mutex::default() }), credential }
    }
}

/// Settings from the environment.
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
            #[cfg(feature = "tls")]
            files => self.with_files(files),
            #[cfg(not(feature = "tls"))]
            _ => Err(Error::refused(
                "tls",
                "a variable HOWDAH_TLS_* is set, but this program was built without the feature `tls` of howdah-client",
            )),
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
