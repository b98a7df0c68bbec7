//! What several stores have to say: whether they are ready, and their metrics.

use std::{fmt, fmt::Write as _, sync::Arc};

use axum::{
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use form_urlencoded::parse;
use futures::future::join_all;
use prometheus_client::registry::Registry;

use crate::stores::{Fleet, Member};

/// Ready while one store is, so that a broker without one of its stores goes on serving the others; `store=NAME` asks one.
pub(super) async fn readyz(fleet: &Fleet, query: Option<&str>) -> Response {
    let asked = parse(query.unwrap_or_default().as_bytes()).find(|(key, _)| key == "store").map(|(_, name)| name);
    let members: Vec<&Member> = match &asked {
        None => fleet.members().iter().collect(),
        Some(name) => match fleet.named(name) {
            Ok(member) => vec![member],
            Err(error) => return (StatusCode::NOT_FOUND, format!("{error}\n")).into_response(),
        },
    };
    let states = join_all(members.iter().map(|member| readiness(member))).await;
    let status = if states.iter().any(Result::is_ok) { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut text = String::new();
    for (member, state) in members.iter().zip(&states) {
        let state = state.as_ref().err().map_or("ready", |reason| reason);
        // Writing to a text never fails.
        let _ = writeln!(text, "store {}: {state}", member.name());
    }
    (status, text).into_response()
}

async fn readiness(member: &Member) -> Result<(), &'static str> {
    match member.engine() {
        Ok(engine) => engine.broker.operator.readiness().await,
        Err(_) => Err("its database has not been reached since the start of the broker"),
    }
}

/// The metrics of each store. With several, they have its name as a label.
pub(super) fn registries(fleet: &Fleet) -> Arc<[Registry]> {
    if fleet.only().is_some() {
        return [fleet.main().metrics().registry()].into();
    }
    fleet.members().iter().map(|member| member.metrics.registry_of_store(member.name())).collect()
}

/// Their text.
pub(super) fn metrics(registries: &[Registry]) -> Result<String, fmt::Error> {
    if let [only] = registries {
        return encoded(only);
    }
    let texts: Vec<String> = registries.iter().map(encoded).collect::<Result<_, _>>()?;
    Ok(merged(&texts))
}

fn encoded(registry: &Registry) -> Result<String, fmt::Error> {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry)?;
    Ok(text)
}

/// Puts texts of the same metrics together: each metric is described once, and its samples of all stores follow.
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
