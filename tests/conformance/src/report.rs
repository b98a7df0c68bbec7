//! The results of the scenarios, as text or as JSON.

use std::time::Duration;

use parking_lot::Mutex;
use serde_json::json;

pub(crate) struct Verdict {
    pub(crate) name: String,
    pub(crate) why: String,
    pub(crate) problem: Option<String>,
    pub(crate) excuse: Option<String>,
    pub(crate) took: Duration,
}

impl Verdict {
    /// Returns the problem to report, if any. A scenario that passes although its failure is excused is a problem.
    fn failure(&self) -> Option<String> {
        match (&self.problem, &self.excuse) {
            (Some(problem), None) => Some(problem.clone()),
            (None, Some(excuse)) => {
                Some(format!("the scenario passes: remove it from the --excuses file, where its reason is: {excuse}"))
            }
            _ => None,
        }
    }
}

/// All results so far. Each result is printed at once, unless the output is JSON.
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
            print(&verdict);
        }
        self.verdicts.lock().push(verdict);
    }

    /// Prints the totals. Returns true if no scenario failed.
    #[allow(clippy::print_stdout, reason = "prints the result of the program")]
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

#[allow(clippy::print_stdout, reason = "prints the result of the program")]
fn print(verdict: &Verdict) {
    let took = verdict.took.as_secs_f64();
    match (verdict.failure(), &verdict.excuse) {
        (Some(failure), _) => {
            println!("FAILED  {} ({took:.1} s)\n    {failure}\n    Why it matters: {}", verdict.name, verdict.why);
        }
        (None, Some(excuse)) => println!("excused {} ({took:.1} s): {excuse}", verdict.name),
        (None, None) => println!("passed  {} ({took:.1} s)", verdict.name),
    }
}
