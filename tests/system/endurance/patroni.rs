//! A Patroni cluster of three nodes and etcd on loopback addresses, otherwise configured as in production.

mod install; // Python, etcd
mod node; // Patroni and its Postgres

use std::{collections::BTreeMap, net::SocketAddr, process::Stdio, time::Duration};

use rustix::process::Signal;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    process::Child,
    time::{sleep, timeout},
};

use self::node::{Node, Setup, as_user};
use super::{load::Records, record::diary};
use crate::support::{open_directory, unused_address};

/// Ways in which a primary fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    /// `patronictl switchover`.
    Switchover,
    /// `kill -9` of the primary's Postgres.
    PostgresKilled,
    /// `kill -9` of the primary's Postgres and Patroni, as if the machine were lost.
    NodeKilled,
    /// SIGSTOP of the primary's Patroni. Without a watchdog, its Postgres continues as if it were the primary.
    PatroniStopped,
    /// SIGSTOP of the primary's Patroni and Postgres: the machine does not respond, and its connections stay open.
    NodeStopped,
}

impl Fault {
    pub(super) const ALL: [Self; 5] =
        [Self::Switchover, Self::PostgresKilled, Self::NodeKilled, Self::PatroniStopped, Self::NodeStopped];
}

pub(super) struct Patroni {
    nodes: Vec<Node>,
    setup: Setup,
    _etcd: Child,
    // Must be the last field, so that the processes end before the directory is deleted. The directory is kept if the test
    // failed.
    _records: Records,
}

impl Patroni {
    /// Starts three nodes with a database `app`: a primary, a synchronous standby and another standby.
    pub(super) async fn start() -> Self {
        let records = Records::new(open_directory());
        let (user, directory) = (install::user(), records.path().join("cluster"));
        install::directory_of(&directory, user);
        let [client, peer] = [(); 2].map(|()| format!("http://{}", unused_address()));
        let data = directory.join("etcd");
        install::directory_of(&data, user);
        let mut etcd = as_user(user, &install::etcd());
        etcd.args(["--name", "howdah", "--data-dir"]).arg(data);
        etcd.args(["--listen-client-urls", &client, "--advertise-client-urls", &client, "--listen-peer-urls", &peer]);
        etcd.args(["--initial-advertise-peer-urls", &peer, "--initial-cluster", &format!("howdah={peer}")]);
        let etcd = etcd.stdout(Stdio::null()).stderr(diary(&directory, "etcd")).spawn().expect("start etcd");
        let address = |text: &str| text.trim_start_matches("http://").parse::<SocketAddr>().expect("an address");
        let python = install::python();
        let setup = Setup { python, etcd: address(&client), directory, user };
        let node = |n: usize| Node::prepare(&setup, &format!("node-{n}"), [(); 2].map(|()| unused_address()));
        let nodes: Vec<Node> = (1..=3).map(node).collect();
        let mut cluster = Self { nodes, setup, _etcd: etcd, _records: records };
        for node in &mut cluster.nodes {
            node.start(&cluster.setup);
        }
        let primary = cluster.healthy().await;
        let admin = cluster.nodes[primary].connect("postgres").await.expect("connect");
        admin.batch_execute("CREATE ROLE howdah LOGIN").await.expect("a role");
        admin.batch_execute("CREATE DATABASE app OWNER howdah").await.expect("a database");
        cluster
    }

    /// Returns the database URL for brokers, which names all nodes.
    pub(super) fn url(&self) -> String {
        let hosts: Vec<String> = self.nodes.iter().map(|node| node.postgres.to_string()).collect();
        format!("postgres://howdah@{}/app?target_session_attrs=read-write", hosts.join(","))
    }

    pub(super) fn node(&self, n: usize) -> &Node {
        &self.nodes[n]
    }

    /// Waits until there is a primary, a synchronous standby and a third streaming node. Returns the number of the primary.
    pub(super) async fn healthy(&self) -> usize {
        let healthy = async {
            loop {
                let roles = self.roles().await;
                if let Some(primary) = self.primary_of(&roles) {
                    return primary;
                }
                sleep(Duration::from_millis(200)).await;
            }
        };
        match timeout(Duration::from_secs(120), healthy).await {
            Ok(primary) => primary,
            Err(_) => panic!("the cluster does not become healthy: {:?}", self.roles().await),
        }
    }

