//! The stores if there are several, the brokers, and the health of the storage.

use askama::Template;
use axum::response::Response;
use howdah_proto::v1::{self, SnapshotHolderKind, StoreState};
use tonic::Code;

use super::parts;
use crate::page::{
    Trouble, Visit,
    layout::{Layout, shown},
    words::{When, number, plain, wire_span},
};

#[derive(Template)]
#[template(path = "storage.html")]
struct View {
    layout: Layout,
    brokers: Vec<Broker>,
    /// The stores; empty: there is one.
    stores: Vec<Store>,
    /// Whether one of them has a replica that is read.
    has_replicas: bool,
    /// The store whose tables are shown; empty: the first.
    store: String,
    /// Whether it cannot be reached.
    away: bool,
    /// Whether Postgres shows its figures.
    seen: bool,
    tables: Vec<Table>,
    /// Who holds back VACUUM: facts about it.
    holder: Vec<(&'static str, String)>,
    queue: String,
    partitions: String,
}

struct Store {
    name: String,
    number: u32,
    state: &'static str,
    /// Whether somebody should look.
    is_bad: bool,
    /// Whether it is closed, and has jobs that have not ended.
    drains: bool,
    closed: Option<When>,
    closed_by: String,
    /// Jobs by state; `None`: they are not known.
    counts: Option<Vec<(&'static str, String)>>,
    replica: String,
}

struct Broker {
    /// Empty: there is one store.
    store: String,
    name: String,
    id: i32,
    started: Option<When>,
    lives: bool,
    is_this: bool,
}

struct Table {
    name: String,
    live: String,
    dead: String,
    threshold: String,
    /// More dead rows than autovacuum should leave.
    is_late: bool,
}

/// The view.
pub(in crate::page) async fn view(visit: Visit) -> Result<Response, Trouble> {
    let store = visit.params.get("store").to_owned();
    let stores = stores(&visit).await?;
    let (health, away) = match visit.calls().storage_health(&visit.by, &store).await {
        Ok(health) => (health, false),
        // The other stores are shown.
        Err(status) if status.code() == Code::Unavailable && !stores.is_empty() => (None, true),
        Err(status) => return Err(status.into()),
    };
    let brokers = visit.calls().brokers(&visit.by).await?;
    let layout = visit.layout("storage");
    let seen = health.is_some();
    let health = health.unwrap_or_default();
    let broker = |(store, broker): (&str, crate::store::BrokerView)| Broker {
        store: store.to_owned(),
        is_this: broker.name == layout.broker,
        name: broker.name,
        id: broker.id,
        started: When::of(Some(broker.started.into())),
        lives: broker.lives,
    };
    let view = View {
        brokers: brokers.into_iter().map(broker).collect(),
        store: if store.is_empty() {
            stores.first().map(|store| store.name.clone()).unwrap_or_default()
        } else {
            store
        },
        has_replicas: stores.iter().any(|store| !store.replica.is_empty()),
        stores,
        away,
        layout: visit.layout("storage"),
        seen,
        tables: health.tables.into_iter().map(table).collect(),
        holder: health.oldest_snapshot.map(holder).unwrap_or_default(),
        queue: format!("{:.1} %", health.notification_queue_usage * 100.0),
        partitions: number(health.history_partitions.into()),
    };
    shown(&view)
}

/// The stores, if there are several.
async fn stores(visit: &Visit) -> Result<Vec<Store>, Trouble> {
    if visit.calls().has_one_store() {
        return Ok(Vec::new());
    }
    let answer = visit.calls().list_stores(&visit.by, v1::ListStoresRequest::default()).await?;
    Ok(answer.into_inner().stores.into_iter().map(one_store).collect())
}

fn one_store(store: v1::Store) -> Store {
    let state = match store.state() {
        StoreState::Unspecified => "unknown",
        StoreState::Ready => "ready",
        StoreState::Away => "away",
        StoreState::Closed => "closed",
    };
    let counts = store.counts.filter(|_| store.state() != StoreState::Away);
    Store {
        state,
        is_bad: store.state() == StoreState::Away,
        drains: store.state() == StoreState::Closed && store.has_unfinished_jobs,
        closed: When::of(store.close_time),
        closed_by: plain(&store.closed_by),
        counts: counts.map(|counts| parts::counts(counts).map(|(word, count)| (word, number(count))).to_vec()),
        replica: store.read_replica.map(replica).unwrap_or_default(),
        number: store.number,
        name: store.name,
    }
}

fn replica(replica: v1::ReadReplica) -> String {
    let lag = replica.lag.map(|lag| format!("{} behind", wire_span(lag)));
    match (replica.used, lag) {
        (true, lag) => lag.unwrap_or_default(),
        (false, Some(lag)) => format!("not read: {lag}, or away"),
        (false, None) => "not read: away".into(),
    }
}

fn table(table: v1::TableHealth) -> Table {
    Table {
        is_late: table.dead_rows > 2 * table.autovacuum_threshold.max(1),
        live: number(table.live_rows),
        dead: number(table.dead_rows),
        threshold: number(table.autovacuum_threshold),
        name: table.name,
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
    all.into_iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| (name, plain(&value))).collect()
}
