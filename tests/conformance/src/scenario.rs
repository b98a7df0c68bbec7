//! The format of the scenarios in `scenarios/*.yaml`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

/// The scenario files with the areas that they test.
const FILES: &[(&str, &str)] = &[
    ("handshake", include_str!("../scenarios/handshake.yaml")),
    ("windows", include_str!("../scenarios/windows.yaml")),
    ("outcomes", include_str!("../scenarios/outcomes.yaml")),
    ("resume", include_str!("../scenarios/resume.yaml")),
    ("liveness", include_str!("../scenarios/liveness.yaml")),
    ("drain", include_str!("../scenarios/drain.yaml")),
    ("cancel", include_str!("../scenarios/cancel.yaml")),
    ("checkpoint", include_str!("../scenarios/checkpoint.yaml")),
    ("results", include_str!("../scenarios/results.yaml")),
    ("stop", include_str!("../scenarios/stop.yaml")),
    ("errors", include_str!("../scenarios/errors.yaml")),
    ("large", include_str!("../scenarios/large.yaml")),
    ("access", include_str!("../scenarios/access.yaml")),
    ("traces", include_str!("../scenarios/traces.yaml")),
    ("enqueue", include_str!("../scenarios/enqueue.yaml")),
    ("operate", include_str!("../scenarios/operate.yaml")),
    ("network", include_str!("../scenarios/network.yaml")),
];

/// A test of one requirement for clients.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    /// Name within the area. After loading, `area/name`.
    pub(crate) name: String,
    /// Why clients must meet the requirement; printed when a client fails.
    pub(crate) why: String,
    /// Brokers that only this scenario uses, by name. Every scenario can also use two shared brokers.
    #[serde(default)]
    pub(crate) brokers: BTreeMap<String, BrokerConfig>,
    /// Environment variables of the scenario's own adapter process; `None` if the scenario uses a shared adapter.
    #[serde(default)]
    pub(crate) environment: Option<BTreeMap<String, Value>>,
    /// Calls and fields that the scenario covers, although its connection is encrypted and cannot be logged.
    #[serde(default)]
    pub(crate) covers: Vec<String>,
    /// Whether the scenario takes a long time. Slow scenarios start first.
    #[serde(default)]
    pub(crate) slow: bool,
    pub(crate) steps: Vec<Map<String, Value>>,
}

/// A broker that only one scenario uses.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct BrokerConfig {
    /// Additional arguments of `howdah serve`.
    pub(crate) args: Vec<String>,
    /// Name of a separate database for the broker; `None`: the shared database.
    pub(crate) database: Option<String>,
    /// Whether the broker's address is `https://`. With TLS, messages on the wire cannot be logged.
    pub(crate) tls: bool,
    /// Whether the broker starts only at the step `broker: {NAME: start}`, and not with the scenario.
    pub(crate) later: bool,
}

/// Loads all scenarios, the slow ones first.
pub(crate) fn all() -> Result<Vec<Scenario>, String> {
    let mut all = Vec::new();
    for (area, text) in FILES {
        let scenarios: Vec<Scenario> =
            serde_norway::from_str(text).map_err(|error| format!("scenarios/{area}.yaml: {error}"))?;
        all.extend(
            scenarios.into_iter().map(|scenario| Scenario { name: format!("{area}/{}", scenario.name), ..scenario }),
        );
    }
    all.sort_by_key(|scenario| !scenario.slow);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_scenario_has_a_unique_name_a_reason_and_steps() {
        let all = all().unwrap();
        let names: BTreeSet<_> = all.iter().map(|scenario| &scenario.name).collect();
        assert_eq!(names.len(), all.len());
        assert!(all.iter().all(|scenario| scenario.why.len() > 20 && !scenario.steps.is_empty()));
    }

    /// Finds a literal job id in a step, if the id is so small that another scenario's job may have it.
    fn small_id(value: &Value, is_id: bool) -> Option<String> {
        match value {
            Value::Object(fields) => {
                fields.iter().find_map(|(name, value)| small_id(value, ["id", "ids"].contains(&name.as_str())))
            }
            Value::Array(values) => values.iter().find_map(|value| small_id(value, is_id)),
            _ if !is_id => None,
            Value::Number(number) => Some(number.to_string()),
            Value::String(text) => text.parse().is_ok_and(|id: u64| id < 1 << 53).then(|| text.clone()),
            _ => None,
        }
    }

    #[test]
    fn no_scenario_has_a_literal_job_id_that_another_scenario_may_use() {
        for Scenario { name, steps, .. } in all().unwrap() {
            for step in steps {
                assert_eq!(small_id(&Value::Object(step), false), None, "{name}");
            }
        }
    }
}
