//! `StoreService`: list stores, close and open them, and move task types between them.

use std::time::Duration;

use howdah_proto::{Rpc, v1};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, codegen::BoxStream};

use super::{
    actor::actor,
    authenticate::{caller, counted},
    render,
};
use crate::{
    error::Error,
    job::TaskTypeName,
    operate::stores::StoreView,
    stores::{ConfiguredStore, SharedStores, moving::Move},
};

/// Time limit for a store to report its state.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Service for operators. It works in the same way with one store and with several.
pub(super) struct StoreService {
    stores: SharedStores,
    /// Interrupts moves when cancelled; another broker may resume them.
    stopping: CancellationToken,
}

impl StoreService {
    pub(super) fn new(stores: SharedStores, stopping: CancellationToken) -> Self {
        Self { stores, stopping }
    }

    /// Store with this name; without a name, the only store.
    fn named(&self, name: &str) -> Result<&ConfiguredStore, Error> {
        match self.stores.all() {
            [only] if name.is_empty() => Ok(only),
            stores => stores.iter().find(|store| store.name() == name).ok_or_else(|| {
                let names: Vec<&str> = stores.iter().map(ConfiguredStore::name).collect();
                let names = names.join(", ");
                if name.is_empty() {
                    Error::invalid("store", format!("is empty; name one of {names}"))
                } else {
                    Error::NotFound(format!("there is no store {name:?}; this broker serves {names}"))
                }
            }),
        }
    }
}

/// State of a store; a store that does not answer in time is reported as unreachable.
async fn view(store: &ConfiguredStore) -> v1::Store {
    let looked = async {
        let broker = store.reachable()?.reachable()?;
        broker.operator.store_view().await
    };
    let seen: Option<StoreView> = tokio::time::timeout(TIMEOUT, looked).await.ok().and_then(Result::ok);
    render::store(store.name(), store.number(), seen)
}

howdah_proto::store_service!(StoreService);

impl StoreService {
    pub(super) async fn list_stores(
        &self,
        request: Request<v1::ListStoresRequest>,
    ) -> Result<Response<v1::ListStoresResponse>, Status> {
        let name = &request.get_ref().store;
        let stores: Vec<&ConfiguredStore> =
            if name.is_empty() { self.stores.all().iter().collect() } else { vec![self.named(name)?] };
        let stores = futures::future::join_all(stores.into_iter().map(view)).await;
        Ok(Response::new(v1::ListStoresResponse { stores }))
    }

    pub(super) async fn drain_store(
        &self,
        request: Request<v1::DrainStoreRequest>,
    ) -> Result<Response<v1::DrainStoreResponse>, Status> {
        let store = self.named(&request.get_ref().store)?;
        let broker = store.reachable()?.reachable()?;
        let by = actor(broker, &request, Rpc::DrainStore)?;
        broker.operator.close_store(store.name(), &by).await?;
        Ok(Response::new(v1::DrainStoreResponse { store: Some(view(store).await) }))
    }

    pub(super) async fn open_store(
        &self,
        request: Request<v1::OpenStoreRequest>,
    ) -> Result<Response<v1::OpenStoreResponse>, Status> {
        let store = self.named(&request.get_ref().store)?;
        let broker = store.reachable()?.reachable()?;
        let by = actor(broker, &request, Rpc::OpenStore)?;
        broker.operator.open_store(store.name(), &by).await?;
        Ok(Response::new(v1::OpenStoreResponse { store: Some(view(store).await) }))
    }

    pub(super) async fn move_type(
        &self,
        request: Request<v1::MoveTypeRequest>,
    ) -> Result<Response<BoxStream<v1::MoveTypeResponse>>, Status> {
        let caller = caller(&request)?;
        let by = actor(self.stores.main(), &request, Rpc::MoveType)?;
        let v1::MoveTypeRequest { task_type, to_store, from_store } = request.into_inner();
        let name = TaskTypeName::parse(&task_type).map_err(|problem| Error::invalid("task_type", problem))?;
        if to_store.is_empty() {
            return Err(Error::invalid("to_store", "is empty; name the store that the type goes to").into());
        }
        let moving = Move::check(&self.stores, name, (&from_store, &to_store), by).await?;
        let open = caller.open_stream()?;
        let (from, to) = moving.stores();
        let (progress, reports) = mpsc::channel(1);
        // The move ends when the client stops listening, between two steps, so that another broker may resume it immediately.
        tokio::spawn(moving.run(progress, self.stopping.clone()));
        let answers = futures::stream::unfold(reports, move |mut reports| {
            let (from, to) = (from.clone(), to.clone());
            async move {
                let report = reports.recv().await?;
                let answer = report.map(|report| render::move_progress(report, from, to)).map_err(Status::from);
                Some((answer, reports))
            }
        });
        Ok(Response::new(counted(answers, open)))
    }
}
