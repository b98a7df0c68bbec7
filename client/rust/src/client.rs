//! The client: connections to one or more brokers, shared by its clones.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use howdah_proto::v1::{
    access_service_client::AccessServiceClient, bulk_service_client::BulkServiceClient,
    job_service_client::JobServiceClient, schedule_service_client::ScheduleServiceClient,
    settings_service_client::SettingsServiceClient, task_type_service_client::TaskTypeServiceClient,
    worker_service_client::WorkerServiceClient,
};
use tonic::{
    metadata::{Ascii, MetadataValue},
    transport::{Channel, Endpoint},
};

use crate::{
    Connection, Error, Result,
    credential::{self, Credential},
    database::Database,
    endpoint::{self, Settings},
    producer::{Producer, ProducerOptions},
    telemetry::Address,
    worker::WorkerBuilder,
};

/// How long a client that connects waits for a broker that it will perhaps never use.
const SOON: Duration = Duration::from_millis(500);

/// A connection to a broker, or to the first of several that can be reached.
///
/// Clones are cheap and share the connection, which is reopened when it breaks. If the broker does not answer a call,
/// the next endpoint is used.
#[derive(Debug, Clone)]
pub struct Client {
    inner: Arc<Inner>,
    reason: Option<MetadataValue<Ascii>>,
    store: Option<MetadataValue<Ascii>>,
}

#[derive(Debug)]
struct Inner {
    settings: Settings,
    brokers: Vec<Broker>,
    /// The broker that calls use now.
    current: AtomicUsize,
    database: Database,
}

#[derive(Debug)]
struct Broker {
    endpoint: Endpoint,
    address: Address,
    channel: Channel,
    /// Its database was compared with that of the others.
    is_checked: AtomicBool,
}

impl Client {
    /// Connects to a broker: `host:port`, `http://host:port`, or `https://host:port` (checked against the system's root
    /// certificates). Several may be given, separated by commas.
    pub async fn connect(endpoint: impl Into<String>) -> Result<Self> {
        Self::builder().endpoint(endpoint).connect().await
    }

    /// A builder, for more settings than an address.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Builds a worker. It uses one stream to one broker, on a connection of its own.
    pub fn worker(&self) -> WorkerBuilder {
        WorkerBuilder::new(self.clone())
    }

    /// A producer that gathers jobs into batches, on a connection of its own. Keep it and clone it: each call of this
    /// method opens another stream.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime.
    pub fn producer(&self) -> Producer {
        self.producer_with(ProducerOptions::default())
    }

    /// A producer with other limits.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime.
    pub fn producer_with(&self, options: ProducerOptions) -> Producer {
        Producer::spawn(self.clone(), options)
    }

    /// The generated client for jobs, with message limits set. Its calls have no deadline except a safeguard of a
    /// minute and a half; set one with [`tonic::Request::set_timeout`].
    pub fn jobs(&self) -> JobServiceClient<Connection> {
        self.jobs_on(self.channel())
    }

    /// The generated client for workers, with message limits set.
    pub fn workers(&self) -> WorkerServiceClient<Connection> {
        self.workers_on(self.channel())
    }

    /// The generated client for task types, with message limits set.
    pub fn task_types(&self) -> TaskTypeServiceClient<Connection> {
        let limit = self.inner.settings.max_message_bytes;
        TaskTypeServiceClient::new(self.channel()).max_decoding_message_size(limit).max_encoding_message_size(limit)
    }

    /// The generated client for schedules, with message limits set.
    pub fn schedules(&self) -> ScheduleServiceClient<Connection> {
        let limit = self.inner.settings.max_message_bytes;
        ScheduleServiceClient::new(self.channel()).max_decoding_message_size(limit).max_encoding_message_size(limit)
    }

    /// The generated client for the settings of the cluster, message limits set.
    pub fn cluster_settings(&self) -> SettingsServiceClient<Connection> {
        let limit = self.inner.settings.max_message_bytes;
        SettingsServiceClient::new(self.channel()).max_decoding_message_size(limit).max_encoding_message_size(limit)
    }

    /// The generated client for tokens, message limits set.
    pub fn access(&self) -> AccessServiceClient<Connection> {
        let limit = self.inner.settings.max_message_bytes;
        AccessServiceClient::new(self.channel()).max_decoding_message_size(limit).max_encoding_message_size(limit)
    }

