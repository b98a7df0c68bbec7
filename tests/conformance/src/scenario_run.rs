//! Runs one scenario: its steps one after another, and then the rules that hold in every scenario.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures::future::try_join_all;
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;

use crate::{environment::Environment, pattern, rules};

/// Default timeout of a step. It is long because the machine may be busy; a passing step does not wait for it.
pub(crate) const STEP_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of the step `connect`, long enough for languages that warm up first.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(40);

pub(crate) struct ScenarioRun<'w> {
    pub(crate) environment: Environment<'w>,
    /// Index of the scenario's first event in the adapter's log.
    pub(crate) first_event: usize,
    /// Indexes of the events that steps have already matched.
    pub(crate) consumed: BTreeSet<usize>,
    /// Commands with the modifier `later`, by the name that the modifier gives: the command's verb, and its pending
    /// answer.
    pub(crate) later: BTreeMap<String, (String, oneshot::Receiver<Value>)>,
    /// Handler runs for which `finish` was sent, each with the length of the adapter's log at that time.
    pub(crate) finished: Vec<(Value, usize)>,
    pub(crate) workers: BTreeSet<String>,
    /// Maximum number of concurrent handlers, by worker and task type.
    pub(crate) limits: BTreeMap<(String, String), usize>,
    pub(crate) clients: BTreeSet<String>,
    step_timeout: Duration,
}

/// A step: its verb, the verb's argument, and its modifiers, such as the expected answer.
pub(crate) struct Step {
    pub(crate) verb: String,
    pub(crate) argument: Value,
    pub(crate) more: Map<String, Value>,
    pub(crate) timeout: Duration,
}

impl Step {
    pub(crate) fn within(&self) -> Duration {
        let usual = if self.verb == "connect" { CONNECT_TIMEOUT } else { self.timeout };
        self.more.get("within_ms").and_then(Value::as_u64).map_or(usual, Duration::from_millis)
    }

    pub(crate) fn modifier(&self, name: &str) -> Option<&Value> {
        self.more.get(name)
    }
}

/// Fields of a step other than its verb.
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

impl<'w> ScenarioRun<'w> {
    pub(crate) fn new(environment: Environment<'w>, step_timeout: Duration) -> Self {
        let first_event = environment.adapter.events.read(<[Value]>::len);
        Self {
            environment,
            first_event,
            consumed: BTreeSet::new(),
            later: BTreeMap::new(),
            finished: Vec::new(),
            workers: BTreeSet::new(),
            limits: BTreeMap::new(),
            clients: BTreeSet::new(),
            step_timeout,
        }
    }

    /// Runs all steps and checks the rules. The error describes how the client failed.
    pub(crate) async fn run(&mut self, steps: &[Map<String, Value>]) -> Result<(), String> {
        for (index, step) in steps.iter().enumerate() {
            let result = self.step(step).await;
            result.map_err(|why| format!("step {} ({}): {why}", index + 1, pattern::short(&json!(step))))?;
        }
        rules::check_all(self)
    }

    async fn step(&mut self, step: &Map<String, Value>) -> Result<(), String> {
        let (verbs, more): (Vec<_>, Vec<_>) = step.iter().partition(|(name, _)| !MODIFIERS.contains(&name.as_str()));
        let [(verb, argument)] = verbs.as_slice() else {
            return Err(format!("a step must have one verb; this one has {}", verbs.len()));
        };
        let more: Map<String, Value> = more.into_iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        let each = more.get("each").map(|each| self.environment.variables.fill(each)).transpose()?;
        let rounds = match &each {
            Some(Value::Array(list)) => list.clone(),
            Some(other) => return Err(format!("each must be a list, got {other}")),
            None => (0..more.get("times").and_then(Value::as_u64).unwrap_or(1)).map(|index| json!(index)).collect(),
        };
        let mut runs = Vec::new();
        for value in rounds {
            self.environment.variables.set("each", value);
            let mut filled = Map::new();
            for (name, value) in more.iter().filter(|(name, _)| *name != "save") {
                filled.insert(name.clone(), self.environment.variables.fill(value)?);
            }
            if let Some(save) = more.get("save") {
                filled.insert("save".to_owned(), save.clone());
            }
            let argument = self.environment.variables.fill(argument)?;
            let step_timeout = self.step_timeout;
            self.act(&Step { verb: (*verb).clone(), argument, more: filled, timeout: step_timeout }).await?;
            runs.push(self.environment.variables.get("run").clone());
        }
        if let Some(name) = more.get("runs").and_then(Value::as_str) {
            self.environment.variables.set(name, runs);
        }
        Ok(())
    }

