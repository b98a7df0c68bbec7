//! `howdah health`: checks whether the broker on this machine is ready, for supervisors and for images without curl.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use reqwest::{Client, redirect::Policy};
use tokio::time::{Instant, sleep};

use super::{
    broker_args::{BrokerArgs, ConfigArgs},
    context::{Global, block_on, start_logging},
    failure::Failure,
    output::Output,
    values,
};

/// Timeout of one request.
const ANSWER: Duration = Duration::from_secs(5);
/// Interval between requests with `--wait`.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Check whether the broker on this machine is ready
///
/// Reads the flags, variables and file of `howdah serve`, and sends a request to the HTTP address that they set. The exit
/// status is 0 if the broker is ready, and 69 if it is not ready or does not answer. Does not verify the broker's certificate,
/// because it sends no secrets.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah health
  howdah health --wait 30s                     # until it is ready
  HOWDAH_HTTP=0.0.0.0:7433 howdah health --live")]
pub(super) struct Args {
    #[command(flatten)]
    broker: BrokerArgs,
    #[command(flatten)]
    config: ConfigArgs,
    /// Check only whether the broker runs, not whether it can store jobs
    #[arg(long)]
    live: bool,
    /// Retry for at most this time, until the broker is ready
    #[arg(long, value_name = "DURATION", value_parser = values::duration, default_value = "0s", hide_default_value = true)]
    wait: Duration,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let settings = args.config.load(global, args.broker.flags())?;
    start_logging(&settings.log, "off")?;
    let config = settings.broker;
    let scheme = if config.tls.cert.is_some() { "https" } else { "http" };
    let path = if args.live { "healthz" } else { "readyz" };
    let url = format!("{scheme}://{}/{path}", here(config.http));
    block_on(async {
        let client = client().map_err(|error| Failure::failed(error.to_string()))?;
        let end = Instant::now() + args.wait;
        loop {
            match request(&client, &url).await {
                Ok(answer) => {
                    let mut output = Output::new();
                    output.line(answer.trim_end())?;
                    return output.flush();
                }
                Err(problem) if Instant::now() >= end => return Err(Failure::unavailable(problem)),
                Err(_) => sleep(RETRY_INTERVAL).await,
            }
        }
    })
}

fn client() -> Result<Client, reqwest::Error> {
    // The certificate is not verified, because it names the broker's host and the request goes to the loopback address.
    Client::builder().no_proxy().redirect(Policy::none()).timeout(ANSWER).danger_accept_invalid_certs(true).build()
}

/// Returns the answer of the broker, or the reason why it is not ready.
async fn request(client: &Client, url: &str) -> Result<String, String> {
    let response = client.get(url).send().await.map_err(|error| match error {
        error if error.is_timeout() => {
            format!("no answer at {url} within {ANSWER:?}: the broker waits for its database, or hangs")
        }
        error => format!("no broker answers at {url}: {error}; is the broker running?"),
    })?;
    let status = response.status();
    let text = response.text().await.unwrap_or_default();
    if status.is_success() {
        Ok(text)
    } else {
        Err(format!("the broker runs, but it is not ready: {}", text.trim_end()))
    }
}

/// Replaces an unspecified listen address by the loopback address.
fn here(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::here;

    #[test]
    fn a_broker_that_listens_everywhere_is_asked_on_loopback() {
        let target = |address: &str| here(address.parse().unwrap()).to_string();
        assert_eq!(target("0.0.0.0:7433"), "127.0.0.1:7433");
        assert_eq!(target("[::]:80"), "[::1]:80");
        assert_eq!(target("10.0.0.7:7433"), "10.0.0.7:7433");
    }
}
