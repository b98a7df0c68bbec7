//! Compares all names in `deploy/prometheus` and `deploy/grafana` with the `/metrics` of a real broker, and all alerts with the
//! page that explains them. `deploy/prometheus/test.sh` fires each alert.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use serde_json::Value;

use super::expression::{groupings, metrics};
use crate::support::*;

/// Labels that Prometheus adds to every series.
const OF_PROMETHEUS: [&str; 2] = ["instance", "job"];

/// Returns the alerts, each with the name of its file.
fn alerts() -> Vec<(String, Value)> {
    let mut alerts = Vec::new();
    for entry in fs::read_dir(root().join("deploy/prometheus")).expect("rules") {
        let path = entry.expect("a file").path();
        if path.extension().is_none_or(|extension| extension != "yml") {
            continue;
        }
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        let rules: Value = serde_norway::from_str(&fs::read_to_string(&path).unwrap()).expect(&file);
        let groups = rules["groups"].as_array().expect(&file);
        let rules: Vec<&Value> = groups.iter().flat_map(|group| group["rules"].as_array().unwrap()).collect();
        assert_eq!(rules.len(), 1, "{file}: one rule a file");
        alerts.push((file, rules[0].clone()));
    }
    alerts
}

/// Returns the expressions of the dashboard's panels and variables, each with a name.
fn panels() -> Vec<(String, String)> {
    let text = fs::read_to_string(root().join("deploy/grafana/howdah.json")).expect("a dashboard");
    let dashboard: Value = serde_json::from_str(&text).expect("JSON");
    let mut found = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().unwrap();
            assert!(expression.contains("howdah_"), "{title}");
            found.push((format!("the panel {title}"), expression.to_owned()));
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        found.push((format!("the variable {}", variable["name"]), variable["query"].as_str().unwrap().to_owned()));
    }
    found
}

type Names = BTreeMap<String, BTreeSet<String>>;

/// Returns the names of the samples in a `/metrics` response, with their labels.
fn served(metrics: &str) -> Names {
    let mut served = Names::new();
    for line in metrics.lines().filter(|line| line.starts_with("howdah_")) {
        let name = line.split(['{', ' ']).next().unwrap();
        let labels = line.split_once('{').map_or("", |(_, rest)| rest.split_once('}').expect(line).0);
        let labels = labels.split("\",").filter_map(|label| label.split_once('=').map(|(name, _)| name.to_owned()));
        served.entry(name.to_owned()).or_default().extend(labels);
    }
    served
}

/// Returns the counters of refusals, from the generated reference. A broker serves such a counter from the first
/// refusal on.
fn served_later() -> Names {
    let page = fs::read_to_string(root().join("docs/reference/metrics.md")).expect("the reference");
    let mut later = Names::new();
    for line in page.lines().filter(|line| line.starts_with("| `howdah_") && line.contains("| counter | `")) {
        let mut quoted = line.split('`').skip(1).step_by(2).map(str::to_owned);
        let name = quoted.next().expect(line);
        later.insert(name, quoted.collect());
    }
    later
}

#[tokio::test]
async fn every_metric_and_label_of_the_alerts_and_the_dashboard_is_served_by_a_broker() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("mail").await;
    let job = {
        broker.enqueue("mail").await;
        worker.next().await
    };
    worker.ack(&job).await;
    broker.pull("mail").await;
    // Waits until the metrics have all values that a broker reads every 15 s, and also the worker's task type.
    eventually("all figures", async || {
        let metrics = broker.metrics().await;
        let read =
            ["workers{", "findings{", "table_bytes{", "dead_rows{", "settled_total{", "last_pull_timestamp_seconds{"];
        read.iter().all(|name| metrics.contains(&format!("howdah_{name}")))
    })
    .await;
    let mut served = served(&broker.metrics().await);
    for (name, labels) in served_later() {
        served.entry(name).or_insert(labels);
    }
    let expressions = alerts().into_iter().map(|(file, rule)| (file, rule["expr"].as_str().unwrap().to_owned()));
    let mut problems = Vec::new();
    for (location, expression) in expressions.chain(panels()) {
        let mut labels: BTreeSet<String> = OF_PROMETHEUS.map(str::to_owned).into();
        for selected in metrics(&expression) {
            let Some(known) = served.get(&selected.metric) else {
                problems.push(format!("{location}: no broker serves {}", selected.metric));
                continue;
            };
            labels.extend(known.iter().cloned());
            for label in selected.labels.difference(known) {
                problems.push(format!("{location}: {} has no label {label}", selected.metric));
            }
        }
        let unknown = groupings(&expression);
        problems
            .extend(unknown.difference(&labels).map(|label| format!("{location}: no metric has the label {label}")));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn every_alert_has_a_test_a_severity_and_a_section_that_says_what_to_do() {
    let page = fs::read_to_string(root().join("docs/operate/alerts.md")).expect("the page");
    let mut explained: BTreeSet<&str> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    for (file, rule) in alerts() {
        let name = rule["alert"].as_str().expect(&file);
        assert!(explained.remove(name), "docs/operate/alerts.md has no section {name}");
        let runbook = rule["annotations"]["runbook"].as_str().expect(&file);
        assert_eq!(runbook, format!("docs/operate/alerts.md#{}", name.to_lowercase()), "{file}");
        assert!(["page", "ticket"].map(Some).contains(&rule["labels"]["severity"].as_str()), "{file}");
        assert!(rule["annotations"]["summary"].is_string(), "{file}");
        assert!(root().join("deploy/prometheus/tests").join(&file).exists(), "no test makes {name} fire");
    }
    assert_eq!(explained, BTreeSet::from(["Use them", "What to change"]), "sections of the page without an alert");
}
