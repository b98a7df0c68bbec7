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
        words::{When, number, plain, wire_span},
    },
};

#[derive(Template)]
#[template(path = "storage.html")]
struct View {
    layout: Layout,
    brokers: Vec<Broker>,
    /// Stores; empty if there is only one.
    stores: Vec<Store>,
    /// Whether a store has a read replica.
    has_replicas: bool,
    /// Name of the store whose tables are shown; empty for the first store.
    store: String,
    /// Whether the database of the shown store is unreachable.
    is_unreachable: bool,
    /// Whether the broker's role may read the statistics of Postgres.
    seen: bool,
    /// Time of the last examination of the database; `None` without one to show.
    examined: Option<When>,
    findings: Vec<Finding>,
    tables: Vec<Table>,
    /// Details of the oldest transaction that holds back VACUUM, by name.
    holder: Vec<(&'static str, String)>,
    queue: String,
    partitions: String,
}

struct Store {
    name: String,
    number: u32,
    state: &'static str,
    /// Whether the store needs attention.
    is_bad: bool,
    /// Whether the store is closed and still has unfinished jobs.
    drains: bool,
    closed: Option<When>,
    closed_by: String,
    /// Why the broker skips the store; empty if it does not.
    problem: String,
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

struct Finding {
    check: String,
    is_problem: bool,
    found: String,
    change: String,
}

struct Table {
    name: String,
    live: String,
    dead: String,
    threshold: String,
    /// Whether the table's dead rows exceed the autovacuum threshold.
    is_late: bool,
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
            stores.first().map(|store| store.name.clone()).unwrap_or_default()
        } else {
            store
        },
        has_replicas: stores.iter().any(|store| !store.replica.is_empty()),
        stores,
        is_unreachable,
        layout: req.layout("storage"),
        seen,
        examined: When::new(health.examine_time),
        findings: health.findings.into_iter().map(finding).collect(),
        tables: health.tables.into_iter().map(table).collect(),
        holder: health.oldest_snapshot.map(holder).unwrap_or_default(),
        queue: format!("{:.1} %", health.notification_queue_usage * 100.0),
        partitions: number(health.history_partitions.into()),
    };
    render(&view)
}

/// Lists the stores; empty if there is only one.
async fn stores(req: &PageRequest) -> Result<Vec<Store>, PageError> {
    if req.calls().has_one_store() {
        return Ok(Vec::new());
    }
    let answer = req.calls().call::<ListStores>(&req.by, v1::ListStoresRequest::default()).await?;
    Ok(answer.into_inner().stores.into_iter().map(one_store).collect())
}

fn one_store(store: v1::Store) -> Store {
    let state = match store.state() {
        StoreState::Unspecified => "unknown",
        StoreState::Ready => "ready",
        StoreState::Unreachable => "unreachable",
        StoreState::Closed => "closed",
        StoreState::Skipped => "skipped",
    };
    let counts = store.counts.filter(|_| store.state() != StoreState::Unreachable);
    Store {
        state,
        is_bad: matches!(store.state(), StoreState::Unreachable | StoreState::Skipped),
        drains: store.state() == StoreState::Closed && store.has_unfinished_jobs,
        closed: When::new(store.close_time),
        closed_by: plain(&store.closed_by),
        problem: plain(&store.problem),
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
        (false, Some(lag)) => format!("not read: {lag}, or unreachable"),
        (false, None) => "not read: unreachable".into(),
    }
}

fn finding(finding: v1::Finding) -> Finding {
    Finding {
        is_problem: finding.level() == FindingLevel::Problem,
        check: finding.check,
        found: plain(&finding.found),
        change: plain(&finding.change),
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
