//! `howdah health`: whether the broker on this machine is ready, for supervisors and for images without curl.

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

/// How long one answer may take.
const ANSWER: Duration = Duration::from_secs(5);
/// Between two questions of `--wait`.
const AGAIN: Duration = Duration::from_millis(200);

/// Ask the broker on this machine whether it is ready
///
/// Takes the flags, variables and file of `howdah serve`, and asks the address that they give for HTTP. Exit status 0: it
/// is ready; 69: it is not, or does not answer. The broker's certificate is not checked, since nothing secret is sent.
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
    /// Ask only whether it runs, not whether it can store jobs
    #[arg(long)]
    live: bool,
    /// Ask again for at most this time, until it is ready
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
            match ask(&client, &url).await {
                Ok(answer) => {
                    let mut output = Output::new();
                    output.line(answer.trim_end())?;
                    return output.flush();
                }
                Err(problem) if Instant::now() >= end => return Err(Failure::unavailable(problem)),
                Err(_) => sleep(AGAIN).await,
            }
        }
    })
}

fn client() -> Result<Client, reqwest::Error> {
    // The certificate names the broker, not this machine's loopback.
    Client::builder().no_proxy().redirect(Policy::none()).timeout(ANSWER).danger_accept_invalid_certs(true).build()
}

/// The answer, or why it is not ready.
async fn ask(client: &Client, url: &str) -> Result<String, String> {
    let response = client.get(url).send().await.map_err(|error| format!("no broker answers at {url}: {error}"))?;
    let status = response.status();
    let text = response.text().await.unwrap_or_default();
    if status.is_success() { Ok(text) } else { Err(format!("the broker is not ready: {}", text.trim_end())) }
}

/// An address that listens for all of a machine's is asked on loopback.
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
        let asked = |address: &str| here(address.parse().unwrap()).to_string();
        assert_eq!(asked("0.0.0.0:7433"), "127.0.0.1:7433");
        assert_eq!(asked("[::]:80"), "[::1]:80");
        assert_eq!(asked("10.0.0.7:7433"), "10.0.0.7:7433");
    }
}
