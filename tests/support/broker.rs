//! A broker in this process, and several on one database.

use std::ops::Deref;

use howdah_proto::v1::{
    access_service_client::AccessServiceClient, bulk_service_client::BulkServiceClient,
    job_service_client::JobServiceClient, schedule_service_client::ScheduleServiceClient,
    settings_service_client::SettingsServiceClient, store_service_client::StoreServiceClient,
    task_type_service_client::TaskTypeServiceClient, worker_service_client::WorkerServiceClient,
};
use howdah_server::{
    config::{Config, StoreConfig},
    serve::{self, Listeners, StartError},
};
use tokio::{sync::oneshot, task::JoinHandle};
use tonic::transport::{Channel, Endpoint};

use super::{
    PATIENCE, TestDatabase,
    clients::{self, Bearer, Connection},
    database, soon, stores,
};

/// What a broker offers, whichever process it runs in, with the database behind it.
#[derive(Clone)]
pub struct Service {
    /// Where it serves gRPC, with the scheme.
    pub grpc: String,
    /// Where it serves HTTP, with the scheme.
    pub http: String,
    /// What it stores in.
    pub database: TestDatabase,
    channel: Channel,
    bearer: Bearer,
}

impl Service {
    /// A broker at these addresses.
    pub fn at(grpc: String, http: String, database: TestDatabase) -> Self {
        // It connects with the first call, and again if the connection broke.
        let channel = Endpoint::from_shared(grpc.clone()).expect("address").connect_lazy();
        Self { grpc, http, database, channel, bearer: Bearer::default() }
    }

    /// A client of Rust, that waits for its connection as tests wait.
    pub async fn client(&self) -> howdah_client::Client {
        let client = howdah_client::Client::builder().endpoint(&self.grpc).connect_timeout(PATIENCE);
        soon("a connection", client.connect()).await.expect("connect")
    }

    /// The same broker, called with this token.
    pub fn with_token(&self, token: &str) -> Self {
        Self { bearer: Bearer(Some(token.to_owned())), ..self.clone() }
    }

    /// The credential that its calls have.
    pub fn bearer(&self) -> Bearer {
        self.bearer.clone()
    }

    fn connection(&self) -> Connection {
        Connection::new(self.channel.clone(), self.bearer.clone())
    }

    /// Where it serves gRPC, without the scheme.
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

    /// What `GET /metrics` answers.
    pub async fn metrics(&self) -> String {
        stores::own_metrics(&clients::metrics(&self.http, &self.bearer).await)
    }

    /// Runs statements in its database.
    pub async fn sql(&self, sql: &str) {
        self.database.sql(sql).await;
    }

    /// One number from its database.
    pub async fn count(&self, sql: &str) -> i64 {
        self.database.count(sql).await
    }

    /// Asks its database until it answers yes.
    pub async fn until(&self, what: &str, sql: &str) {
        self.database.until(what, sql).await;
    }
}

/// A broker that drains when it is stopped; a test that ends without that drops it hard.
pub struct TestBroker {
    service: Service,
    stop: Option<oneshot::Sender<()>>,
    run: JoinHandle<Result<(), StartError>>,
}

impl TestBroker {
    /// On a database of its own, with the defaults.
    pub async fn start() -> Self {
        Self::on(&database().await).await
    }

    /// On a database of its own, with a configuration of its own.
    pub async fn start_with(change: impl FnOnce(&mut Config)) -> Self {
        Self::on_with(&database().await, change).await
    }

    /// Two of them on one database.
    pub async fn pair() -> (Self, Self) {
        let a = Self::start().await;
        let b = a.another().await;
        (a, b)
    }

    /// Two of them on one database, with a configuration of their own.
    pub async fn pair_with(change: impl Fn(&mut Config)) -> (Self, Self) {
        let a = Self::start_with(&change).await;
        let b = a.another_with(&change).await;
        (a, b)
    }

    /// One more on the same database.
    pub async fn another(&self) -> Self {
        Self::on(&self.database).await
    }

    /// One more on the same database, with a configuration of its own.
    pub async fn another_with(&self, change: impl FnOnce(&mut Config)) -> Self {
        Self::on_with(&self.database, change).await
    }

    /// On a database that is there already.
    pub async fn on(database: &TestDatabase) -> Self {
        Self::on_with(database, |_| {}).await
    }

    /// On a database that is there already, with a configuration of its own.
    pub async fn on_with(database: &TestDatabase, change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::new(&database.url);
        config.listen = ([127, 0, 0, 1], 0).into();
        config.http = ([127, 0, 0, 1], 0).into();
        change(&mut config);
        stores::second(&mut config).await;
        let listeners = Listeners::bind(&config).await.expect("bind");
        let (stop, stopped) = oneshot::channel::<()>();
        let (is_ready, ready) = oneshot::channel();
        let run = tokio::spawn(serve::run(
            config,
            listeners,
            move |ready| {
                let _ = is_ready.send(*ready);
            },
            async move { drop(stopped.await) },
        ));
        let ready = soon("a ready broker", ready).await;
        let Ok(ready) = ready else { panic!("the broker did not start: {:?}", run.await) };
        let (grpc, http) = (format!("http://{}", ready.grpc), format!("http://{}", ready.http));
        Self { service: Service::at(grpc, http, database.clone()), stop: Some(stop), run }
    }

    /// One broker on several stores, by their names. `service.database` is that of the first.
    pub async fn on_stores(stores: &[(&str, &TestDatabase)], change: impl FnOnce(&mut Config)) -> Self {
        let (_, first) = stores[0];
        let of = |(name, database): &(&str, &TestDatabase)| {
            StoreConfig::of(&Config::new(&database.url), (*name).to_owned(), None)
        };
        let configured = stores.iter().map(of).collect();
        Self::on_with(first, move |config| {
            config.stores = configured;
            change(config);
        })
        .await
    }

    /// Drains and ends.
    pub async fn stop(mut self) {
        drop(self.stop.take());
        soon("the end of the broker", &mut self.run).await.expect("no panic").expect("a good end");
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
