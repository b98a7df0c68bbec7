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
    GetSettingsRequest, access_service_client::AccessServiceClient, bulk_service_client::BulkServiceClient,
    job_service_client::JobServiceClient, schedule_service_client::ScheduleServiceClient,
    settings_service_client::SettingsServiceClient, store_service_client::StoreServiceClient,
    task_type_service_client::TaskTypeServiceClient, worker_service_client::WorkerServiceClient,
};
use parking_lot::Mutex;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};

use crate::{
    Connection, Error, Result,
    connection::{Credential, connection},
    endpoint::{self, Settings},
    producer::{Producer, ProducerOptions},
    telemetry::Address,
    worker::WorkerBuilder,
};

pub use builder::ClientBuilder;

/// Time in which a broker must name its database during `connect`. It does not apply to the broker in use, which has the
/// connect timeout. The database of a slower broker is checked before the broker's first use.
const CHECK_TIMEOUT: Duration = Duration::from_millis(500);

/// Response header with the id of the broker's database.
const DATABASE: &str = "howdah-database";

/// A connection to a broker, or to the first reachable one of several.
///
/// Clones are cheap and share the connection, which is reopened when it breaks. If the broker does not respond to a call,
/// the client switches to the next endpoint.
#[derive(Debug, Clone)]
pub struct Client {
    inner: Arc<Inner>,
    credential: Credential,
}

#[derive(Debug)]
struct Inner {
    settings: Settings,
    brokers: Vec<Broker>,
    /// Index of the broker in use.
    current: AtomicUsize,
    /// Database id and address of the first broker that responded. All brokers of a client must serve the same database, because
    /// jobs could otherwise wait in a database without workers.
    database: Mutex<Option<(String, String)>>,
}

#[derive(Debug)]
struct Broker {
    endpoint: Endpoint,
    address: Address,
    channel: Channel,
    /// Whether the client has checked that this broker serves the same database as the first broker that answered.
    is_checked: AtomicBool,
}

