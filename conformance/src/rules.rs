//! What must hold in every scenario, whatever it is about.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::{pattern::short, play::Play};

/// Why a rule is broken.
pub(crate) fn hold(play: &Play<'_>) -> Result<(), String> {
    let events = play.stage.adapter.events.read(|all| all[play.first_event.min(all.len())..].to_vec());
    play.stage.wire.read(|wire| {
        settles_once(wire)?;
        subscribes_once(wire)
    })?;
    runs_once(&events)?;
    keeps_its_concurrency(play)?;
    keeps_its_secrets(play)?;
    let nonsense = play.stage.adapter.nonsense();
    if nonsense.is_empty() { Ok(()) } else { Err(format!("standard output has lines that say nothing: {nonsense:?}")) }
}

/// An outcome is sent once on a stream, unless the broker has answered that it does not know; and it stays the same.
fn settles_once(wire: &[Value]) -> Result<(), String> {
    let mut open: BTreeSet<(String, String)> = BTreeSet::new();
    let mut said: BTreeMap<String, Value> = BTreeMap::new();
    let mut by_stream = BTreeSet::new();
    for seen in wire {
        let stream = seen["stream"].to_string();
        let lease = |of: &Value| format!("{} {}", of["id"], of["token"]);
        let called = list(seen, "/message/outcomes");
        if let Some(outcome) = called.into_iter().find(|outcome| by_stream.contains(&lease(outcome))) {
            return Err(format!("an outcome was sent on a stream and by a call: {}", short(outcome)));
        }
        by_stream.extend(list(seen, "/message/settle/outcomes").map(lease));
        by_stream.extend(list(seen, "/message/jobs/jobs").map(lease));
        for outcome in list(seen, "/message/settle/outcomes") {
            if !open.insert((stream.clone(), lease(outcome))) {
                return Err(format!("an outcome was sent twice on one stream: {}", short(outcome)));
            }
            let before = said.entry(lease(outcome)).or_insert_with(|| outcome.clone());
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

/// `subscribe` is the first message of each stream, and comes once.
fn subscribes_once(wire: &[Value]) -> Result<(), String> {
    let mut begun = BTreeSet::new();
    for seen in wire.iter().filter(|seen| seen["method"] == "Work" && seen["to"] == "broker") {
        let Some(message) = seen.get("message") else { continue };
        let is_subscribe = message.get("subscribe").is_some();
        if begun.insert(seen["stream"].to_string()) != is_subscribe {
            return Err(format!("the first message of a stream is subscribe, and no other; got {}", short(message)));
        }
    }
    Ok(())
}

/// A lease is given to one call of a handler.
fn runs_once(events: &[Value]) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for started in events.iter().filter(|event| event["event"] == "started") {
        let job = &started["job"];
        let lease = json!([job["id"], job["token"]]).to_string();
        if !job["token"].is_null() && !seen.insert(lease) {
            return Err(format!("a lease was given to two calls of a handler: {}", short(started)));
        }
    }
    Ok(())
}

/// No more handlers of a type run at once than the worker was told.
fn keeps_its_concurrency(play: &Play<'_>) -> Result<(), String> {
    let mut running: BTreeMap<(String, String), Vec<Value>> = BTreeMap::new();
    let mut finished = play.finished.iter().peekable();
    play.stage.adapter.events.read(|all| {
        for (index, event) in all.iter().enumerate().skip(play.first_event) {
            while let Some((run, _)) = finished.next_if(|(_, at)| *at <= index) {
                running.values_mut().for_each(|runs| runs.retain(|running| running != run));
            }
            if event["event"] == "cancelled" {
                // Where the language ends it, it has ended.
                running.values_mut().for_each(|runs| runs.retain(|running| *running != event["run"]));
            }
            if event["event"] != "started" {
                continue;
            }
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let key = (text(&event["worker"]), text(&event["job"]["task_type"]));
            let runs = running.entry(key.clone()).or_default();
            runs.push(event["run"].clone());
            if let Some(limit) = play.limits.get(&key).filter(|limit| runs.len() > **limit) {
                return Err(format!("{} handlers of {} run at once, and not {limit}", runs.len(), key.1));
            }
        }
        Ok(())
    })
}

/// No log has a token, or the id of a session.
fn keeps_its_secrets(play: &Play<'_>) -> Result<(), String> {
    let logged = play.stage.adapter.logged();
    let sessions = play.stage.sessions();
    let mut secrets = play.stage.secrets.iter().map(|secret| ("token", secret));
    let mut ids = sessions.iter().map(|id| ("session id", id));
    let told = secrets.by_ref().chain(ids.by_ref()).find(|(_, secret)| logged.contains(*secret));
    told.map_or(Ok(()), |(what, secret)| {
        let line = logged.lines().find(|line| line.contains(secret)).unwrap_or_default();
        Err(format!("a {what} is in the log: {line}"))
    })
}
