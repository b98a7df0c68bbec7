//! Names by which jobs of one request refer to each other.

use std::collections::{HashMap, HashSet};

use howdah_core::{
    error::Error,
    job::{ClusterSettings, NewJob},
};
use howdah_proto::v1;

use super::{numbers, text};

/// Local names of the jobs of one request.
#[derive(Default)]
pub(super) struct LocalNames {
    // Names of jobs, each with the index of the job.
    names: Vec<(usize, String)>,
    after: Vec<(usize, Vec<String>)>,
}

impl LocalNames {
    /// Moves the local names from the job with the index `i` to this value.
    pub(super) fn take(&mut self, i: usize, job: &mut v1::NewJob, limits: &ClusterSettings) -> Result<(), Error> {
        if !job.local_name.is_empty() {
            text::plain("local_name", &job.local_name, limits.key_bytes)?;
            self.names.push((i, std::mem::take(&mut job.local_name)));
        }
        if job.after.is_empty() && job.after_local.is_empty() && job.on_dependency_failure != 0 {
            let problem = "is set without after or after_local; set one of those too";
            return Err(Error::invalid("on_dependency_failure", problem));
        }
        if !job.after_local.is_empty() {
            numbers::entries("after_local", job.after_local.len(), 0..=limits.batch)?;
            self.after.push((i, std::mem::take(&mut job.after_local)));
        }
        Ok(())
    }

    /// Replaces each local name in a dependency by the index of the job that has the name.
    pub(super) fn resolve(&self, jobs: &mut [NewJob]) -> Result<(), Error> {
        if self.after.is_empty() && self.names.is_empty() {
            return Ok(());
        }
        let mut named: HashMap<&str, usize> = HashMap::new();
        for (i, name) in &self.names {
            if let Some(first) = named.insert(name, *i) {
                let problem = format!(
                    "is {}, which is also the name of jobs[{first}]; give each job its own name",
                    text::shown(name)
                );
                return Err(Error::invalid(format!("jobs[{i}].local_name"), problem));
            }
        }
        let mut after = vec![Vec::new(); jobs.len()];
        for (i, names) in &self.after {
            let index = |(n, name): (usize, &String)| {
                named.get(name.as_str()).copied().ok_or_else(|| {
                    let problem = format!("is {}, which is not a job's local_name in this request", text::shown(name));
                    Error::invalid(format!("jobs[{i}].after_local[{n}]"), problem)
                })
            };
            let mut those = names.iter().enumerate().map(index).collect::<Result<Vec<_>, _>>()?;
            let mut seen = HashSet::new();
            those.retain(|index| seen.insert(*index));
            after[*i] = those;
        }
        if let Some(i) = in_cycle(&after) {
            let problem =
                "leads back to this job, so these jobs would wait for each other forever; remove one dependency";
            return Err(Error::invalid(format!("jobs[{i}].after_local"), problem));
        }
        for (job, those) in jobs.iter_mut().zip(after).filter(|(_, those)| !those.is_empty()) {
            let options = job.options_mut();
            options.after_ordinals = those.into_iter().map(|index| index + 1).collect();
            options.on_dependency_failure.get_or_insert_default();
        }
        Ok(())
    }
}

/// Finds a job that is in a dependency cycle or depends on one. Repeatedly removes jobs without remaining dependencies, and
/// returns a job that is left (Kahn 1962).
fn in_cycle(after: &[Vec<usize>]) -> Option<usize> {
    let mut left: Vec<usize> = after.iter().map(Vec::len).collect();
    let mut behind: Vec<Vec<usize>> = vec![Vec::new(); after.len()];
    for (i, those) in after.iter().enumerate() {
        those.iter().for_each(|&index| behind[index].push(i));
    }
    let mut free: Vec<usize> = (0..after.len()).filter(|&i| left[i] == 0).collect();
    while let Some(i) = free.pop() {
        for &next in &behind[i] {
            left[next] -= 1;
            if left[next] == 0 {
                free.push(next);
            }
        }
    }
    left.iter().position(|&n| n > 0)
}