    /// The generated client for bulk operations, message limits set.
    pub fn bulks(&self) -> BulkServiceClient<Connection> {
        let limit = self.inner.settings.max_message_bytes;
        BulkServiceClient::new(self.channel()).max_decoding_message_size(limit).max_encoding_message_size(limit)
    }

    /// A connection to the broker that calls use now, for other generated clients, such as that of gRPC's health service.
    pub fn connection(&self) -> Connection {
        self.channel()
    }

    /// The same client, which gives this reason for what it changes. Brokers record it in their audit; at most 500 bytes.
    #[must_use]
    pub fn with_reason(&self, reason: &str) -> Self {
        Self { reason: credential::reason(reason), ..self.clone() }
    }

    /// The same client for one store of a broker that serves several: its calls are about that store alone, and its jobs go
    /// there. Workers get jobs from all stores, whatever this is.
    pub fn in_store(&self, name: &str) -> Result<Self> {
        let store =
            name.parse().map_err(|_| Error::invalid("store", format!("{name:?} is not the name of a store")))?;
        Ok(Self { store: Some(store), ..self.clone() })
    }

    /// The endpoints, in the order given.
    pub fn endpoints(&self) -> impl Iterator<Item = String> {
        self.inner.brokers.iter().map(|broker| broker.endpoint.uri().to_string())
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    pub(crate) fn broker_count(&self) -> usize {
        self.inner.brokers.len()
    }

    /// The broker that calls use now.
    pub(crate) fn current(&self) -> usize {
        self.inner.current.load(Ordering::Relaxed)
    }

    /// Calls use the broker after `seen` from now on, unless another call has moved on already.
    pub(crate) fn move_on_from(&self, seen: usize) {
        let next = (seen + 1) % self.inner.brokers.len();
        let order = Ordering::Relaxed;
        let _ = self.inner.current.compare_exchange(seen, next, order, order);
    }

    fn channel(&self) -> Connection {
        self.with_credential(self.inner.brokers[self.current()].channel.clone())
    }

    pub(crate) fn jobs_on(&self, channel: Connection) -> JobServiceClient<Connection> {
        let limit = self.inner.settings.max_message_bytes;
        JobServiceClient::new(channel).max_decoding_message_size(limit).max_encoding_message_size(limit)
    }

    pub(crate) fn workers_on(&self, channel: Connection) -> WorkerServiceClient<Connection> {
        let limit = self.inner.settings.max_message_bytes;
        WorkerServiceClient::new(channel).max_decoding_message_size(limit).max_encoding_message_size(limit)
    }

    /// Opens a new connection to one of the brokers. A stream that broke does not use the old one, whose death may only
    /// be noticed after the keepalive's time.
    pub(crate) async fn dial(&self, broker: usize) -> Result<Connection> {
        let index = broker % self.inner.brokers.len();
        let connected = endpoint::connect(&self.inner.brokers[index].endpoint, &self.inner.settings).await;
        if connected.is_err() {
            // So single calls and the next stream use this broker too.
            self.move_on_from(index);
        }
        let channel = connected?;
        self.check_database(index, &channel).await?;
        Ok(self.with_credential(channel))
    }

    fn with_credential(&self, channel: Channel) -> Connection {
        let credential = self.inner.settings.credential.clone().with_reason(self.reason.clone());
        Connection::new(channel, credential.with_store(self.store.clone()))
    }

    /// Before anything is sent to another broker than the first: whether it serves the same database.
    pub(crate) async fn check_current(&self) -> Result<()> {
        let index = self.current();
        let channel = self.inner.brokers[index].channel.clone();
        self.check_database(index, &channel).await
    }

    async fn check_database(&self, index: usize, channel: &Channel) -> Result<()> {
        let broker = &self.inner.brokers[index];
        if self.inner.brokers.len() == 1 || broker.is_checked.load(Ordering::Relaxed) {
            return Ok(());
        }
        let connection = self.with_credential(channel.clone());
        self.inner.database.check(&self.endpoint_name(index), connection, &self.inner.settings).await?;
        broker.is_checked.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Looks at all brokers that answer soon; the others are looked at before they are used.
    async fn check_all(&self) -> Result<()> {
        let checks = self.inner.brokers.iter().enumerate().map(|(index, broker)| async move {
            let check = self.check_database(index, &broker.channel);
            match tokio::time::timeout(SOON, check).await {
                Ok(Err(error @ Error::Invalid { .. })) => Err(error),
                _ => Ok(()),
            }
        });
        // One after the other, so that the first is the one that the others are compared with.
        for check in checks {
            check.await?;
        }
        Ok(())
    }

    pub(crate) fn address(&self, broker: usize) -> &Address {
        &self.inner.brokers[broker % self.inner.brokers.len()].address
    }

    pub(crate) fn endpoint_name(&self, broker: usize) -> String {
        let broker = &self.inner.brokers[broker % self.inner.brokers.len()];
        broker.endpoint.uri().to_string().trim_end_matches('/').to_owned()
    }
}

/// Settings of a [`Client`].
#[derive(Debug, Clone, Default)]
#[must_use = "a builder does nothing until it connects"]
pub struct ClientBuilder {
    addresses: Vec<String>,
    pub(crate) settings: Settings,
}

impl ClientBuilder {
    /// Adds a broker, or several separated by commas. The first one that can be reached is used. Workers and producers
    /// go on to the next when theirs goes away. Default: `http://127.0.0.1:7432`.
    pub fn endpoint(mut self, endpoint: impl Into<String>) -> Self {
        let given = endpoint.into();
        self.addresses.extend(given.split(',').map(str::to_owned));
        self
    }

    /// Adds several brokers.
    pub fn endpoints<E: Into<String>>(self, endpoints: impl IntoIterator<Item = E>) -> Self {
        endpoints.into_iter().fold(self, Self::endpoint)
    }

    /// The longest time of one attempt to connect, TLS included. Default: 5 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connect_timeout = timeout;
        self
    }

    /// The longest time of a call, its retries included. Default: 30 s.
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.settings.request_timeout = timeout;
        self
    }

