//! A broker in the test process, and several brokers on one database.

use std::ops::Deref;

use howdah_core::config::{Config, StoreConfig};
use howdah_proto::v1::{
    access_service_client::AccessServiceClient, bulk_service_client::BulkServiceClient,
    job_service_client::JobServiceClient, schedule_service_client::ScheduleServiceClient,
    settings_service_client::SettingsServiceClient, store_service_client::StoreServiceClient,
    task_type_service_client::TaskTypeServiceClient, worker_service_client::WorkerServiceClient,
};
use howdah_server::serve::{self, Listeners, Reload, StartError};
use tokio::{sync::oneshot, task::JoinHandle};
use tonic::transport::{Channel, Endpoint};

use super::{
    PATIENCE, TestDatabase,
    clients::{self, Bearer, Connection},
    database, stores, with_timeout,
};

/// The endpoints of a broker in any process, with its database.
#[derive(Clone)]
pub struct Service {
    /// URL of the gRPC listener.
    pub grpc: String,
    /// URL of the HTTP listener.
    pub http: String,
    /// Database of the broker's only or first store.
    pub database: TestDatabase,
    channel: Channel,
    bearer: Bearer,
}

impl Service {
    /// Returns a handle for the broker at these URLs.
    pub fn at(grpc: String, http: String, database: TestDatabase) -> Self {
        // Connects at the first call and reconnects after a failure.
        let channel = Endpoint::from_shared(grpc.clone()).expect("address").connect_lazy();
        Self { grpc, http, database, channel, bearer: Bearer::default() }
    }

    /// Returns a Rust client that waits for its connection as long as tests wait.
    pub async fn client(&self) -> howdah_client::Client {
        let client = howdah_client::Client::builder().endpoint(&self.grpc).connect_timeout(PATIENCE);
        with_timeout("a connection", client.connect()).await.expect("connect")
    }

    /// Returns a handle for the same broker whose calls send this token.
    pub fn with_token(&self, token: &str) -> Self {
        Self { bearer: Bearer(Some(token.to_owned())), ..self.clone() }
    }

    /// The credential that calls through this handle send.
    pub fn bearer(&self) -> Bearer {
        self.bearer.clone()
    }

    fn connection(&self) -> Connection {
        Connection::new(self.channel.clone(), self.bearer.clone())
    }

    /// Address of the broker's gRPC listener, without the scheme.
    pub fn address(&self) -> &str {
        self.grpc.trim_start_matches("http://")
    }

    pub fn jobs(&self) -> JobServiceClient<Connection> {
        JobServiceClient::new(self.connection()).max_decoding_message_size(64 << 20)
    }

    pub fn workers(&self) -> WorkerServiceClient<Connection> {
        WorkerServiceClient::new(self.connection()).max_decoding_message_size(64 << 20)
    }

    pub fn task_types(&self) -> TaskTypeServiceClient<Connection> {
        TaskTypeServiceClient::new(self.connection())
    }

    pub fn schedules(&self) -> ScheduleServiceClient<Connection> {
        ScheduleServiceClient::new(self.connection())
    }

    pub fn settings(&self) -> SettingsServiceClient<Connection> {
        SettingsServiceClient::new(self.connection())
    }

    pub fn access(&self) -> AccessServiceClient<Connection> {
        AccessServiceClient::new(self.connection())
    }

    pub fn bulks(&self) -> BulkServiceClient<Connection> {
        BulkServiceClient::new(self.connection())
    }

    pub fn stores(&self) -> StoreServiceClient<Connection> {
        StoreServiceClient::new(self.connection())
    }

    /// Returns the response of `GET /metrics`.
    pub async fn metrics(&self) -> String {
        stores::own_metrics(&clients::metrics(&self.http, &self.bearer).await)
    }

    /// Runs SQL statements in the broker's database.
    pub async fn sql(&self, sql: &str) {
        self.database.sql(sql).await;
    }

    /// Queries one number from the broker's database.
    pub async fn count(&self, sql: &str) -> i64 {
        self.database.count(sql).await
    }

