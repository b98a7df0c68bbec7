//! The storage view: stores (if there are several), brokers, and the health of Postgres.

use askama::Template;
use axum::response::Response;
use howdah_proto::v1::{self, FindingLevel, SnapshotHolderKind, StoreState};
use tonic::Code;

use super::parts;
use crate::{
    api::verbs::ListStores,
    page::{
        PageError, PageRequest,
        layout::{Layout, render},
        words::{self, When, number, wire_span, word},
    },
};

#[derive(Template)]
#[template(path = "storage.html")]
struct View {
    layout: Layout,
    brokers: Vec<Broker>,
    /// Stores; empty if there is only one.
    stores: Vec<StoreRow>,
    /// Whether a store has a read replica.
    has_replicas: bool,
    /// Name of the store whose tables are shown; empty for the first store.
    store: String,
    /// Whether the database of the shown store is unreachable.
    is_unreachable: bool,
    /// Whether the broker's role may read the statistics of Postgres.
    seen: bool,
    /// Time of the last examination of the database; `None` without one to show.
    examine_time: Option<prost_types::Timestamp>,
    findings: Vec<v1::Finding>,
    tables: Vec<v1::TableHealth>,
    /// Details of the oldest transaction that holds back VACUUM, by name.
    holder: Vec<(&'static str, String)>,
    queue: String,
    partitions: String,
}

struct StoreRow {
    store: v1::Store,
    state: String,
    /// Whether the store needs attention.
    is_bad: bool,
    /// Whether the store is closed and still has unfinished jobs.
    drains: bool,
    /// Job counts of the store by state; `None` if unknown.
    counts: Option<Vec<(&'static str, String)>>,
    replica: String,
}

struct Broker {
    /// Name of the broker's store; empty if there is only one store.
    store: String,
    name: String,
    id: i32,
    started: Option<When>,
    is_alive: bool,
    is_this: bool,
}

/// The storage view.
pub(in crate::page) async fn view(req: PageRequest) -> Result<Response, PageError> {
    let store = req.params.get("store").to_owned();
    let stores = stores(&req).await?;
    let (health, is_unreachable) = match req.calls().storage_health(&req.by, &store).await {
        Ok(health) => (health, false),
        // The chosen store is unreachable. The view still lists all stores.
        Err(status) if status.code() == Code::Unavailable && !stores.is_empty() => (None, true),
        Err(status) => return Err(status.into()),
    };
    let brokers = req.calls().brokers(&req.by).await?;
    let layout = req.layout("storage");
    let seen = health.is_some();
    let health = health.unwrap_or_default();
    let broker = |(store, broker): (&str, howdah_engine::store::BrokerView)| Broker {
        store: store.to_owned(),
        is_this: broker.name == layout.broker,
        name: broker.name,
        id: broker.id,
        started: When::new(Some(broker.started.into())),
        is_alive: broker.is_alive,
    };
    let view = View {
        brokers: brokers.into_iter().map(broker).collect(),
        store: if store.is_empty() {
            stores.first().map(|one| one.store.name.clone()).unwrap_or_default()
        } else {
            store
        },
        has_replicas: stores.iter().any(|store| !store.replica.is_empty()),
        stores,
        is_unreachable,
        layout: req.layout("storage"),
        seen,
        examine_time: health.examine_time,
        findings: health.findings,
        tables: health.tables,
        holder: health.oldest_snapshot.map(holder).unwrap_or_default(),
        queue: format!("{:.1} %", health.notification_queue_usage * 100.0),
        partitions: number(health.history_partitions.into()),
    };
    render(&view)
}

/// Lists the stores; empty if there is only one.
async fn stores(req: &PageRequest) -> Result<Vec<StoreRow>, PageError> {
    if req.calls().has_one_store() {
        return Ok(Vec::new());
    }
    let answer = req.calls().call::<ListStores>(&req.by, v1::ListStoresRequest::default()).await?;
    Ok(answer.into_inner().stores.into_iter().map(one_store).collect())
}

fn one_store(mut store: v1::Store) -> StoreRow {
    let state = store.state();
    let counts = store.counts.filter(|_| state != StoreState::Unreachable);
    StoreRow {
        state: word(state.as_str_name(), "STORE_STATE_"),
        is_bad: matches!(state, StoreState::Unreachable | StoreState::Skipped),
        drains: state == StoreState::Closed && store.has_unfinished_jobs,
        counts: counts.map(|counts| parts::counts(counts).map(|(word, count)| (word, number(count))).to_vec()),
        replica: store.read_replica.take().map(replica).unwrap_or_default(),
        store,
    }
}

fn replica(replica: v1::ReadReplica) -> String {
    let lag = replica.lag.map(|lag| format!("{} behind", wire_span(lag)));
    match (replica.used, lag) {
        (true, lag) => lag.unwrap_or_default(),
        (false, Some(lag)) => format!("not read: {lag}, or unreachable"),
        (false, None) => "not read: unreachable".into(),
    }
}

fn holder(holder: v1::SnapshotHolder) -> Vec<(&'static str, String)> {
    let kind = match holder.kind() {
        SnapshotHolderKind::Unspecified => "",
        SnapshotHolderKind::Session => "a session",
        SnapshotHolderKind::PreparedTransaction => "a prepared transaction",
        SnapshotHolderKind::ReplicationSlot => "a replication slot",
    };
    let all = [
        ("Kind", kind.to_owned()),
        ("Age", holder.age.map(wire_span).unwrap_or_default()),
        ("Transactions since", number(holder.xid_age)),
        ("Process", if holder.pid == 0 { String::new() } else { holder.pid.to_string() }),
        ("Name", holder.name),
        ("Role", holder.user),
        ("Database", holder.database),
        ("Application", holder.application_name),
        ("State", holder.state),
    ];
    all.into_iter().filter(|(_, value)| !value.is_empty()).collect()
}
