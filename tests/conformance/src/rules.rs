//! Rules that every scenario must satisfy.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::{pattern::short, scenario_run::ScenarioRun};

/// Checks all rules for one scenario. The error names the violated rule.
pub(crate) fn check_all(run: &ScenarioRun<'_>) -> Result<(), String> {
    let events = run.environment.adapter.events.read(|all| all[run.first_event.min(all.len())..].to_vec());
    run.environment.wire.read(|wire| {
        settles_once(wire)?;
        subscribes_once(wire)
    })?;
    runs_once(&events)?;
    keeps_its_concurrency(run)?;
    keeps_its_secrets(run)?;
    let other_lines = run.environment.adapter.other_lines();
    if other_lines.is_empty() { Ok(()) } else { Err(format!("unexpected lines on standard output: {other_lines:?}")) }
}

/// Checks how outcomes are sent. A stream sends an outcome once, unless the broker has answered UNAVAILABLE. A unary call sends
/// an outcome only after the end of the stream that had the job or the outcome. All streams send the same outcome for a lease.
fn settles_once(wire: &[Value]) -> Result<(), String> {
    let mut open: BTreeSet<(String, String)> = BTreeSet::new();
    let mut outcomes: BTreeMap<String, Value> = BTreeMap::new();
    let mut by_stream: BTreeMap<String, String> = BTreeMap::new();
    let mut ended: BTreeSet<String> = BTreeSet::new();
    for seen in wire {
        let stream = seen["stream"].to_string();
        let lease = |of: &Value| format!("{} {}", of["id"], of["token"]);
        if !seen["broken"].is_null() || !seen["closed"].is_null() {
            ended.insert(stream.clone());
        }
        let is_open = |outcome: &&Value| by_stream.get(&lease(outcome)).is_some_and(|stream| !ended.contains(stream));
        if let Some(outcome) = list(seen, "/message/outcomes").find(is_open) {
            return Err(format!("an outcome was sent on a stream and by a call: {}", short(outcome)));
        }
        let of_stream = list(seen, "/message/settle/outcomes").chain(list(seen, "/message/jobs/jobs"));
        by_stream.extend(of_stream.map(|of| (lease(of), stream.clone())));
        for outcome in list(seen, "/message/settle/outcomes") {
            if !open.insert((stream.clone(), lease(outcome))) {
                return Err(format!("an outcome was sent twice on one stream: {}", short(outcome)));
            }
            let before = outcomes.entry(lease(outcome)).or_insert_with(|| outcome.clone());
            if before != outcome {
                return Err(format!("two outcomes for one lease: {}, then {}", short(before), short(outcome)));
            }
        }
        for result in list(seen, "/message/settled/results") {
            if result["status"] == "SETTLE_STATUS_UNAVAILABLE" {
                open.remove(&(stream.clone(), lease(result)));
            }
        }
    }
    Ok(())
}

fn list<'v>(value: &'v Value, pointer: &str) -> impl Iterator<Item = &'v Value> {
    value.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

/// Checks that `subscribe` is the first message of each stream, and comes once.
fn subscribes_once(wire: &[Value]) -> Result<(), String> {
    let mut begun = BTreeSet::new();
    for seen in wire.iter().filter(|seen| seen["method"] == "Work" && seen["to"] == "broker") {
        let Some(message) = seen.get("message") else { continue };
        let is_subscribe = message.get("subscribe").is_some();
        if begun.insert(seen["stream"].to_string()) != is_subscribe {
            return Err(format!("only the first message of a stream must be subscribe; got {}", short(message)));
        }
    }
    Ok(())
}

/// Checks that each lease is passed to a handler only once.
fn runs_once(events: &[Value]) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for started in events.iter().filter(|event| event["event"] == "started") {
        let job = &started["job"];
        let lease = json!([job["id"], job["token"]]).to_string();
        if !job["token"].is_null() && !seen.insert(lease) {
            return Err(format!("a lease was passed to a handler twice: {}", short(started)));
        }
    }
    Ok(())
}

/// Checks that the number of concurrent handlers of a task type stays within the worker's concurrency.
fn keeps_its_concurrency(run: &ScenarioRun<'_>) -> Result<(), String> {
    let mut running: BTreeMap<(String, String), Vec<Value>> = BTreeMap::new();
    let mut finished = run.finished.iter().peekable();
    run.environment.adapter.events.read(|all| {
        for (index, event) in all.iter().enumerate().skip(run.first_event) {
            while let Some((run, _)) = finished.next_if(|(_, at)| *at <= index) {
                running.values_mut().for_each(|runs| runs.retain(|running| running != run));
            }
            if event["event"] == "cancelled" {
                // Stop counting a cancelled handler, because in some languages the cancellation has already ended it.
                running.values_mut().for_each(|runs| runs.retain(|running| *running != event["run"]));
            }
            if event["event"] != "started" {
                continue;
            }
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let key = (text(&event["worker"]), text(&event["job"]["task_type"]));
            let runs = running.entry(key.clone()).or_default();
            runs.push(event["run"].clone());
            if let Some(limit) = run.limits.get(&key).filter(|limit| runs.len() > **limit) {
                return Err(format!("{} handlers of {} run at once; the limit is {limit}", runs.len(), key.1));
            }
        }
        Ok(())
    })
}

/// Checks that the adapter's log contains neither a token nor a session id.
fn keeps_its_secrets(run: &ScenarioRun<'_>) -> Result<(), String> {
    let logged = run.environment.adapter.logged();
    let sessions = run.environment.sessions();
    let mut secrets = run.environment.secrets.iter().map(|secret| ("token", secret));
    let mut ids = sessions.iter().map(|id| ("session id", id));
    let leaked = secrets.by_ref().chain(ids.by_ref()).find(|(_, secret)| logged.contains(*secret));
    leaked.map_or(Ok(()), |(kind, secret)| {
        let line = logged.lines().find(|line| line.contains(secret)).unwrap_or_default();
        Err(format!("a {kind} is in the log: {line}"))
    })
}
