//! How the scenarios went, for people or as JSON.

use std::time::Duration;

use parking_lot::Mutex;
use serde_json::json;

/// How one scenario went.
pub(crate) struct Verdict {
    pub(crate) name: String,
    pub(crate) why: String,
    pub(crate) problem: Option<String>,
    pub(crate) excuse: Option<String>,
    pub(crate) took: Duration,
}

impl Verdict {
    /// What is wrong, if something is: an excused scenario must fail.
    fn failure(&self) -> Option<String> {
        match (&self.problem, &self.excuse) {
            (Some(problem), None) => Some(problem.clone()),
            (None, Some(excuse)) => Some(format!("it passes, so its excuse is to go: {excuse}")),
            _ => None,
        }
    }
}

/// All verdicts so far. Failures are told as they come.
pub(crate) struct Report {
    json: bool,
    verdicts: Mutex<Vec<Verdict>>,
}

impl Report {
    pub(crate) fn new(json: bool) -> Self {
        Self { json, verdicts: Mutex::default() }
    }

    pub(crate) fn add(&self, verdict: Verdict) {
        if !self.json {
            tell(&verdict);
        }
        self.verdicts.lock().push(verdict);
    }

    /// Tells the sum; true: nothing failed.
    #[allow(clippy::print_stdout, reason = "it is for this")]
    pub(crate) fn end(&self, client: &str) -> bool {
        let verdicts = self.verdicts.lock();
        let failed = verdicts.iter().filter(|verdict| verdict.failure().is_some()).count();
        let excused = verdicts.iter().filter(|verdict| verdict.excuse.is_some() && verdict.problem.is_some()).count();
        let passed = verdicts.len() - failed - excused;
        if self.json {
            let one = |verdict: &Verdict| {
                json!({
                    "name": verdict.name, "why": verdict.why, "failure": verdict.failure(), "excuse": verdict.excuse,
                    "seconds": verdict.took.as_secs_f64(),
                })
            };
            let scenarios: Vec<_> = verdicts.iter().map(one).collect();
            println!(
                "{}",
                json!({"client": client, "passed": passed, "failed": failed, "excused": excused, "scenarios": scenarios})
            );
            return failed == 0;
        }
        println!("{passed} passed, {failed} failed, {excused} excused");
        failed == 0
    }
}

#[allow(clippy::print_stdout, reason = "it is for this")]
fn tell(verdict: &Verdict) {
    let took = verdict.took.as_secs_f64();
    match (verdict.failure(), &verdict.excuse) {
        (Some(failure), _) => {
            println!("FAILED  {} ({took:.1} s)\n    {failure}\n    Why it matters: {}", verdict.name, verdict.why);
        }
        (None, Some(excuse)) => println!("excused {} ({took:.1} s): {excuse}", verdict.name),
        (None, None) => println!("passed  {} ({took:.1} s)", verdict.name),
    }
}
