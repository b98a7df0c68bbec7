//! Plays one scenario: its steps one after another, then what must hold in each.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::{Map, Value, json};
use tokio::sync::oneshot;

use crate::{pattern, rules, stage::Stage};

/// How long a step waits, unless it or the command line says otherwise.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);
/// How long a client may take to connect: some languages warm up first.
pub(crate) const CONNECT: Duration = Duration::from_secs(40);

/// A scenario that plays.
pub(crate) struct Play<'w> {
    pub(crate) stage: Stage<'w>,
    /// The first event of this scenario in the adapter's log.
    pub(crate) first_event: usize,
    /// Events that steps have waited for.
    pub(crate) consumed: BTreeSet<usize>,
    /// Commands whose answers come later, by name.
    pub(crate) later: BTreeMap<String, (String, oneshot::Receiver<Value>)>,
    /// `finish` was sent for these, when the adapter's log had so many events.
    pub(crate) finished: Vec<(Value, usize)>,
    pub(crate) workers: BTreeSet<String>,
    /// How many handlers of a worker and type may run at once.
    pub(crate) limits: BTreeMap<(String, String), usize>,
    pub(crate) clients: BTreeSet<String>,
    patience: Duration,
}

/// A step: what it does, with what, and how its answer should be.
pub(crate) struct Step {
    pub(crate) verb: String,
    pub(crate) argument: Value,
    pub(crate) more: Map<String, Value>,
    pub(crate) patience: Duration,
}

impl Step {
    pub(crate) fn within(&self) -> Duration {
        let usual = if self.verb == "connect" { CONNECT } else { self.patience };
        self.more.get("within_ms").and_then(Value::as_u64).map_or(usual, Duration::from_millis)
    }

    pub(crate) fn modifier(&self, name: &str) -> Option<&Value> {
        self.more.get(name)
    }
}

/// What may stand beside the verb of a step.
const MODIFIERS: &[&str] = &[
    "ok",
    "error",
    "save",
    "later",
    "within_ms",
    "each",
    "times",
    "count",
    "none",
    "runs",
    "either",
    "retry",
    "until",
];

impl<'w> Play<'w> {
    pub(crate) fn new(stage: Stage<'w>, patience: Duration) -> Self {
        let first_event = stage.adapter.events.read(<[Value]>::len);
        Self {
            stage,
            first_event,
            consumed: BTreeSet::new(),
            later: BTreeMap::new(),
            finished: Vec::new(),
            workers: BTreeSet::new(),
            limits: BTreeMap::new(),
            clients: BTreeSet::new(),
            patience,
        }
    }

    /// Plays all steps; why the client fails.
    pub(crate) async fn run(&mut self, steps: &[Map<String, Value>]) -> Result<(), String> {
        for (index, step) in steps.iter().enumerate() {
            let played = self.step(step).await;
            played.map_err(|why| format!("step {} ({}): {why}", index + 1, pattern::short(&json!(step))))?;
        }
        rules::hold(self)
    }

    async fn step(&mut self, step: &Map<String, Value>) -> Result<(), String> {
        let (verbs, more): (Vec<_>, Vec<_>) = step.iter().partition(|(name, _)| !MODIFIERS.contains(&name.as_str()));
        let [(verb, argument)] = verbs.as_slice() else {
            return Err(format!("a step has one verb, and not {}", verbs.len()));
        };
        let more: Map<String, Value> = more.into_iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        let each = more.get("each").map(|each| self.stage.variables.fill(each)).transpose()?;
        let rounds = match &each {
            Some(Value::Array(list)) => list.clone(),
            Some(other) => return Err(format!("each is no list: {other}")),
            None => (0..more.get("times").and_then(Value::as_u64).unwrap_or(1)).map(|index| json!(index)).collect(),
        };
        let mut runs = Vec::new();
        for value in rounds {
            self.stage.variables.set("each", value);
            let mut filled = Map::new();
            for (name, value) in more.iter().filter(|(name, _)| *name != "save") {
                filled.insert(name.clone(), self.stage.variables.fill(value)?);
            }
            if let Some(save) = more.get("save") {
                filled.insert("save".to_owned(), save.clone());
            }
            let argument = self.stage.variables.fill(argument)?;
            let patience = self.patience;
            self.act(&Step { verb: (*verb).clone(), argument, more: filled, patience }).await?;
            runs.push(self.stage.variables.get("run").clone());
        }
        if let Some(name) = more.get("runs").and_then(Value::as_str) {
            self.stage.variables.set(name, runs);
        }
        Ok(())
    }

    /// Checks an answer of the adapter, and saves its parts.
    pub(crate) fn judge(&mut self, step: &Step, answer: &Value) -> Result<(), String> {
        if step.modifier("either").is_some() {
            return Ok(());
        }
        if let Some(wanted) = step.modifier("error") {
            let error = answer.get("error").unwrap_or(&Value::Null);
            if error.is_null() {
                return Err(format!("expected an error {wanted}, got {}", pattern::short(answer)));
            }
            pattern::check(wanted, error, "error")?;
            return self.save(step, error);
        }
        let Some(ok) = answer.get("ok") else {
            return Err(format!("expected no error, got {}", pattern::short(answer)));
        };
        pattern::check(step.modifier("ok").unwrap_or(&Value::Object(Map::new())), ok, "answer")?;
        self.save(step, ok)
    }

    /// `save: {name: path.in.the.value}`
    pub(crate) fn save(&mut self, step: &Step, value: &Value) -> Result<(), String> {
        let Some(Value::Object(names)) = step.modifier("save") else { return Ok(()) };
        for (name, path) in names {
            let pointer =
                path.as_str().filter(|path| !path.is_empty()).map(|path| format!("/{}", path.replace('.', "/")));
            let part = value.pointer(&pointer.unwrap_or_default()).ok_or_else(|| format!("no {path} in {value}"))?;
            self.stage.variables.set(name, part.clone());
        }
        Ok(())
    }

    /// The scenario is over: nothing of it may still run in the adapter.
    pub(crate) async fn clean_up(mut self) -> Result<(), String> {
        for seat in self.stage.seats.values_mut() {
            seat.proxy.fault("heal");
            seat.bends.set([]);
        }
        let events = self.stage.adapter.events.read(|all| all[self.first_event.min(all.len())..].to_vec());
        for run in events.iter().filter(|event| event["event"] == "started").map(|event| &event["run"]) {
            if !self.finished.iter().any(|(finished, _)| finished == run) {
                // The handler may have ended by itself.
                let _ = self.command("finish", &json!({"run": run, "outcome": "release"}), PATIENCE).await;
            }
        }
        let ended = events.iter().filter(|event| event["event"] == "ended");
        let ended: BTreeSet<&str> = ended.filter_map(|event| event["worker"].as_str()).collect();
        for worker in self.workers.iter().filter(|worker| !ended.contains(worker.as_str())) {
            self.command("stop", &json!({"worker": worker}), PATIENCE).await?;
        }
        for client in &self.clients {
            self.command("close", &json!({"client": client}), PATIENCE).await?;
        }
        Ok(())
    }

    pub(crate) async fn command(&self, what: &str, fields: &Value, within: Duration) -> Result<Value, String> {
        let fields = fields.as_object().cloned().unwrap_or_default();
        self.stage.adapter.command(what, fields, within).await
    }
}