    /// Checks an answer of the adapter, and saves parts of it in variables.
    pub(crate) fn check_answer(&mut self, step: &Step, answer: &Value) -> Result<(), String> {
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

    /// Saves parts of a value in variables, as the modifier `save: {name: path.in.the.value}` says.
    pub(crate) fn save(&mut self, step: &Step, value: &Value) -> Result<(), String> {
        let Some(Value::Object(names)) = step.modifier("save") else { return Ok(()) };
        for (name, path) in names {
            let pointer =
                path.as_str().filter(|path| !path.is_empty()).map(|path| format!("/{}", path.replace('.', "/")));
            let part = value.pointer(&pointer.unwrap_or_default()).ok_or_else(|| format!("no {path} in {value}"))?;
            self.environment.variables.set(name, part.clone());
        }
        Ok(())
    }

    /// Ends all handlers, workers and clients of the scenario, so that the next one can use the adapter.
    pub(crate) async fn clean_up(mut self) -> Result<(), String> {
        for address in self.environment.addresses.values_mut() {
            address.proxy.fault("heal");
            address.rewrites.set([]);
        }
        self.release_handlers().await;
        self.stop_workers().await?;
        for client in &self.clients {
            self.command("close", &json!({"client": client}), STEP_TIMEOUT).await?;
        }
        Ok(())
    }

    /// Handler runs that have started and for which no `finish` was sent.
    fn running(&self, events: &[Value]) -> Vec<Value> {
        let started = events.iter().skip(self.first_event).filter(|event| event["event"] == "started");
        let runs = started.map(|event| event["run"].clone());
        runs.filter(|run| !self.finished.iter().any(|(finished, _)| finished == run)).collect()
    }

    async fn release_handlers(&mut self) {
        for run in self.environment.adapter.events.read(|all| self.running(all)) {
            // Ignore an error: the handler may already have ended after a cancellation.
            let _ = self.command("finish", &json!({"run": run, "outcome": "release"}), STEP_TIMEOUT).await;
            self.finished.push((run, usize::MAX));
        }
    }

    /// Stops all workers, and meanwhile releases the jobs of handlers that still start.
    async fn stop_workers(&mut self) -> Result<(), String> {
        let adapter = self.environment.adapter;
        let has_ended = |worker: &str, all: &[Value]| {
            let mut since = all.iter().skip(self.first_event);
            since.any(|event| event["event"] == "ended" && event["worker"] == worker)
        };
        let mut stops = Vec::new();
        for worker in &self.workers {
            if !adapter.events.read(|all| has_ended(worker, all)) {
                let fields = Map::from_iter([("worker".to_owned(), json!(worker))]);
                stops.push(adapter.answer("stop", adapter.send("stop", fields)?, STEP_TIMEOUT));
            }
        }
        let mut stopped = std::pin::pin!(try_join_all(stops));
        loop {
            let begun = |all: &[Value]| Some(()).filter(|()| !self.running(all).is_empty());
            tokio::select! {
                all = stopped.as_mut() => return all.map(drop),
                Some(()) = adapter.events.wait(2 * STEP_TIMEOUT, begun) => self.release_handlers().await,
            }
        }
    }

    pub(crate) async fn command(&self, verb: &str, fields: &Value, within: Duration) -> Result<Value, String> {
        let fields = fields.as_object().cloned().unwrap_or_default();
        self.environment.adapter.command(verb, fields, within).await
    }
}
