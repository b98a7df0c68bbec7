//! Runs all scenarios, several at once, and reports their results.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{
    adapter::Adapter,
    environment::{Environment, Predefined},
    inventory::Inventory,
    log::Log,
    pattern::short,
    report::{Report, Verdict},
    scenario::Scenario,
    scenario_run::{STEP_TIMEOUT, ScenarioRun},
    world::World,
};

/// Timeout of one scenario.
const SCENARIO_TIMEOUT: Duration = Duration::from_secs(240);

/// The suite, with the command that starts the client under test.
pub(crate) struct Suite {
    pub(crate) command: String,
    pub(crate) world: World,
    pub(crate) inventory: Arc<Inventory>,
    pub(crate) excuses: BTreeMap<String, String>,
    /// Whether to show events, messages and logs of failed scenarios.
    pub(crate) is_verbose: bool,
    pub(crate) step_timeout: Duration,
    pub(crate) numbers: AtomicU64,
}

impl Suite {
    pub(crate) fn new(command: String, world: World, excuses: BTreeMap<String, String>) -> Self {
        let (inventory, numbers) = (Arc::default(), AtomicU64::new(1));
        Self { command, world, inventory, excuses, is_verbose: false, step_timeout: STEP_TIMEOUT, numbers }
    }

    /// Runs the scenarios in `lanes` concurrent lanes. Each lane reuses its adapter.
    pub(crate) async fn run(&self, scenarios: Vec<Scenario>, lanes: usize, report: &Report) {
        let queue = Mutex::new(VecDeque::from(scenarios));
        let lane = async || {
            let mut adapter = None;
            loop {
                let Some(scenario) = queue.lock().pop_front() else { return };
                let begun = Instant::now();
                let result = self.run_scenario(&scenario, &mut adapter).await;
                report.add(self.verdict(&scenario, result, begun.elapsed()));
            }
        };
        futures::future::join_all((0..lanes).map(|_| lane())).await;
    }

    fn verdict(&self, scenario: &Scenario, result: Result<(), String>, took: Duration) -> Verdict {
        let name = scenario.name.clone();
        let excuse = self.excuses.get(&name).cloned();
        Verdict { name, why: scenario.why.clone(), problem: result.err(), excuse, took }
    }

    /// Runs one scenario. Keeps the adapter for the next scenario, unless this one failed.
    async fn run_scenario(&self, scenario: &Scenario, kept: &mut Option<Adapter>) -> Result<(), String> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let mut predefined = Predefined::new(&self.world, scenario, number)?;
        let wire = Log::default();
        let addresses = Environment::addresses(&self.world, scenario, &mut predefined, &self.inventory, &wire).await?;
        let variables = scenario.environment.as_ref();
        let environment = variables.map(|values| filled(values, &predefined)).transpose()?;
        let shared = if variables.is_none() { kept.take().filter(|adapter| !adapter.has_ended()) } else { None };
        let adapter = match shared {
            Some(adapter) => adapter,
            None => Adapter::start(&self.command, &environment.unwrap_or_default()).await?,
        };
        let mut run =
            ScenarioRun::new(Environment::new(&self.world, &adapter, predefined, addresses, wire), self.step_timeout);
        let ran = tokio::time::timeout(SCENARIO_TIMEOUT, run.run(&scenario.steps)).await;
        let ran = ran.unwrap_or_else(|_| Err(format!("the scenario has not ended after {SCENARIO_TIMEOUT:?}")));
        if let Err(why) = ran {
            return Err(self.explained(why, &run));
        }
        for name in &scenario.covers {
            self.inventory.declare(name);
        }
        let cleaned = if variables.is_none() { run.clean_up().await } else { Ok(()) };
        cleaned.map_err(|why| format!("after the scenario: {why}"))?;
        if variables.is_none() {
            *kept = Some(adapter);
        }
        Ok(())
    }

    fn explained(&self, why: String, run: &ScenarioRun<'_>) -> String {
        if !self.is_verbose {
            return why;
        }
        let lines =
            |all: &[Value]| all.iter().map(|entry| format!("      {}", short(entry))).collect::<Vec<_>>().join("\n");
        let events = run.environment.adapter.events.read(|all| lines(&all[run.first_event.min(all.len())..]));
        let wire = run.environment.wire.read(lines);
        let log = run.environment.adapter.log_tail();
        format!("{why}\n    events:\n{events}\n    wire:\n{wire}\n    log:\n{log}")
    }
}

fn filled(values: &BTreeMap<String, Value>, predefined: &Predefined) -> Result<BTreeMap<String, String>, String> {
    let fill = |(name, value): (&String, &Value)| {
        let value = predefined.variables.fill(value)?;
        Ok((name.clone(), value.as_str().map_or_else(|| json!(value).to_string(), str::to_owned)))
    };
    values.iter().map(fill).collect()
}
