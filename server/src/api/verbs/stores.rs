//! Calls for operators about stores. The calls work in the same way with one store and with several.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use howdah_engine::{operate::stores::StoreView, store::ReplicaState};
use tokio::sync::mpsc;
use tonic::{Request, Response, Status, codegen::BoxStream};

use crate::{
    api::{
        authenticate::counted,
        enums::WireEnum as _,
        render::{counts, duration, time},
        verbs::{Gateway, prelude::*},
    },
    stores::{
        ConfiguredStore, Reloaded, SkippedStore,
        moving::{Move, MoveProgress},
    },
};

/// Time limit for a store to report its state.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the store with this name. An empty name means the only store.
fn named<'a>(call: &'a Call, name: &str) -> Result<&'a ConfiguredStore, Error> {
    match call.stores.all() {
        [only] if name.is_empty() => Ok(only),
        stores => stores.iter().map(Arc::as_ref).find(|store| store.name() == name).ok_or_else(|| {
            let names: Vec<&str> = stores.iter().map(|store| store.name()).collect();
            let names = names.join(", ");
            if name.is_empty() {
                Error::invalid("store", format!("is empty; name one of {names}"))
            } else {
                Error::NotFound(format!("there is no store {name:?}; this broker serves {names}"))
            }
        }),
    }
}

/// Returns the state of a store. A store that does not answer in time is reported as unreachable, with its number if known.
async fn state(store: &ConfiguredStore) -> v1::Store {
    let looked = async { store.reachable()?.reachable()?.operator.store_view().await };
    let view: Option<StoreView> = tokio::time::timeout(TIMEOUT, looked).await.ok().and_then(Result::ok);
    let name = store.name().to_owned();
    let Some(view) = view else {
        return v1::Store {
            name,
            number: store.number().map(|number| number.get().into()).unwrap_or_default(),
            state: v1::StoreState::Unreachable as i32,
            ..v1::Store::default()
        };
    };
    let state = if view.closed.is_some() { v1::StoreState::Closed } else { v1::StoreState::Ready };
    v1::Store {
        name,
        number: view.number.get().into(),
        state: state as i32,
        close_time: view.closed.as_ref().map(|closed| time(closed.since)),
        closed_by: view.closed.map(|closed| closed.by).unwrap_or_default(),
        counts: view.counted.map(|(all, _)| counts(all)),
        counts_age: view.counted.map(|(_, age)| duration(age)),
        has_unfinished_jobs: view.has_unfinished,
        read_replica: view.replica.map(replica),
        problem: String::new(),
    }
}

/// Returns the state of a database that matches a pattern and cannot be served.
fn skipped(store: SkippedStore) -> v1::Store {
    let SkippedStore { name, problem } = store;
    v1::Store { name, problem, state: v1::StoreState::Skipped as i32, ..v1::Store::default() }
}

fn replica(state: ReplicaState) -> v1::ReadReplica {
    v1::ReadReplica { used: state.is_read, lag: state.lag.map(duration) }
}

impl Verb for ListStores {
    const RULE: Rule = Rule::Everything(Operation::Read);

    /// Name of a store; empty for all stores.
    type Args = String;

    fn check(request: v1::ListStoresRequest, _: &ClusterSettings, _: &Limits) -> Result<String, Error> {
        Ok(request.store)
    }

    async fn run(call: &mut Call, name: String) -> Result<v1::ListStoresResponse, Error> {
        let mut left_out = call.all_stores.skipped();
        left_out.retain(|store| name.is_empty() || store.name == name);
        let stores: Vec<&ConfiguredStore> = if name.is_empty() {
            call.stores.all().iter().map(Arc::as_ref).collect()
        } else if left_out.is_empty() {
            vec![named(call, &name)?]
        } else {
            Vec::new()
        };
        let served = join_all(stores.into_iter().map(state)).await;
        Ok(v1::ListStoresResponse { stores: served.into_iter().chain(left_out.into_iter().map(skipped)).collect() })
    }

    async fn route(call: &Call, request: v1::ListStoresRequest) -> Answer<Self> {
        call.primary::<Self>(request).await
    }
}