    /// Polls the broker's database until the query returns true.
    pub async fn until(&self, what: &str, sql: &str) {
        self.database.until(what, sql).await;
    }
}

/// A broker in the test process, which drains on `stop`. Dropping the value aborts the broker without a drain.
pub struct TestBroker {
    service: Service,
    stop: Option<oneshot::Sender<()>>,
    run: JoinHandle<Result<(), StartError>>,
}

impl TestBroker {
    /// Starts a broker with default configuration on a new database.
    pub async fn start() -> Self {
        Self::on(&database().await).await
    }

    /// Starts a broker on a new database after `change` adjusted its configuration.
    pub async fn start_with(change: impl FnOnce(&mut Config)) -> Self {
        Self::on_with(&database().await, change).await
    }

    /// Starts two brokers on one new database.
    pub async fn pair() -> (Self, Self) {
        let a = Self::start().await;
        let b = a.another().await;
        (a, b)
    }

    /// Starts two brokers on one new database, both configured by `change`.
    pub async fn pair_with(change: impl Fn(&mut Config)) -> (Self, Self) {
        let a = Self::start_with(&change).await;
        let b = a.another_with(&change).await;
        (a, b)
    }

    /// Starts another broker on the same database.
    pub async fn another(&self) -> Self {
        Self::on(&self.database).await
    }

    /// Starts another broker on the same database, configured by `change`.
    pub async fn another_with(&self, change: impl FnOnce(&mut Config)) -> Self {
        Self::on_with(&self.database, change).await
    }

    /// Starts a broker on an existing database.
    pub async fn on(database: &TestDatabase) -> Self {
        Self::on_with(database, |_| {}).await
    }

    /// Starts a broker on an existing database, configured by `change`.
    pub async fn on_with(database: &TestDatabase, change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::new(&database.url);
        config.listen = ([127, 0, 0, 1], 0).into();
        config.http = ([127, 0, 0, 1], 0).into();
        // Postgres runs on this machine, so the broker trusts its clock at once, unless a test changes this.
        config.clock_settling = std::time::Duration::ZERO;
        // Test workers answer a `Ping` only while the test reads their stream, so the broker must not count them as
        // lost.
        config.liveness = super::HOUR;
        change(&mut config);
        stores::second(&mut config).await;
        let listeners = Listeners::bind(&config).await.expect("bind");
        let (stop, stopped) = oneshot::channel::<()>();
        let (is_ready, ready) = oneshot::channel();
        let reload = Reload::fixed(&config);
        let run = tokio::spawn(serve::run(
            config,
            listeners,
            reload,
            move |ready| {
                let _ = is_ready.send(*ready);
            },
            async move { drop(stopped.await) },
        ));
        let ready = with_timeout("a ready broker", ready).await;
        let Ok(ready) = ready else { panic!("the broker did not start: {:?}", run.await) };
        let (grpc, http) = (format!("http://{}", ready.grpc), format!("http://{}", ready.http));
        Self { service: Service::at(grpc, http, database.clone()), stop: Some(stop), run }
    }

    /// Starts one broker on several named stores. `service.database` is the database of the first store.
    pub async fn on_stores(stores: &[(&str, &TestDatabase)], change: impl FnOnce(&mut Config)) -> Self {
        let (_, first) = stores[0];
        let store_config = |(name, database): &(&str, &TestDatabase)| {
            StoreConfig::new(&Config::new(&database.url), (*name).to_owned(), None)
        };
        let configured = stores.iter().map(store_config).collect();
        Self::on_with(first, move |config| {
            config.stores = configured;
            change(config);
        })
        .await
    }

    /// Drains and stops the broker.
    pub async fn stop(mut self) {
        drop(self.stop.take());
        with_timeout("the end of the broker", &mut self.run)
            .await
            .expect("no panic")
            .expect("the broker stopped without an error");
    }
}

impl Deref for TestBroker {
    type Target = Service;

    fn deref(&self) -> &Service {
        &self.service
    }
}

impl Drop for TestBroker {
    fn drop(&mut self) {
        self.run.abort();
    }
}