    /// The largest message sent or accepted, in bytes. Default: 16 MiB.
    pub fn max_message_bytes(mut self, bytes: usize) -> Self {
        self.settings.max_message_bytes = bytes;
        self
    }

    /// Certificates for `https://` endpoints, instead of the system's authorities.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: crate::Tls) -> Self {
        self.settings.tls = Some(tls);
        self
    }

    /// The token that goes with each call, for a broker that asks for one (`howdah token create`). Brokers on other machines
    /// need `https://`: over `http://` everybody on the way could read it (see [`insecure_token`](Self::insecure_token)).
    pub fn token(mut self, token: &str) -> Result<Self> {
        self.settings.credential = Credential::token(token)?;
        Ok(self)
    }

    /// A file with the token. It is read again after a while, so that a new token can be put there.
    pub fn token_file(mut self, path: impl Into<PathBuf>) -> Result<Self> {
        self.settings.credential = Credential::token_file(path.into())?;
        Ok(self)
    }

    /// Sends the token over `http://` to brokers on other machines too, where everybody on the way can read it. Only for
    /// networks that encrypt by themselves, such as a VPN or a service mesh with mutual TLS.
    pub fn insecure_token(mut self) -> Self {
        self.settings.insecure_token = true;
        self
    }

    /// Does something around each enqueue of this client, and around each handler of its workers.
    pub fn middleware(mut self, middleware: impl crate::Middleware) -> Self {
        self.settings.middleware.add(middleware);
        self
    }

    /// The user agent that the broker sees.
    pub fn user_agent(mut self, name: impl Into<String>) -> Self {
        self.settings.user_agent = Some(name.into());
        self
    }

    /// Connects to the first endpoint that can be reached.
    pub async fn connect(self) -> Result<Client> {
        let endpoints = self.parse()?;
        let mut last = Error::invalid("endpoint", "no endpoint was given");
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

    /// A client that records what is enqueued, and has no broker.
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
                let address = Address::of(endpoint.uri());
                Broker { endpoint, address, channel, is_checked: AtomicBool::new(false) }
            })
            .collect();
        Client {
            inner: Arc::new(Inner {
                settings: self.settings,
                brokers,
                current: AtomicUsize::new(current),
                database: Database::default(),
            }),
            reason: None,
            store: None,
        }
    }
}
