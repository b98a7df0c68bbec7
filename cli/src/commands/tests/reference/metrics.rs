//! Generates the tables of a broker's metrics, from its registry.

use std::collections::BTreeSet;

use howdah_engine::metrics::{ByIssuer, ByLimit, ByOutcome, ByReason, ByTable, ByType, Metrics, TypeState};
use prometheus_client::{encoding::text::encode, registry::Registry};

use super::{code, markdown};

/// Returns a table of the metrics of a group, `broker` or `storage`.
pub(super) fn table(words: &[&str]) -> String {
    let metrics = with_samples();
    let mut storage = Registry::with_prefix("howdah");
    metrics.storage.register(&mut storage);
    let storage = described(&storage);
    let rows = match words {
        ["storage"] => storage,
        ["broker"] => described(&metrics.registry()).into_iter().filter(|row| !storage.contains(row)).collect(),
        other => panic!("no metrics {other:?}"),
    };
    markdown(["metric", "kind", "labels", "meaning"], rows)
}

/// Returns the names of all metric groups.
pub(super) fn all() -> BTreeSet<String> {
    ["broker", "storage"].map(str::to_owned).into()
}

/// Returns metrics with a sample in each family, because a family shows its labels only with a sample.
fn with_samples() -> Metrics {
    let metrics = Metrics::new();
    let task_type = String::new;
    drop(metrics.jobs.get_or_create(&TypeState { task_type: task_type(), state: "" }));
    drop(metrics.braked.get_or_create(&ByType { task_type: task_type() }));
    drop(metrics.last_pull.get_or_create(&ByType { task_type: task_type() }));
    drop(metrics.oldest_ready.get_or_create(&ByType { task_type: task_type() }));
    drop(metrics.workers.get_or_create(&ByType { task_type: task_type() }));
    drop(metrics.settled.get_or_create(&ByOutcome { outcome: "" }));
    drop(metrics.refused_calls.get_or_create(&ByReason { reason: "" }));
    drop(metrics.refusals.get_or_create(&ByLimit { limit: "" }));
    drop(metrics.tls.failed_handshakes.get_or_create(&ByReason { reason: "" }));
    let by_issuer = ByIssuer { issuer: String::new() };
    drop(metrics.jwt.key_reads.get_or_create(&by_issuer));
    drop(metrics.jwt.key_read_failures.get_or_create(&by_issuer));
    drop(metrics.jwt.keys_read_at.get_or_create(&by_issuer));
    drop(metrics.traces.dropped.get_or_create(&ByReason { reason: "" }));
    drop(metrics.storage.live_rows.get_or_create(&ByTable { table: "" }));
    drop(metrics.storage.dead_rows.get_or_create(&ByTable { table: "" }));
    drop(metrics.storage.table_bytes.get_or_create(&ByTable { table: "" }));
    metrics
}

/// Returns name, kind, labels and meaning of each metric.
fn described(registry: &Registry) -> Vec<[String; 4]> {
    let mut text = String::new();
    encode(&mut text, registry).expect("a text");
    let help = |line: &str| {
        let (name, help) = line.strip_prefix("# HELP ")?.split_once(' ')?;
        Some((name.to_owned(), help.trim_end_matches('.').to_owned()))
    };
    let row = |(name, help): (String, String)| {
        let kind = text.lines().find_map(|line| line.strip_prefix(&format!("# TYPE {name} "))).expect("a kind");
        let name = if kind == "counter" { format!("{name}_total") } else { name };
        let sample = if kind == "histogram" { format!("{name}_sum") } else { name.clone() };
        let sample = text.lines().find_map(|line| line.strip_prefix(&sample)).unwrap_or_else(|| {
            panic!("{name} is a family without a sample: give it one in with_samples");
        });
        let labels = sample.strip_prefix('{').and_then(|rest| rest.split_once('}')).map_or("", |(labels, _)| labels);
        let labels = labels.split(',').map(|label| code(label.split('=').next().unwrap_or_default()));
        [code(name), kind.to_owned(), labels.collect::<Vec<_>>().join(", "), help]
    };
    text.lines().filter_map(help).map(row).collect()
}