    fn primary_of(&self, roles: &BTreeMap<String, (String, String)>) -> Option<usize> {
        let is = |role: &str, state: &str| roles.values().filter(|(r, s)| r == role && s == state).count();
        let whole =
            is("leader", "running") == 1 && is("sync_standby", "streaming") == 1 && is("replica", "streaming") == 1;
        let named = |name: &str| roles.get(name).is_some_and(|(role, _)| role == "leader");
        self.nodes.iter().position(|node| whole && named(&node.name))
    }

    /// Returns role and state of each node, as etcd knows them. Asks the nodes in turn until one responds.
    async fn roles(&self) -> BTreeMap<String, (String, String)> {
        for node in &self.nodes {
            let answer = http_get(&format!("http://{}/cluster", node.api)).await;
            let Some(cluster) = answer.and_then(|json| serde_json::from_str::<serde_json::Value>(&json).ok()) else {
                continue;
            };
            let text = |member: &serde_json::Value, key: &str| member[key].as_str().unwrap_or_default().to_owned();
            let members = cluster["members"].as_array().cloned().unwrap_or_default();
            let role =
                |member: &serde_json::Value| (text(member, "name"), (text(member, "role"), text(member, "state")));
            return members.iter().map(role).collect();
        }
        BTreeMap::new()
    }

    /// Applies the fault to the primary.
    pub(super) async fn strike(&mut self, primary: usize, fault: Fault) {
        match fault {
            Fault::Switchover => self.switchover(primary).await,
            Fault::PostgresKilled => self.nodes[primary].signal_postgres(Signal::KILL),
            Fault::NodeKilled => {
                self.nodes[primary].kill_patroni().await;
                self.nodes[primary].signal_postgres(Signal::KILL);
            }
            Fault::PatroniStopped => self.nodes[primary].signal_patroni(Signal::STOP),
            Fault::NodeStopped => {
                self.nodes[primary].signal_patroni(Signal::STOP);
                self.nodes[primary].signal_postgres(Signal::STOP);
            }
        }
    }

    /// Ends the fault, so that the former primary can return as a standby.
    pub(super) fn mend(&mut self, former: usize, fault: Fault) {
        match fault {
            Fault::Switchover | Fault::PostgresKilled => {}
            Fault::NodeKilled => self.nodes[former].start(&self.setup),
            Fault::PatroniStopped => self.nodes[former].signal_patroni(Signal::CONT),
            Fault::NodeStopped => {
                self.nodes[former].signal_postgres(Signal::CONT);
                self.nodes[former].signal_patroni(Signal::CONT);
            }
        }
    }

    /// Starts `patronictl` with a switchover to the synchronous standby, the only standby that certainly has all commits.
    async fn switchover(&self, primary: usize) {
        let roles = self.roles().await;
        let (candidate, _) = roles.iter().find(|(_, (role, _))| role == "sync_standby").expect("a synchronous standby");
        let primary = &self.nodes[primary].name;
        let mut command = as_user(self.setup.user, &self.setup.python);
        let program = "from patroni.ctl import ctl; ctl()";
        command.args(["-c", program, "-c"]).arg(Node::configuration(&self.setup, primary));
        command.args(["switchover", "--primary", primary, "--candidate", candidate, "--force"]);
        let diary = diary(&self.setup.directory, "patronictl");
        let mut child = command.stdout(diary.try_clone().expect("a diary")).stderr(diary).spawn().expect("patronictl");
        tokio::spawn(async move { child.wait().await });
    }

    /// Waits until a node other than `former` is the primary. Returns its index within about 20 ms of the change.
    pub(super) async fn next_primary(&self, former: usize) -> usize {
        let others = (0..self.nodes.len()).filter(|n| *n != former);
        let became = others.map(|n| {
            Box::pin(async move {
                while !self.nodes[n].is_primary().await {
                    sleep(Duration::from_millis(20)).await;
                }
                n
            })
        });
        let first = futures::future::select_all(became);
        let (next, ..) = timeout(Duration::from_secs(90), first).await.expect("another primary within 90 s");
        next
    }
}

/// Returns the body of a successful HTTP response; `None` on any error.
pub(super) async fn http_get(url: &str) -> Option<String> {
    let (address, path) = url.strip_prefix("http://")?.split_once('/')?;
    let getting = async {
        let mut stream = TcpStream::connect(address).await.ok()?;
        let request = format!("GET /{path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        (head.split(' ').nth(1)? == "200").then(|| body.to_owned())
    };
    timeout(Duration::from_secs(2), getting).await.ok()?
}
