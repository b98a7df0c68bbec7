//! The verbs of steps: commands for the adapter, its events, messages on the wire, and actions on brokers and network.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    dynamic, oracle,
    pattern::{self, check, matches, short},
    scenario_run::{ScenarioRun, Step},
};

/// Step verbs that are sent to the adapter as commands, with the step's argument as fields.
const COMMANDS: &[&str] = &[
    "connect", "close", "enqueue", "produce", "wait", "call", "work", "finish", "progress", "extend", "results",
    "stop", "spans",
];
/// Pause between two repetitions of a command.
const REPEAT_INTERVAL: Duration = Duration::from_millis(200);
const EVENTS: &[&str] = &["started", "cancelled", "ended", "around"];

impl ScenarioRun<'_> {
    pub(crate) async fn act(&mut self, step: &Step) -> Result<(), String> {
        let verb = step.verb.as_str();
        if COMMANDS.contains(&verb) {
            return self.send_command(step).await;
        }
        if EVENTS.contains(&verb) {
            return self.event(step).await;
        }
        match verb {
            "answer" => self.pending_answer(step).await,
            "job" => self.job(step).await,
            "drive" => self.drive(step).await,
            "sql" => self.sql(step).await,
            "oracle" => self.oracle(step).await,
            "wire" => self.wire(step).await,
            "fault" => self.each_broker(step, |run, name, fault| {
                let found = fault.as_str().is_some_and(|fault| run.environment.addresses[name].proxy.fault(fault));
                found.then_some(()).ok_or_else(|| format!("unknown fault {fault}"))
            }),
            "rewrite" => self.each_broker(step, |run, name, names| {
                let names: Vec<&str> = names.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                run.environment.addresses[name]
                    .rewrites
                    .set(names)
                    .then_some(())
                    .ok_or_else(|| "unknown rewrite".to_owned())
            }),
            "broker" => self.broker(step).await,
            "signal" => self.environment.adapter.signal(step.argument.as_str().unwrap_or_default()),
            "exit" => self.exit(step).await,
            "write" => write(step),
            "set" => self.set(step),
            "check" => check(step.modifier("ok").unwrap_or(&Value::Null), &step.argument, "value"),
            _ => Err(format!("unknown verb {verb}")),
        }
    }

    /// Fields of a command to the adapter, with default values for names such as `client` and `worker`.
    fn fields(&mut self, step: &Step) -> Map<String, Value> {
        let verb = step.verb.as_str();
        let mut fields = match &step.argument {
            Value::Object(fields) => fields.clone(),
            Value::Array(list) => Map::from_iter([("jobs".to_owned(), json!(list))]),
            _ => Map::new(),
        };
        let mut or = |name: &str, value: Value| {
            fields.entry(name).or_insert(value);
        };
        match verb {
            "finish" | "progress" | "extend" | "results" => or("run", self.environment.variables.get("run").clone()),
            "stop" => or("worker", json!("w")),
            "spans" => {}
            _ => or("client", json!("c")),
        }
        match verb {
            "work" => or("worker", json!("w")),
            "connect" => {
                or("addresses", json!([self.environment.variables.get("a"), self.environment.variables.get("b")]));
            }
            "wait" => {
                or("timeout_ms", json!(20_000));
                or("ids", self.environment.variables.get("ids").clone());
            }
            _ => {}
        }
        // An explicit null in a scenario removes the field, so that the client's default applies.
        fields.retain(|_, value| !value.is_null());
        fields
    }

    async fn send_command(&mut self, step: &Step) -> Result<(), String> {
        let fields = self.fields(step);
        let text = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        match step.verb.as_str() {
            "work" => self.record_worker(&text("worker"), &fields),
            "connect" => drop(self.clients.insert(text("client"))),
            "close" => drop(self.clients.remove(&text("client"))),
            "finish" => {
                let run = fields.get("run").cloned().unwrap_or_default();
                self.finished.push((run, self.environment.adapter.events.read(<[Value]>::len)));
            }
            _ => {}
        }
        let adapter = self.environment.adapter;
        if step.modifier("retry").is_some() || step.modifier("until").is_some() {
            return self.repeat_command(step, &fields).await;
        }
        let receiver = adapter.send(&step.verb, fields)?;
        if let Some(name) = step.modifier("later").and_then(Value::as_str) {
            self.later.insert(name.to_owned(), (step.verb.clone(), receiver));
            return Ok(());
        }
        let answer = adapter.answer(&step.verb, receiver, step.within()).await?;
        self.handle_answer(step, answer)
    }

    fn record_worker(&mut self, worker: &str, fields: &Map<String, Value>) {
        self.workers.insert(worker.to_owned());
        for of in fields.get("types").and_then(Value::as_array).into_iter().flatten() {
            let limit = of["concurrency"].as_u64().unwrap_or_default() as usize;
            self.limits.insert((worker.to_owned(), of["name"].as_str().unwrap_or_default().to_owned()), limit);
        }
    }

    /// Repeats a command until its answer is as expected. With the modifier `until`, also until a matching message was
    /// on the wire.
    async fn repeat_command(&mut self, step: &Step, fields: &Map<String, Value>) -> Result<(), String> {
        let deadline = Instant::now() + step.within();
        loop {
            let answer = self.environment.adapter.command(&step.verb, fields.clone(), step.within()).await?;
            let mut result = self.handle_answer(step, answer);
            if let Some(wanted) = step.modifier("until").filter(|_| result.is_ok()) {
                let is_there = self.environment.wire.read(|all| all.iter().any(|seen| matches(wanted, seen)));
                result =
                    is_there.then_some(()).ok_or_else(|| format!("no message on the wire matches {}", short(wanted)));
            }
            if result.is_ok() || Instant::now() >= deadline {
                return result;
            }
            sleep(REPEAT_INTERVAL).await;
        }
    }

    /// Step `drive: {count: 20, outcome: ok}`: waits for the start of 20 handlers, one after another, and finishes
    /// each.
    async fn drive(&mut self, step: &Step) -> Result<(), String> {
        let count = step.argument["count"].as_u64().unwrap_or_default();
        let mut finish = step.argument.clone();
        finish.as_object_mut().map(|fields| fields.remove("count"));
        let more = step.more.clone();
        for _ in 0..count {
            let started = Step { verb: "started".to_owned(), argument: json!({}), more: more.clone(), ..*step };
            self.event(&started).await?;
            let finish = Step { verb: "finish".to_owned(), argument: finish.clone(), more: Map::new(), ..*step };
            self.send_command(&finish).await?;
        }
        Ok(())
    }

    fn handle_answer(&mut self, step: &Step, mut answer: Value) -> Result<(), String> {
        if step.verb == "wait" {
            dynamic::normalize("howdah.v1.Job", answer.pointer_mut("/ok/jobs"));
        }
        if step.verb == "results" {
            dynamic::normalize("howdah.v1.DependencyResult", answer.pointer_mut("/ok/dependencies"));
        }
        let method = step.argument.get("method").and_then(Value::as_str).and_then(dynamic::method);
        if let Some(method) = method.filter(|_| step.verb == "call") {
            dynamic::normalize(method.output().full_name(), answer.pointer_mut("/ok/responses"));
        }
        if let Some(jobs) = answer.pointer("/ok/jobs").or(answer.pointer("/ok/results")).and_then(Value::as_array) {
            let ids: Vec<Value> = jobs.iter().filter_map(|job| job.get("id").cloned()).collect();
            if step.verb != "wait" && !ids.is_empty() {
                self.environment.variables.set("id", ids[0].clone());
                self.environment.variables.set("ids", ids);
            }
        }
        self.check_answer(step, &answer)
    }

    async fn pending_answer(&mut self, step: &Step) -> Result<(), String> {
        let name = step.argument.as_str().unwrap_or_default();
        let (verb, receiver) = self.later.remove(name).ok_or_else(|| format!("no command has later: {name}"))?;
        let answer = self.environment.adapter.answer(&verb, receiver, step.within()).await?;
        self.handle_answer(&Step { verb, argument: Value::Null, more: step.more.clone(), ..*step }, answer)
    }

    async fn event(&mut self, step: &Step) -> Result<(), String> {
        let mut wanted = step.argument.as_object().cloned().unwrap_or_default();
        wanted.insert("event".to_owned(), json!(step.verb));
        let wanted = Value::Object(wanted);
        let (first, consumed) = (self.first_event, &self.consumed);
        let find = |all: &[Value]| {
            let mut found = all.iter().enumerate().skip(first).filter(|(index, _)| !consumed.contains(index));
            found.find(|(_, event)| matches(&wanted, event)).map(|(index, event)| (index, event.clone()))
        };
        if step.modifier("none").is_some() {
            let found = self.environment.adapter.events.read(find);
            return found.map_or(Ok(()), |(_, event)| Err(format!("expected no match, got {}", short(&event))));
        }
        let Some((index, event)) = self.environment.adapter.events.wait(step.within(), find).await else {
            let open = |all: &[Value]| {
                let mut rest = all.iter().enumerate().skip(first).filter(|(index, _)| !consumed.contains(index));
                json!(rest.by_ref().map(|(_, event)| event.clone()).collect::<Vec<_>>())
            };
            let rest = self.environment.adapter.events.read(open);
            return Err(format!("expected an event {}, got only {}", short(&wanted), short(&rest)));
        };
        self.consumed.insert(index);
        if step.verb == "started" {
            self.environment.variables.set("run", event.get("run").cloned().unwrap_or_default());
            self.environment.variables.set("job", event.get("job").cloned().unwrap_or_default());
        }
        self.save(step, &event)
    }

    /// Step `job`: reads a job from a broker, without the client under test, until the job is as expected.
    async fn job(&mut self, step: &Step) -> Result<(), String> {
        let mut wanted = step.argument.as_object().cloned().unwrap_or_default();
        let id = wanted.remove("id").unwrap_or_else(|| self.environment.variables.get("id").clone());
        let broker = wanted.remove("broker");
        let argument = json!({"method": "howdah.v1.JobService/GetJob", "request": {"id": id}, "broker": broker});
        let mut more = Map::from_iter([("ok".to_owned(), json!([{"job": wanted}]))]);
        more.extend(step.more.iter().filter(|(name, _)| *name == "within_ms").map(|(k, v)| (k.clone(), v.clone())));
        more.extend(step.more.get("save").map(|save| ("save".to_owned(), save.clone())));
        self.oracle(&Step { verb: "oracle".to_owned(), argument, more, ..*step }).await
    }

    /// Step `oracle`: calls a broker, without the client under test, until the answer is as expected.
    async fn oracle(&mut self, step: &Step) -> Result<(), String> {
        let empty = Value::Null;
        let wanted = step.modifier("ok").unwrap_or(&empty);
        let method = step.argument.get("method").and_then(Value::as_str).unwrap_or_default();
        let request = step.argument.get("request").cloned().unwrap_or_else(|| json!({}));
        let address = match step.argument.get("broker").and_then(Value::as_str) {
            Some(name) => self.environment.address(name)?.dedicated.as_ref().map(|broker| broker.grpc.clone()),
            None => Some(self.environment.world.b.grpc.clone()),
        };
        let address = address.ok_or("the broker of this call is shared, or has not started")?;
        let call = oracle::until(&address, method, &request, step.within(), |answer| {
            if wanted.is_null() { Ok(()) } else { check(wanted, answer, "answer") }
        });
        let answer = call.await?;
        self.save(step, &answer)
    }

    /// Step `wire`: waits until at least one message matches, or until the number of matching messages matches `count`. With
    /// `none`, fails if a message has already matched.
    async fn wire(&mut self, step: &Step) -> Result<(), String> {
        let wanted = &step.argument;
        let find = |all: &[Value]| all.iter().filter(|seen| matches(wanted, seen)).cloned().collect::<Vec<_>>();
        if step.modifier("none").is_some() {
            let found = self.environment.wire.read(find);
            return found.first().map_or(Ok(()), |first| Err(format!("expected no match, got {}", short(first))));
        }
        let one = json!({"$ge": 1});
        let count = step.modifier("count").unwrap_or(&one);
        let enough = |all: &[Value]| Some(find(all)).filter(|found| matches(count, &json!(found.len())));
        let Some(found) = self.environment.wire.wait(step.within(), enough).await else {
            let (found, all) = self.environment.wire.read(|all| (find(all).len(), summary(all)));
            return Err(format!("expected {count} messages {}, got {found}; the last were {all}", short(wanted)));
        };
        self.save(step, found.last().unwrap_or(&Value::Null))
    }

    fn each_broker(
        &mut self,
        step: &Step,
        act: impl Fn(&mut Self, &str, &Value) -> Result<(), String>,
    ) -> Result<(), String> {
        for (name, value) in step.argument.as_object().into_iter().flatten() {
            self.environment.address(name)?;
            act(self, name, value)?;
        }
        Ok(())
    }

    /// Step `broker: {a: stop}`: starts, stops or kills a broker (`start`, `stop`, `kill`), or waits until it has ended
    /// (`ended`).
    async fn broker(&mut self, step: &Step) -> Result<(), String> {
        for (name, action) in step.argument.as_object().into_iter().flatten() {
            let (world, variables) = (self.environment.world, self.environment.variables.clone());
            let address = self.environment.address(name)?;
            if action == "start" {
                address.start(world, name, &variables).await?;
                continue;
            }
            let broker =
                address.dedicated.as_ref().ok_or_else(|| format!("the broker {name} is shared, or has not started"))?;
            match action.as_str().unwrap_or_default() {
                "stop" => broker.stop()?,
                "kill" => broker.kill()?,
                "ended" if broker.ended(step.within()).await => {}
                "ended" => return Err(format!("the broker {name} has not ended within {:?}", step.within())),
                _ => return Err(format!("unknown action {action} for brokers")),
            }
        }
        Ok(())
    }

    async fn exit(&mut self, step: &Step) -> Result<(), String> {
        let status = self.environment.adapter.exit(step.within()).await;
        check(&step.argument, &json!(status), "exit")
    }

    /// Step `sql: {database: NAME, text: …}`: runs SQL statements in a database.
    async fn sql(&mut self, step: &Step) -> Result<(), String> {
        let text = |name: &str| step.argument.get(name).and_then(Value::as_str);
        self.environment.world.sql(text("database"), text("text").unwrap_or_default()).await
    }

    fn set(&mut self, step: &Step) -> Result<(), String> {
        for (name, value) in step.argument.as_object().into_iter().flatten() {
            self.environment.variables.set(name, value.clone());
        }
        Ok(())
    }
}

/// Step `write: {path: …, text: …}`: writes a file.
fn write(step: &Step) -> Result<(), String> {
    let text = |name: &str| step.argument.get(name).and_then(Value::as_str).unwrap_or_default();
    std::fs::write(text("path"), text("text")).map_err(|error| error.to_string())
}

/// Formats the last 12 log entries for an error message, each shortened.
fn summary(all: &[Value]) -> String {
    let from = all.len().saturating_sub(12);
    all[from..].iter().map(pattern::short).collect::<Vec<_>>().join("\n      ")
}
