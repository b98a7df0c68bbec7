//! Addresses of brokers, and connection settings.

use std::{net::IpAddr, time::Duration};

use tonic::transport::{Channel, Endpoint};

use crate::{Error, Result, connection::Credential, middleware::Layers, telemetry::Telemetry};

/// Interval of HTTP/2 pings: short enough that proxies keep an idle connection open, and long enough for servers that close
/// connections with frequent pings.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// HTTP/2 flow-control windows. With the default of 64 KiB, a stream of jobs would stall at each round trip. An adaptive
/// window would send additional pings.
const STREAM_WINDOW_BYTES: u32 = 8 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// Longest wait of a `PullJobs` call. Calls of generated clients get the request timeout plus this time.
const LONGEST_WAIT: Duration = Duration::from_mins(1);

/// Settings of all connections of a client.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) connect_timeout: Duration,
    pub(crate) request_timeout: Duration,
    pub(crate) max_message_bytes: usize,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<crate::Tls>,
    pub(crate) user_agent: Option<String>,
    pub(crate) credential: Credential,
    pub(crate) insecure_token: bool,
    pub(crate) middleware: Layers,
    pub(crate) telemetry: Telemetry,
    #[cfg(feature = "testing")]
    pub(crate) recorder: Option<crate::testing::Recorder>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(30),
            max_message_bytes: 16 << 20,
            #[cfg(feature = "tls")]
            tls: None,
            user_agent: None,
            credential: Credential::default(),
            insecure_token: false,
            middleware: Layers::default(),
            telemetry: Telemetry::global(),
            #[cfg(feature = "testing")]
            recorder: None,
        }
    }
}

/// Reads `host:port` or a URL with `http://` or `https://`.
pub(crate) fn parse(address: &str, settings: &Settings) -> Result<Endpoint> {
    let address = address.trim();
    let url = if address.contains("://") { address.to_owned() } else { format!("http://{address}") };
    let refused = |message: String| Error::refused("endpoint", format!("{address:?}: {message}"));
    let mut endpoint = Endpoint::from_shared(url).map_err(|error| refused(crate::error::chain(&error)))?;
    let scheme = endpoint.uri().scheme_str().unwrap_or_default().to_owned();
    match scheme.as_str() {
        "http" if settings.credential.is_some() && !settings.insecure_token && !is_loopback(&endpoint) => {
            return Err(refused(
                "a token over http:// is readable by anyone on the network path: use https://, or set insecure_token (howdah: \
                 --insecure) where the network itself encrypts"
                    .to_owned(),
            ));
        }
        "http" => {}
        "https" => {
            endpoint = with_tls(endpoint, settings)?;
        }
        other => {
            return Err(refused(format!("{other}:// is neither http:// nor https://")));
        }
    }
    if endpoint.uri().host().is_none_or(str::is_empty) {
        return Err(refused("has no host".to_owned()));
    }
    let own = concat!("howdah-client/", env!("CARGO_PKG_VERSION"));
    endpoint
        .user_agent(settings.user_agent.as_deref().unwrap_or(own))
        .map(|endpoint| tune(endpoint, settings))
        .map_err(|error| Error::refused("user_agent", crate::error::chain(&error)))
}

/// Whether the endpoint is on this machine.
fn is_loopback(endpoint: &Endpoint) -> bool {
    let host = endpoint.uri().host().unwrap_or_default().trim_matches(['[', ']']);
    let is_local_name = host.eq_ignore_ascii_case("localhost");
    is_local_name || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(feature = "tls")]
fn with_tls(endpoint: Endpoint, settings: &Settings) -> Result<Endpoint> {
    settings.tls.clone().unwrap_or_default().apply(endpoint)
}

#[cfg(not(feature = "tls"))]
fn with_tls(_: Endpoint, _: &Settings) -> Result<Endpoint> {
    Err(Error::refused(
        "tls",
        "https:// needs the feature `tls` of howdah-client, which this program was built without",
    ))
}

fn tune(endpoint: Endpoint, settings: &Settings) -> Endpoint {
    endpoint
        .connect_timeout(settings.connect_timeout)
        // This timeout ends when the response begins, so that streams may stay open. Calls made by this crate have shorter
        // deadlines.
        .timeout(settings.request_timeout + LONGEST_WAIT)
        .tcp_nodelay(true)
        .tcp_keepalive(Some(KEEPALIVE_INTERVAL))
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
}

/// Connects now, within the connect timeout.
pub(crate) async fn connect(endpoint: &Endpoint, settings: &Settings) -> Result<Channel> {
    // The endpoint's own connect timeout covers only the TCP handshake. This timeout also covers name resolution and TLS.
    match tokio::time::timeout(settings.connect_timeout, endpoint.connect()).await {
        Ok(Ok(channel)) => Ok(channel),
        Ok(Err(error)) => Err(Error::connect(endpoint.uri(), &error)),
        Err(_) => Err(Error::Connect {
            endpoint: endpoint.uri().to_string(),
            message: format!("no connection within {:?}", settings.connect_timeout),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(address: &str) -> Result<String> {
        parse(address, &Settings::default()).map(|endpoint| endpoint.uri().to_string())
    }

    #[test]
    fn an_address_needs_no_scheme() {
        assert_eq!(parsed("broker:7432").unwrap(), "http://broker:7432/");
        assert_eq!(parsed(" http://broker:7432 ").unwrap(), "http://broker:7432/");
        #[cfg(feature = "tls")]
        assert_eq!(parsed("https://broker").unwrap(), "https://broker/");
        #[cfg(not(feature = "tls"))]
        assert!(parsed("https://broker").unwrap_err().to_string().contains("feature `tls`"));
    }

    #[test]
    fn a_token_is_sent_in_plain_text_only_to_loopback_unless_insecure_token_is_set() {
        let credential = Credential::token("hwd_secret").unwrap();
        let with_token = Settings { credential, ..Settings::default() };
        let insecure = Settings { insecure_token: true, ..with_token.clone() };
        for own in ["127.0.0.1:7432", "http://127.8.8.8:7432", "[::1]:7432", "http://LocalHost", "[::ffff:127.0.0.1]:1"]
        {
            assert!(parse(own, &with_token).is_ok(), "{own}");
        }
        for other in ["broker:7432", "http://10.0.0.1:7432", "[fe80::1]:7432", "localhost.example", "127.0.0.1.example"]
        {
            let error = parse(other, &with_token).unwrap_err().to_string();
            assert!(error.contains("https://") && error.contains("--insecure") && !error.contains("hwd_"), "{error}");
            assert!(parse(other, &insecure).is_ok() && parse(other, &Settings::default()).is_ok(), "{other}");
        }
        #[cfg(feature = "tls")]
        assert!(parse("https://broker:7432", &with_token).is_ok());
    }

    #[test]
    fn a_bad_address_is_refused_with_the_address_in_the_error() {
        for bad in ["", "postgres://broker", "http://", "a b", "http://:7432"] {
            let error = parsed(bad).unwrap_err();
            assert_eq!(error.field(), Some("endpoint"), "{bad:?}");
            assert!(error.to_string().contains(&format!("{bad:?}")), "{error}");
        }
    }
}