/// Defines a method for each generated client.
macro_rules! generated {
    ($($(#[$meta:meta])* $name:ident: $client:ident;)+) => {
        $(
            $(#[$meta])*
            pub fn $name(&self) -> $client<Connection> {
                let limit = self.inner.settings.max_message_bytes;
                $client::new(self.connection()).max_decoding_message_size(limit).max_encoding_message_size(limit)
            }
        )+
    };
}

impl Client {
    /// Connects to a broker: `host:port`, `http://host:port`, or `https://host:port` (checked against the system's root
    /// certificates). Several may be given, separated by commas.
    pub async fn connect(endpoint: impl Into<String>) -> Result<Self> {
        Self::builder().endpoint(endpoint).connect().await
    }

    /// Returns a builder, for settings such as a token, TLS and timeouts.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Builds a worker, which uses one stream to one broker, on a separate connection.
    pub fn worker(&self) -> WorkerBuilder {
        WorkerBuilder::new(self.clone())
    }

    /// Creates a producer that batches jobs, on a separate connection. Keep it and clone it: each call of this method opens another
    /// stream.
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

    generated! {
        /// The generated client for jobs, with this client's limit on message sizes. Its calls have no deadline, except that a
        /// response must begin within the request timeout plus one minute. Set a deadline with [`tonic::Request::set_timeout`].
        jobs: JobServiceClient;

        /// The generated client for workers, with this client's limit on message sizes.
        workers: WorkerServiceClient;

        /// The generated client for task types, with this client's limit on message sizes.
        task_types: TaskTypeServiceClient;

        /// The generated client for schedules, with this client's limit on message sizes.
        schedules: ScheduleServiceClient;

        /// The generated client for the cluster settings, with this client's limit on message sizes.
        cluster_settings: SettingsServiceClient;

        /// The generated client for tokens and the audit log, with this client's limit on message sizes.
        access: AccessServiceClient;

        /// The generated client for bulk operations, with this client's limit on message sizes.
        bulks: BulkServiceClient;

        /// The generated client for the stores of the broker, with this client's limit on message sizes.
        stores: StoreServiceClient;
    }

    /// A connection to the broker in use, for other generated clients, such as gRPC's health service.
    pub fn connection(&self) -> Connection {
        self.with_credential(self.inner.brokers[self.current()].channel.clone())
    }

    /// Returns a clone of the client that gives this reason for its changes. Brokers record the reason in the audit log. At
    /// most 500 bytes.
    #[must_use]
    pub fn with_reason(&self, reason: &str) -> Self {
        Self { inner: self.inner.clone(), credential: self.credential.clone().with_reason(reason) }
    }

    /// Returns a clone of the client for one of the stores that a broker serves. Its calls, jobs and workers use only that
    /// store. A worker of a client without a store gets jobs of all stores.
    pub fn in_store(&self, name: &str) -> Result<Self> {
        let credential = self.credential.clone().in_store(name)?;
        Ok(Self { inner: self.inner.clone(), credential })
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

    /// Index of the broker in use.
    pub(crate) fn current(&self) -> usize {
        self.inner.current.load(Ordering::Relaxed)
    }

    /// Makes the next broker the current one, unless another call has already switched away from broker `seen`.
    pub(crate) fn move_on_from(&self, seen: usize) {
        let next = (seen + 1) % self.inner.brokers.len();
        let order = Ordering::Relaxed;
        let _ = self.inner.current.compare_exchange(seen, next, order, order);
    }

    /// Opens a new connection to one of the brokers, for a stream. An existing connection is not reused, because it may be
    /// dead without keepalive having detected it.
    pub(crate) async fn dial(&self, broker: usize) -> Result<Connection> {
        let index = broker % self.inner.brokers.len();
        let connected = endpoint::connect(&self.inner.brokers[index].endpoint, &self.inner.settings).await;
        if connected.is_err() {
            // Unary calls use the same broker, so they switch to the next one as well.
            self.move_on_from(index);
        }
        let channel = connected?;
        self.check_database(index, &channel).await?;
        Ok(self.with_credential(channel))
    }

    fn with_credential(&self, channel: Channel) -> Connection {
        connection(channel, self.credential.clone())
    }

    /// Checks that the broker in use serves the same database as the broker that answered first. Runs before each call.
    pub(crate) async fn check_current(&self) -> Result<()> {
        let index = self.current();
        let channel = self.inner.brokers[index].channel.clone();
        self.check_database(index, &channel).await
    }

    /// Fails if this broker serves another database than the broker that responded first. A broker names its database in
    /// every response, even in a refusal.
    async fn check_database(&self, index: usize, channel: &Channel) -> Result<()> {
        let broker = &self.inner.brokers[index];
        if self.inner.brokers.len() == 1 || broker.is_checked.load(Ordering::Relaxed) {
            return Ok(());
        }
        let limit = self.inner.settings.connect_timeout;
        let mut client = SettingsServiceClient::new(self.with_credential(channel.clone()));
        let answer = timeout(limit, client.get_settings(GetSettingsRequest {})).await;
        let answer =
            answer.map_err(|_| Error::Deadline { operation: "asking the broker for its database", after: limit })?;
        let id = match &answer {
            Ok(response) => response.metadata().get(DATABASE).cloned(),
            Err(status) => status.metadata().get(DATABASE).cloned(),
        };
        match (id.as_ref().and_then(|id| id.to_str().ok()), answer) {
            (Some(id), _) => self.compare_database(&self.endpoint_name(index), id)?,
            (None, Err(status)) if Error::from(status.clone()).is_retried() => return Err(status.into()),
            // A response that does not name a database cannot be compared.
            (None, _) => {}
        }
        broker.is_checked.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn compare_database(&self, endpoint: &str, id: &str) -> Result<()> {
        let mut first = self.inner.database.lock();
        let (first_id, first_endpoint) = first.get_or_insert_with(|| (id.to_owned(), endpoint.to_owned()));
        if first_id == id {
            return Ok(());
        }
        let message = format!(
            "{endpoint} serves another database than {first_endpoint}; give only brokers of one database to a client"
        );
        Err(Error::refused("endpoint", message))
    }

    /// Compares the databases of the broker in use and of all brokers that respond within [`CHECK_TIMEOUT`]. The other brokers
    /// are checked before their first use.
    async fn check_all(&self) -> Result<()> {
        // The checks run one after another, so that each database is compared with the database of the first broker that
        // answers.
        for (index, broker) in self.inner.brokers.iter().enumerate() {
            let limit = if index == self.current() { self.inner.settings.connect_timeout } else { CHECK_TIMEOUT };
            match timeout(limit, self.check_database(index, &broker.channel)).await {
                Ok(Err(error @ Error::Invalid { .. })) => return Err(error),
                Ok(Ok(())) => {}
                // The broker gave no usable answer in time. If it is the broker in use, the client switches to the next one.
                _ => self.move_on_from(index),
            }
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
