//! `StoreService`: list the stores of this broker, close and open them.

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
    stores::{Member, SharedFleet, moving::Move},
};

/// How long a store may take to say how it is.
const PATIENCE: Duration = Duration::from_secs(5);

/// The service of operators. It is the same with one store and with several.
pub(super) struct StoreService {
    fleet: SharedFleet,
    /// Ends moves when cancelled: they rest.
    stopping: CancellationToken,
}

impl StoreService {
    pub(super) fn new(fleet: SharedFleet, stopping: CancellationToken) -> Self {
        Self { fleet, stopping }
    }

    /// The store of this name; without a name, the only one.
    fn named(&self, name: &str) -> Result<&Member, Error> {
        match self.fleet.members() {
            [only] if name.is_empty() => Ok(only),
            members => members.iter().find(|member| member.name() == name).ok_or_else(|| {
                let names: Vec<&str> = members.iter().map(Member::name).collect();
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

/// How a store is; one that does not answer in time is away.
async fn view(member: &Member) -> v1::Store {
    let looked = async {
        let broker = member.reachable()?.reachable()?;
        broker.operator.store_view().await
    };
    let seen: Option<StoreView> = tokio::time::timeout(PATIENCE, looked).await.ok().and_then(Result::ok);
    render::store(member.name(), member.number(), seen)
}

howdah_proto::store_service!(StoreService);

impl StoreService {
    pub(super) async fn list_stores(
        &self,
        request: Request<v1::ListStoresRequest>,
    ) -> Result<Response<v1::ListStoresResponse>, Status> {
        let name = &request.get_ref().store;
        let members: Vec<&Member> =
            if name.is_empty() { self.fleet.members().iter().collect() } else { vec![self.named(name)?] };
        let stores = futures::future::join_all(members.into_iter().map(view)).await;
        Ok(Response::new(v1::ListStoresResponse { stores }))
    }

    pub(super) async fn drain_store(
        &self,
        request: Request<v1::DrainStoreRequest>,
    ) -> Result<Response<v1::DrainStoreResponse>, Status> {
        let member = self.named(&request.get_ref().store)?;
        let broker = member.reachable()?.reachable()?;
        let by = actor(broker, &request, Rpc::DrainStore)?;
        broker.operator.close_store(member.name(), &by).await?;
        Ok(Response::new(v1::DrainStoreResponse { store: Some(view(member).await) }))
    }

    pub(super) async fn open_store(
        &self,
        request: Request<v1::OpenStoreRequest>,
    ) -> Result<Response<v1::OpenStoreResponse>, Status> {
        let member = self.named(&request.get_ref().store)?;
        let broker = member.reachable()?.reachable()?;
        let by = actor(broker, &request, Rpc::OpenStore)?;
        broker.operator.open_store(member.name(), &by).await?;
        Ok(Response::new(v1::OpenStoreResponse { store: Some(view(member).await) }))
    }

    pub(super) async fn move_type(
        &self,
        request: Request<v1::MoveTypeRequest>,
    ) -> Result<Response<BoxStream<v1::MoveTypeResponse>>, Status> {
        let caller = caller(&request)?;
        let by = actor(self.fleet.main(), &request, Rpc::MoveType)?;
        let v1::MoveTypeRequest { task_type, to_store, from_store } = request.into_inner();
        let name = TaskTypeName::parse(&task_type).map_err(|problem| Error::invalid("task_type", problem))?;
        if to_store.is_empty() {
            return Err(Error::invalid("to_store", "is empty; name the store that the type goes to").into());
        }
        let moving = Move::check(&self.fleet, name, (&from_store, &to_store), by).await?;
        let open = caller.open_stream()?;
        let (from, to) = moving.stores();
        let (progress, reports) = mpsc::channel(1);
        // It ends by itself when nobody listens: between two steps, so that another broker may go on at once.
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
