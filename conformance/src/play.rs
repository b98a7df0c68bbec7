//! Plays one scenario: its steps one after another, then what must hold in each.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures::future::try_join_all;
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;

use crate::{pattern, rules, stage::Stage};

/// How long a step waits, unless it or the command line says otherwise. Only a failure takes so long: machines may be busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
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
        self.release_handlers().await;
        self.stop_workers().await?;
        for client in &self.clients {
            self.command("close", &json!({"client": client}), PATIENCE).await?;
        }
        Ok(())
    }

    /// The handlers that have started, and were not told how to end.
    fn running(&self, events: &[Value]) -> Vec<Value> {
        let started = events.iter().skip(self.first_event).filter(|event| event["event"] == "started");
        let runs = started.map(|event| event["run"].clone());
        runs.filter(|run| !self.finished.iter().any(|(finished, _)| finished == run)).collect()
    }

    async fn release_handlers(&mut self) {
        for run in self.stage.adapter.events.read(|all| self.running(all)) {
            // It may have ended by itself.
            let _ = self.command("finish", &json!({"run": run, "outcome": "release"}), PATIENCE).await;
            self.finished.push((run, usize::MAX));
        }
    }

    /// Stops all workers. Until they know that they stop, their handlers may begin: these are released, too.
    async fn stop_workers(&mut self) -> Result<(), String> {
        let adapter = self.stage.adapter;
        let has_ended = |worker: &str, all: &[Value]| {
            let mut since = all.iter().skip(self.first_event);
            since.any(|event| event["event"] == "ended" && event["worker"] == worker)
        };
        let mut stops = Vec::new();
        for worker in &self.workers {
            if !adapter.events.read(|all| has_ended(worker, all)) {
                let fields = Map::from_iter([("worker".to_owned(), json!(worker))]);
                stops.push(adapter.answer("stop", adapter.send("stop", fields)?, PATIENCE));
            }
        }
        let mut stopped = std::pin::pin!(try_join_all(stops));
        loop {
            let begun = |all: &[Value]| Some(()).filter(|()| !self.running(all).is_empty());
            tokio::select! {
                all = stopped.as_mut() => return all.map(drop),
                Some(()) = adapter.events.wait(2 * PATIENCE, begun) => self.release_handlers().await,
            }
        }
    }

    pub(crate) async fn command(&self, what: &str, fields: &Value, within: Duration) -> Result<Value, String> {
        let fields = fields.as_object().cloned().unwrap_or_default();
        self.stage.adapter.command(what, fields, within).await
    }
}
