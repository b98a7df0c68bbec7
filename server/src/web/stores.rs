//! Readiness and metrics of a broker with several stores.

use std::{fmt, fmt::Write as _, sync::Arc};

use axum::{
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use form_urlencoded::parse;
use futures::future::join_all;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;

use crate::stores::{ConfiguredStore, Stores};

/// Returns 200 if at least one store is ready, so that load balancers keep using a broker of which one store is unreachable.
/// `store=NAME` selects one store. The response contains store names only if the caller has the right to read all task types.
pub(super) async fn readyz(stores: &Stores, query: Option<&str>, is_stranger: bool) -> Response {
    let asked = parse(query.unwrap_or_default().as_bytes()).find(|(key, _)| key == "store").map(|(_, name)| name);
    let stores: Vec<&ConfiguredStore> = match &asked {
        None => stores.all().iter().map(Arc::as_ref).collect(),
        Some(name) => match stores.named(name) {
            Ok(store) => vec![store],
            Err(_) if is_stranger => return (StatusCode::NOT_FOUND, "there is no such store\n").into_response(),
            Err(error) => return (StatusCode::NOT_FOUND, format!("{error}\n")).into_response(),
        },
    };
    let states = join_all(stores.iter().map(|store| readiness(store))).await;
    let status = if states.iter().any(Result::is_ok) { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    if is_stranger {
        let ready = states.iter().filter(|state| state.is_ok()).count();
        return (status, format!("{ready} of {} stores are ready\n", states.len())).into_response();
    }
    let mut text = String::new();
    for (store, state) in stores.iter().zip(&states) {
        let state = state.as_ref().err().map_or("ready", String::as_str);
        // Writing to a `String` never fails.
        let _ = writeln!(text, "store {}: {state}", store.name());
    }
    (status, text).into_response()
}

async fn readiness(store: &ConfiguredStore) -> Result<(), String> {
    match store.served() {
        Ok(served) => served.broker.operator.readiness().await,
        Err(_) => Err("its database has not been reached since the start of the broker".into()),
    }
}

/// Registries of the metrics of each store, made when the list of stores changes. If there are several stores, their metrics have
/// the name of the store as a label.
#[derive(Default)]
pub(super) struct Registries(Mutex<Option<Made>>);

/// Registries, and the list of stores that they were made for.
type Made = (Arc<Stores>, Arc<[Registry]>);

impl Registries {
    /// Returns the metrics of all stores as text.
    pub(super) fn text(&self, stores: &Arc<Stores>) -> Result<String, fmt::Error> {
        let registries = self.of(stores);
        if let [only] = &registries[..] {
            return encoded(only);
        }
        let texts: Vec<String> = registries.iter().map(encoded).collect::<Result<_, _>>()?;
        Ok(merged(&texts))
    }

    fn of(&self, stores: &Arc<Stores>) -> Arc<[Registry]> {
        let mut made = self.0.lock();
        if let Some((of, registries)) = &*made
            && Arc::ptr_eq(of, stores)
        {
            return registries.clone();
        }
        let registries: Arc<[Registry]> = match stores.only() {
            Some(only) => [only.metrics().registry()].into(),
            None => stores.all().iter().map(|store| store.metrics.registry_of_store(store.name())).collect(),
        };
        *made = Some((stores.clone(), registries.clone()));
        registries
    }
}

fn encoded(registry: &Registry) -> Result<String, fmt::Error> {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry)?;
    Ok(text)
}

/// Merges the texts of all stores: each metric has one description, followed by the samples of all stores.
fn merged(texts: &[String]) -> String {
    let mut metrics: Vec<(&str, Vec<&str>)> = Vec::new();
    let mut at = 0;
    for text in texts {
        for line in text.lines().filter(|line| *line != "# EOF") {
            if let Some(name) = line.strip_prefix("# HELP ").and_then(|rest| rest.split(' ').next()) {
                at = metrics.iter().position(|(known, _)| *known == name).unwrap_or_else(|| {
                    metrics.push((name, Vec::new()));
                    metrics.len() - 1
                });
            }
            let Some((_, lines)) = metrics.get_mut(at) else { continue };
            if !(line.starts_with('#') && lines.contains(&line)) {
                lines.push(line);
            }
        }
    }
    let lines = metrics.iter().flat_map(|(_, lines)| lines).map(|line| format!("{line}\n"));
    lines.chain(["# EOF\n".to_owned()]).collect()
}

#[cfg(test)]
mod tests {
    use super::merged;

    #[test]
    fn metrics_of_several_stores_are_described_once() {
        let of = |store: &str| {
            format!(
                "# HELP a A.\n# TYPE a counter\na_total{{store=\"{store}\"}} 1\n\
                 # HELP b B.\n# TYPE b gauge\nb{{store=\"{store}\"}} 2\n# EOF\n"
            )
        };
        assert_eq!(
            merged(&[of("x"), of("y")]),
            "# HELP a A.\n# TYPE a counter\na_total{store=\"x\"} 1\na_total{store=\"y\"} 1\n\
             # HELP b B.\n# TYPE b gauge\nb{store=\"x\"} 2\nb{store=\"y\"} 2\n# EOF\n"
        );
    }
}
