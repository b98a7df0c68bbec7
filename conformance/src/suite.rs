//! Plays all scenarios, several at once, and says how they went.

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
    inventory::Inventory,
    log::Log,
    pattern::short,
    play::{PATIENCE, Play},
    report::{Report, Verdict},
    scenario::Scenario,
    stage::{Setting, Stage},
    world::World,
};

/// The longest time of one scenario.
const LONGEST: Duration = Duration::from_secs(240);

/// The suite and the client that it is held against.
pub(crate) struct Suite {
    pub(crate) command: String,
    pub(crate) world: World,
    pub(crate) inventory: Arc<Inventory>,
    pub(crate) excuses: BTreeMap<String, String>,
    /// Shows all that was seen in scenarios that fail.
    pub(crate) is_verbose: bool,
    pub(crate) patience: Duration,
    pub(crate) numbers: AtomicU64,
}

impl Suite {
    pub(crate) fn new(command: String, world: World, excuses: BTreeMap<String, String>) -> Self {
        let (inventory, numbers) = (Arc::default(), AtomicU64::new(1));
        Self { command, world, inventory, excuses, is_verbose: false, patience: PATIENCE, numbers }
    }

    /// Plays these scenarios in so many lanes.
    pub(crate) async fn run(&self, scenarios: Vec<Scenario>, lanes: usize, report: &Report) {
        let queue = Mutex::new(VecDeque::from(scenarios));
        let lane = async || {
            let mut adapter = None;
            loop {
                let Some(scenario) = queue.lock().pop_front() else { return };
                let begun = Instant::now();
                let played = self.play(&scenario, &mut adapter).await;
                report.add(self.verdict(&scenario, played, begun.elapsed()));
            }
        };
        futures::future::join_all((0..lanes).map(|_| lane())).await;
    }

    fn verdict(&self, scenario: &Scenario, played: Result<(), String>, took: Duration) -> Verdict {
        let name = scenario.name.clone();
        let excuse = self.excuses.get(&name).cloned();
        Verdict { name, why: scenario.why.clone(), problem: played.err(), excuse, took }
    }

    /// Plays one. The adapter is kept for the next one, unless something went wrong.
    async fn play(&self, scenario: &Scenario, kept: &mut Option<Adapter>) -> Result<(), String> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let mut setting = Setting::new(&self.world, scenario, number)?;
        let wire = Log::default();
        let seats = Stage::seats(&self.world, scenario, &mut setting, &self.inventory, &wire).await?;
        let own = scenario.environment.as_ref();
        let environment = own.map(|values| filled(values, &setting)).transpose()?;
        let shared = if own.is_none() { kept.take().filter(|adapter| !adapter.has_ended()) } else { None };
        let adapter = match shared {
            Some(adapter) => adapter,
            None => Adapter::start(&self.command, &environment.unwrap_or_default()).await?,
        };
        let mut play = Play::new(Stage::new(&self.world, &adapter, setting, seats, wire), self.patience);
        let ran = tokio::time::timeout(LONGEST, play.run(&scenario.steps)).await;
        let ran = ran.unwrap_or_else(|_| Err(format!("it is not over after {LONGEST:?}")));
        if let Err(why) = ran {
            return Err(self.explained(why, &play));
        }
        for name in &scenario.covers {
            self.inventory.declared(name);
        }
        let cleaned = if own.is_none() { play.clean_up().await } else { Ok(()) };
        cleaned.map_err(|why| format!("when the scenario was over: {why}"))?;
        if own.is_none() {
            *kept = Some(adapter);
        }
        Ok(())
    }

    fn explained(&self, why: String, play: &Play<'_>) -> String {
        if !self.is_verbose {
            return why;
        }
        let lines =
            |all: &[Value]| all.iter().map(|entry| format!("      {}", short(entry))).collect::<Vec<_>>().join("\n");
        let events = play.stage.adapter.events.read(|all| lines(&all[play.first_event.min(all.len())..]));
        let wire = play.stage.wire.read(lines);
        let log = play.stage.adapter.last_words();
        format!("{why}\n    events:\n{events}\n    wire:\n{wire}\n    log:\n{log}")
    }
}

fn filled(values: &BTreeMap<String, Value>, setting: &Setting) -> Result<BTreeMap<String, String>, String> {
    let fill = |(name, value): (&String, &Value)| {
        let value = setting.variables.fill(value)?;
        Ok((name.clone(), value.as_str().map_or_else(|| json!(value).to_string(), str::to_owned)))
    };
    values.iter().map(fill).collect()
}
