//! The client: connections to one or more brokers, shared by its clones.

mod builder;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use howdah_proto::v1::{
    access_service_client::AccessServiceClient, bulk_service_client::BulkServiceClient,
    job_service_client::JobServiceClient, schedule_service_client::ScheduleServiceClient,
    settings_service_client::SettingsServiceClient, store_service_client::StoreServiceClient,
    task_type_service_client::TaskTypeServiceClient, worker_service_client::WorkerServiceClient,
};
use tonic::{
    metadata::{Ascii, MetadataValue},
    transport::{Channel, Endpoint},
};

use crate::{
    Connection, Error, Result,
    connection::connection,
    credential,
    database::Database,
    endpoint::{self, Settings},
    producer::{Producer, ProducerOptions},
    telemetry::Address,
    worker::WorkerBuilder,
};

pub use builder::ClientBuilder;

/// How long a client that connects waits for a broker that it will perhaps never use. The one that it uses has more time: it is
/// what the others are compared with.
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

    /// The generated client for the stores of the broker, message limits set.
    pub fn stores(&self) -> StoreServiceClient<Connection> {
        let limit = self.inner.settings.max_message_bytes;
        StoreServiceClient::new(self.channel()).max_decoding_message_size(limit).max_encoding_message_size(limit)
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
        connection(channel, credential.with_store(self.store.clone()))
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

    /// Looks at the broker in use, and at all others that answer soon; the rest are looked at before they are used.
    async fn check_all(&self) -> Result<()> {
        let current = self.current();
        let checks = self.inner.brokers.iter().enumerate().map(|(index, broker)| async move {
            let check = self.check_database(index, &broker.channel);
            let patience = if index == current { self.inner.settings.connect_timeout } else { SOON };
            match tokio::time::timeout(patience, check).await {
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
