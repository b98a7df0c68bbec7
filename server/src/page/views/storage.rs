//! The brokers, and the health of the storage.

use askama::Template;
use axum::response::Response;
use howdah_proto::v1::{self, SnapshotHolderKind};

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
    /// The names of the stores; empty: there is one.
    stores: Vec<String>,
    /// The store whose tables are shown; empty: the first.
    store: String,
    /// Whether Postgres shows its figures.
    seen: bool,
    tables: Vec<Table>,
    /// Who holds back VACUUM: facts about it.
    holder: Vec<(&'static str, String)>,
    queue: String,
    partitions: String,
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
    let health = visit.calls().storage_health(&visit.by, &store).await?;
    let stores: Vec<String> = visit.calls().store_names().into_iter().map(str::to_owned).collect();
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
        store: if store.is_empty() { stores.first().cloned().unwrap_or_default() } else { store },
        stores,
        layout: visit.layout("storage"),
        seen,
        tables: health.tables.into_iter().map(table).collect(),
        holder: health.oldest_snapshot.map(holder).unwrap_or_default(),
        queue: format!("{:.1} %", health.notification_queue_usage * 100.0),
        partitions: number(health.history_partitions.into()),
    };
    shown(&view)
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
