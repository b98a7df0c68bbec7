//! The environment of one scenario: its broker addresses, its adapter, its variables and its log of messages.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, atomic::AtomicU64},
};

use parking_lot::Mutex;
use serde_json::json;
use tokio::net::TcpStream;

use crate::{
    adapter::Adapter,
    inventory::Inventory,
    log::Log,
    proxy::{Dial, Proxy, Stream},
    rewrite::Rewrites,
    scenario::{BrokerConfig, Scenario},
    tap::Tap,
    values::Variables,
    world::{Broker, World},
};

/// Size of the in-memory pipe between the proxy and the tap, in bytes: about the size of a socket buffer.
const PIPE: usize = 256 << 10;

/// One broker address of a scenario, with its proxy.
pub(crate) struct BrokerAddress {
    pub(crate) proxy: Proxy,
    pub(crate) rewrites: Rewrites,
    /// The broker process, if only this scenario uses it. `None` for a shared broker, and before a dedicated broker has
    /// started.
    pub(crate) dedicated: Option<Broker>,
    upstream: Arc<Mutex<Option<SocketAddr>>>,
    pub(crate) config: BrokerConfig,
}

pub(crate) struct Environment<'w> {
    pub(crate) world: &'w World,
    pub(crate) adapter: &'w Adapter,
    pub(crate) addresses: BTreeMap<String, BrokerAddress>,
    /// Messages between clients and brokers, as the tap logged them.
    pub(crate) wire: Log,
    pub(crate) variables: Variables,
    /// Tokens, which the adapter's log must not contain.
    pub(crate) secrets: Vec<String>,
}

/// The variables that exist at the start of a scenario, and the tokens that must not be logged.
pub(crate) struct Predefined {
    pub(crate) variables: Variables,
    secrets: Vec<String>,
}

impl Predefined {
    pub(crate) fn new(world: &World, scenario: &Scenario, number: u64) -> Result<Self, String> {
        let mut variables = Variables::default();
        variables.set("t", format!("{}.{number}", scenario.name.replace('/', ".")));
        for file in ["ca", "other-ca", "server", "client"] {
            variables.set(&file.replace('-', "_"), world.files.path(&format!("{file}.pem")));
        }
        variables.set("server_key", world.files.path("server.key"));
        variables.set("client_key", world.files.path("client.key"));
        let tokens = world.files.path(&format!("tokens-{number}"));
        let [token, second, unknown] = world.tokens.clone();
        let line = |token: &str| format!("{token} conformance admin:* operate:* read:* work:* enqueue:*\n");
        std::fs::write(&tokens, line(&token) + &line(&second)).map_err(|error| error.to_string())?;
        variables.set("tokens", tokens);
        variables.set("token_file", world.files.path(&format!("token-{number}")));
        variables.set("token", token.clone());
        variables.set("second_token", second.clone());
        variables.set("unknown_token", unknown.clone());
        Ok(Self { variables, secrets: vec![token, second, unknown] })
    }
}

impl<'w> Environment<'w> {
    pub(crate) async fn addresses(
        world: &World,
        scenario: &Scenario,
        predefined: &mut Predefined,
        inventory: &Arc<Inventory>,
        wire: &Log,
    ) -> Result<BTreeMap<String, BrokerAddress>, String> {
        let mut config = scenario.brokers.clone();
        for name in ["a", "b"] {
            config.entry(name.to_owned()).or_default();
        }
        let streams = Arc::new(AtomicU64::new(1));
        let mut addresses = BTreeMap::new();
        for (name, config) in config {
            let dedicated = scenario.brokers.contains_key(&name);
            let (upstream, rewrites) = (Arc::new(Mutex::new(None)), Rewrites::default());
            let tap = Tap {
                broker: name.clone(),
                log: wire.clone(),
                rewrites: rewrites.clone(),
                inventory: inventory.clone(),
                streams: streams.clone(),
            };
            let proxy = Proxy::start(dial(upstream.clone(), (!config.tls).then_some(tap)));
            let proxy = proxy.await.map_err(|error| error.to_string())?;
            let scheme = if config.tls { "https" } else { "http" };
            predefined.variables.set(&name, format!("{scheme}://{}", proxy.address));
            let mut address = BrokerAddress { proxy, rewrites, dedicated: None, upstream, config };
            if dedicated && !address.config.later {
                address.start(world, &name, &predefined.variables).await?;
            } else if !dedicated {
                let broker = if name == "a" { &world.a } else { &world.b };
                address.serve(broker)?;
            }
            addresses.insert(name, address);
        }
        Ok(addresses)
    }

    pub(crate) fn new(
        world: &'w World,
        adapter: &'w Adapter,
        predefined: Predefined,
        addresses: BTreeMap<String, BrokerAddress>,
        wire: Log,
    ) -> Self {
        Self { world, adapter, addresses, wire, variables: predefined.variables, secrets: predefined.secrets }
    }

    pub(crate) fn address(&mut self, name: &str) -> Result<&mut BrokerAddress, String> {
        self.addresses.get_mut(name).ok_or_else(|| format!("the scenario has no broker {name}"))
    }

    /// Returns the session ids seen on the wire. Session ids are secrets, like tokens.
    pub(crate) fn sessions(&self) -> Vec<String> {
        let session = |seen: &serde_json::Value| {
            let id = seen.pointer("/message/welcome/session_id")?.as_str()?;
            Some(id.to_owned()).filter(|id| !id.is_empty())
        };
        self.wire.read(|seen| seen.iter().filter_map(session).collect())
    }
}

impl BrokerAddress {
    /// Starts the broker that the scenario file defines under this name.
    pub(crate) async fn start(&mut self, world: &World, name: &str, variables: &Variables) -> Result<(), String> {
        let fill = |arg: &String| {
            let filled = variables.fill(&json!(arg))?;
            filled.as_str().map(str::to_owned).ok_or_else(|| format!("the broker argument {arg} is not a text"))
        };
        let args = self.config.args.iter().map(fill).collect::<Result<Vec<_>, String>>()?;
        let broker = world.broker(name, self.config.database.as_deref(), &args).await?;
        self.serve(&broker)?;
        self.dedicated = Some(broker);
        Ok(())
    }

    fn serve(&self, broker: &Broker) -> Result<(), String> {
        let address = broker.host_and_port().parse().map_err(|_| format!("{} is not an IP address", broker.grpc))?;
        *self.upstream.lock() = Some(address);
        Ok(())
    }
}

fn dial(upstream: Arc<Mutex<Option<SocketAddr>>>, tap: Option<Tap>) -> Dial {
    Arc::new(move || {
        let (upstream, tap) = (*upstream.lock(), tap.clone());
        Box::pin(async move {
            let upstream = upstream.ok_or(std::io::ErrorKind::ConnectionRefused)?;
            let Some(tap) = tap else {
                let stream = TcpStream::connect(upstream).await?;
                stream.set_nodelay(true)?;
                return Ok(Box::new(stream) as Box<dyn Stream>);
            };
            let (near, far) = tokio::io::duplex(PIPE);
            tokio::spawn(tap.serve(far, upstream));
            Ok(Box::new(near) as Box<dyn Stream>)
        })
    })
}