macro_rules! changes {
    ($($verb:ident -> $response:ident: $change:ident;)*) => {
        $(
            impl Verb for $verb {
                const RULE: Rule = Rule::Everything(Operation::Admin);

                /// Name of the store.
                type Args = String;

                fn check(request: Self::Request, _: &ClusterSettings, _: &Limits) -> Result<String, Error> {
                    Ok(request.store)
                }

                async fn run(call: &mut Call, name: String) -> Result<v1::$response, Error> {
                    let store = named(call, &name)?;
                    let broker = store.reachable()?.reachable()?;
                    broker.operator.$change(store.name(), &call.at(broker).by()?).await?;
                    Ok(v1::$response { store: Some(state(store).await) })
                }

                async fn route(call: &Call, request: Self::Request) -> Answer<Self> {
                    call.primary::<Self>(request).await
                }
            }
        )*
    };
}

changes! {
    DrainStore -> DrainStoreResponse: close_store;
    OpenStore -> OpenStoreResponse: open_store;
}

impl Verb for ReloadStores {
    const RULE: Rule = Rule::Everything(Operation::Admin);

    type Args = ();

    fn check(_: v1::ReloadStoresRequest, _: &ClusterSettings, _: &Limits) -> Result<(), Error> {
        Ok(())
    }

    async fn run(call: &mut Call, (): ()) -> Result<v1::ReloadStoresResponse, Error> {
        let by = call.by()?;
        let stores = call.all_stores.clone();
        // The reload goes on if the caller gives up.
        let reloaded = tokio::spawn(async move { stores.reload().await }).await;
        let reloaded =
            reloaded.map_err(|error| Error::Internal(format!("the reload of the stores failed: {error}")))?;
        let reloaded = reloaded.map_err(|error| Error::StoresRefused(error.to_string()))?;
        let names = reloaded.added.iter().chain(&reloaded.removed).cloned().collect();
        call.broker.operator.record_reload(names, &by).await?;
        let Reloaded { added, removed, changed, skipped } = reloaded;
        Ok(v1::ReloadStoresResponse { added, removed, changed, skipped })
    }

    async fn route(call: &Call, request: v1::ReloadStoresRequest) -> Answer<Self> {
        call.primary::<Self>(request).await
    }
}

pub(in crate::api::verbs) const MOVE_TYPE_RULE: Rule = Rule::Everything(Operation::Admin);

impl Gateway {
    pub(in crate::api::verbs) async fn move_type(
        &self,
        request: Request<v1::MoveTypeRequest>,
    ) -> Result<Response<BoxStream<v1::MoveTypeResponse>>, Status> {
        let (call, message) = Call::open(self, Rpc::MoveType, request)?;
        let by = call.by()?;
        let v1::MoveTypeRequest { task_type: name, to_store, from_store } = message;
        let name = task_type("task_type", &name)?;
        if to_store.is_empty() {
            return Err(Error::invalid("to_store", "is empty; name the store that the type goes to").into());
        }
        let moving = Move::check(&call.stores, name, (&from_store, &to_store), by).await?;
        let open = call.caller.open_stream()?;
        let (from, to) = moving.stores();
        let (progress, reports) = mpsc::channel(1);
        // When the client closes the stream, the move stops after its current step, so that another broker can resume it at
        // once.
        tokio::spawn(moving.run(progress, (*call.stopping).clone()));
        let answers = futures::stream::unfold(reports, move |mut reports| {
            let (from, to) = (from.clone(), to.clone());
            async move {
                let report = reports.recv().await?;
                let answer = report.map(|report| move_progress(report, from, to)).map_err(Status::from);
                Some((answer, reports))
            }
        });
        Ok(Response::new(counted(answers, open)))
    }
}

/// Converts the progress of moving a task type from one store to another.
fn move_progress(progress: MoveProgress, from_store: String, to_store: String) -> v1::MoveTypeResponse {
    let count = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    v1::MoveTypeResponse {
        phase: progress.phase.number(),
        from_store,
        to_store,
        moved_count: progress.moved,
        running_count: progress.left.running,
        staying_count: progress.left.staying,
        staying_ids: progress.left.first_staying,
        moved_schedule_count: count(progress.schedules),
        staying_schedule_count: count(progress.staying_schedules),
        problem: progress.problem,
    }
}
