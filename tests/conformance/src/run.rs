//! The arguments of the program, and a whole run.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    report::{Report, Verdict},
    scenario::{self, Scenario},
    scenario_run::STEP_TIMEOUT,
    suite::Suite,
    world::World,
};

/// Test a client of Howdah with the conformance suite.
#[derive(Debug, clap::Parser)]
#[command(name = "howdah-conformance", version)]
pub struct Args {
    /// Command that starts the client's adapter (see tests/conformance/ADAPTER.md)
    #[arg(long, value_name = "CMD")]
    client: Option<String>,
    /// Run only scenarios whose names begin with this text; repeatable
    #[arg(long, value_name = "NAME")]
    scenario: Vec<String>,
    /// Print one JSON object at the end, and nothing else
    #[arg(long)]
    json: bool,
    /// Program of the brokers [default: `HOWDAH_BIN`, or howdah in the directory of this program]
    #[arg(long, value_name = "PATH", env = "HOWDAH_BIN")]
    howdah: Option<PathBuf>,
    /// YAML file with the scenarios that this client fails, and the reasons. They are run, and must fail
    #[arg(long, value_name = "FILE")]
    excuses: Option<PathBuf>,
    /// Number of scenarios that run at once
    #[arg(long, value_name = "N", default_value_t = 8)]
    lanes: usize,
    /// Print all events, all messages and the end of the log of failed scenarios
    #[arg(long, short)]
    verbose: bool,
    /// Timeout of a step, unless the scenario sets another one [default: 30000]
    #[arg(long, value_name = "MS")]
    step_timeout_ms: Option<u64>,
    /// List the scenarios and their reasons, and exit
    #[arg(long)]
    list: bool,
}

/// Runs the conformance program. Returns true if the client has passed.
pub async fn run(args: Args) -> Result<bool, String> {
    let scenarios = chosen(scenario::all()?, &args.scenario)?;
    if args.list {
        list(&scenarios);
        return Ok(true);
    }
    let command = args.client.ok_or("--client is missing: give the command of an adapter, --client 'CMD'")?;
    let is_whole = args.scenario.is_empty();
    let excuses = args.excuses.as_deref().map(read_excuses).transpose()?.unwrap_or_default();
    if let Some(unknown) = excuses.keys().find(|name| is_whole && !scenarios.iter().any(|one| one.name == **name)) {
        return Err(format!("--excuses names {unknown}, which is not a scenario; --list shows all"));
    }
    let world = World::start(&program(args.howdah)?).await?;
    let report = Report::new(args.json);
    let suite = Suite {
        is_verbose: args.verbose,
        step_timeout: args.step_timeout_ms.map_or(STEP_TIMEOUT, Duration::from_millis),
        ..Suite::new(command.clone(), world, excuses)
    };
    suite.run(scenarios, args.lanes.max(1), &report).await;
    if is_whole {
        let problem = suite.inventory.missing().err();
        let why = "A scenario covers each call and field of the protocol, or excused.yaml gives a reason.".to_owned();
        let took = Duration::ZERO;
        report.add(Verdict { name: "inventory".to_owned(), why, problem, excuse: None, took });
    }
    Ok(report.end(&command))
}

fn chosen(all: Vec<Scenario>, prefixes: &[String]) -> Result<Vec<Scenario>, String> {
    let is_chosen = |one: &Scenario| prefixes.is_empty() || prefixes.iter().any(|prefix| one.name.starts_with(prefix));
    let chosen: Vec<Scenario> = all.into_iter().filter(is_chosen).collect();
    if chosen.is_empty() { Err(format!("no scenario begins with {prefixes:?}; see --list")) } else { Ok(chosen) }
}

fn read_excuses(path: &Path) -> Result<BTreeMap<String, String>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    serde_norway::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
}

/// Finds the `howdah` program to run as broker.
fn program(given: Option<PathBuf>) -> Result<PathBuf, String> {
    let beside = || Some(std::env::current_exe().ok()?.parent()?.join("howdah"));
    let program = given.or_else(|| beside().filter(|path| path.exists()));
    program.ok_or_else(|| {
        "the program howdah was not found: build it (cargo build), or give its path with --howdah".to_owned()
    })
}

#[allow(clippy::print_stdout, reason = "prints the result of the program")]
fn list(scenarios: &[Scenario]) {
    let mut sorted: Vec<&Scenario> = scenarios.iter().collect();
    sorted.sort_by(|one, other| one.name.cmp(&other.name));
    for scenario in sorted {
        println!("{}\n    {}", scenario.name, scenario.why);
    }
    println!("{} scenarios", scenarios.len());
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn the_command_that_the_docs_show_starts_the_runner() {
        let page = include_str!("../../../docs/reference/conformance.md");
        let line = page
            .lines()
            .find_map(|line| line.strip_prefix("cargo run -p howdah-conformance --bin howdah-conformance -- "))
            .unwrap();
        let (flag, command) = line.split_once(' ').unwrap();
        let args = Args::try_parse_from(["howdah-conformance", flag, command.trim_matches('\'')]).unwrap();
        assert_eq!(args.client.as_deref(), Some("python3 my_client/adapter.py"));
    }
}
