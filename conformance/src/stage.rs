//! Where one scenario plays: its addresses, its adapter, what was seen.

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
    bend::Bends,
    inventory::Inventory,
    log::Log,
    proxy::{Dial, Proxy, Stream},
    scenario::{Brokers, Scenario},
    tap::Tap,
    values::Variables,
    world::{Broker, World},
};

/// Room in the pipe between the proxy and the tap: as in a socket.
const PIPE: usize = 256 << 10;

/// A broker as one scenario sees it.
pub(crate) struct Seat {
    pub(crate) proxy: Proxy,
    pub(crate) bends: Bends,
    /// The scenario's own broker; none: one that all share, or one that has not started.
    pub(crate) own: Option<Broker>,
    upstream: Arc<Mutex<Option<SocketAddr>>>,
    pub(crate) wanted: Brokers,
}

/// The stage of one scenario.
pub(crate) struct Stage<'w> {
    pub(crate) world: &'w World,
    pub(crate) adapter: &'w Adapter,
    pub(crate) seats: BTreeMap<String, Seat>,
    /// Messages on the wire.
    pub(crate) wire: Log,
    pub(crate) variables: Variables,
    /// Texts that no log may have.
    pub(crate) secrets: Vec<String>,
}

/// Everything that scenarios can name before an adapter runs.
pub(crate) struct Setting {
    pub(crate) variables: Variables,
    secrets: Vec<String>,
}

impl Setting {
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

impl<'w> Stage<'w> {
    pub(crate) async fn seats(
        world: &World,
        scenario: &Scenario,
        setting: &mut Setting,
        inventory: &Arc<Inventory>,
        wire: &Log,
    ) -> Result<BTreeMap<String, Seat>, String> {
        let mut wanted = scenario.brokers.clone();
        for name in ["a", "b"] {
            wanted.entry(name.to_owned()).or_default();
        }
        let streams = Arc::new(AtomicU64::new(1));
        let mut seats = BTreeMap::new();
        for (name, wanted) in wanted {
            let own = scenario.brokers.contains_key(&name);
            let (upstream, bends) = (Arc::new(Mutex::new(None)), Bends::default());
            let tap = Tap {
                broker: name.clone(),
                log: wire.clone(),
                bends: bends.clone(),
                inventory: inventory.clone(),
                streams: streams.clone(),
            };
            let proxy = Proxy::start(dial(upstream.clone(), (!wanted.tls).then_some(tap)));
            let proxy = proxy.await.map_err(|error| error.to_string())?;
            let scheme = if wanted.tls { "https" } else { "http" };
            setting.variables.set(&name, format!("{scheme}://{}", proxy.address));
            let mut seat = Seat { proxy, bends, own: None, upstream, wanted };
            if own && !seat.wanted.later {
                seat.start(world, &name, &setting.variables).await?;
            } else if !own {
                let broker = if name == "a" { &world.a } else { &world.b };
                seat.serve(broker)?;
            }
            seats.insert(name, seat);
        }
        Ok(seats)
    }

    pub(crate) fn new(
        world: &'w World,
        adapter: &'w Adapter,
        setting: Setting,
        seats: BTreeMap<String, Seat>,
        wire: Log,
    ) -> Self {
        Self { world, adapter, seats, wire, variables: setting.variables, secrets: setting.secrets }
    }

    pub(crate) fn seat(&mut self, name: &str) -> Result<&mut Seat, String> {
        self.seats.get_mut(name).ok_or_else(|| format!("the scenario has no broker {name}"))
    }

    /// The ids of sessions, which are secrets too.
    pub(crate) fn sessions(&self) -> Vec<String> {
        let session = |seen: &serde_json::Value| {
            let id = seen.pointer("/message/welcome/session_id")?.as_str()?;
            Some(id.to_owned()).filter(|id| !id.is_empty())
        };
        self.wire.read(|seen| seen.iter().filter_map(session).collect())
    }
}

impl Seat {
    /// Starts the scenario's own broker of this name.
    pub(crate) async fn start(&mut self, world: &World, name: &str, variables: &Variables) -> Result<(), String> {
        let fill = |arg: &String| {
            let filled = variables.fill(&json!(arg))?;
            filled.as_str().map(str::to_owned).ok_or_else(|| format!("{arg} is no text"))
        };
        let args = self.wanted.args.iter().map(fill).collect::<Result<Vec<_>, String>>()?;
        let broker = world.broker(name, self.wanted.database.as_deref(), &args).await?;
        self.serve(&broker)?;
        self.own = Some(broker);
        Ok(())
    }

    fn serve(&self, broker: &Broker) -> Result<(), String> {
        let address = broker.host_and_port().parse().map_err(|_| format!("the address {}", broker.grpc))?;
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
