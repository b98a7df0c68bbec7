//! Memory and processor time, from `/proc`. On systems without it they are unknown.

use std::{fs, time::Instant};

use super::Environment;

/// Ticks of `/proc/PID/stat` in a second: `USER_HZ`, which Linux keeps at 100 for all programs.
const TICKS: f64 = 100.0;

/// The resources that an environment had used at some time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    /// When it was taken.
    pub(crate) at: Instant,
    /// Processor seconds of this process, of the brokers, of Postgres.
    pub(crate) cpu: [Option<f64>; 3],
    /// Resident bytes of the brokers.
    pub(crate) resident: Option<u64>,
    /// Bytes of write-ahead log.
    pub(crate) wal: Option<i64>,
    /// How often threads of the brokers, of Postgres, were put on a processor.
    pub(crate) switches: [Option<u64>; 2],
}

impl Mark {
    /// Takes it.
    pub(crate) async fn take(environment: &Environment) -> Self {
        let (mut postgres, mut wal, mut switched) = (None, None, None);
        for database in environment.databases() {
            add(&mut wal, database.wal_bytes().await.ok());
            if environment.is_local {
                // If a session ends in between, its time is lost; brokers keep theirs.
                let pids = database.pids().await.ok();
                add(&mut postgres, pids.as_ref().map(|pids| pids.iter().copied().filter_map(cpu_seconds).sum::<f64>()));
                add(&mut switched, pids.map(|pids| pids.into_iter().filter_map(switches).sum::<u64>()));
            }
        }
        let brokers: Vec<u32> = environment.broker_pids().collect();
        let cpu = [cpu_seconds(std::process::id()), sum(&brokers, cpu_seconds), postgres];
        let switches = [sum(&brokers, switches), switched];
        Self { at: Instant::now(), cpu, resident: environment.resident(), wal, switches }
    }

    /// Adds what was used between two others. What is resident is taken from the later one.
    pub(crate) fn add(&mut self, between: &[Self; 2]) {
        let [before, after] = between;
        for (own, (before, after)) in self.cpu.iter_mut().zip(before.cpu.into_iter().zip(after.cpu)) {
            *own = own.zip(after.zip(before)).map(|(own, (after, before))| own + after - before);
        }
        self.wal = self.wal.zip(after.wal.zip(before.wal)).map(|(own, (after, before))| own + after - before);
        for (own, (before, after)) in self.switches.iter_mut().zip(before.switches.into_iter().zip(after.switches)) {
            *own = own.zip(after.zip(before)).map(|(own, (after, before))| own + after.saturating_sub(before));
        }
        self.resident = after.resident;
    }
}

impl Environment {
    /// Resident bytes of the brokers that we started.
    pub(crate) fn resident(&self) -> Option<u64> {
        sum(&self.broker_pids().collect::<Vec<_>>(), resident)
    }
}

fn add<T: std::ops::Add<Output = T>>(sum: &mut Option<T>, more: Option<T>) {
    *sum = match (sum.take(), more) {
        (Some(sum), Some(more)) => Some(sum + more),
        (sum, more) => sum.or(more),
    };
}

/// `None` if there is nothing to add, or a part is unknown.
fn sum<T: std::iter::Sum>(pids: &[u32], of: impl Fn(u32) -> Option<T>) -> Option<T> {
    if pids.is_empty() {
        return None;
    }
    pids.iter().map(|&pid| of(pid)).sum()
}

/// Processor seconds that a process has used, its threads together.
pub(crate) fn cpu_seconds(pid: u32) -> Option<f64> {
    cpu_of(pid, None)
}

/// The same, if it is of this process group.
pub(super) fn cpu_of(pid: u32, group: Option<u32>) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything.
    let (_, fields) = stat.rsplit_once(')')?;
    if group.is_some_and(|group| fields.split_whitespace().nth(2) != Some(&group.to_string())) {
        return None;
    }
    let ticks = fields.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().ok());
    Some(ticks.sum::<Option<u64>>()? as f64 / TICKS)
}

/// How often threads of a process left a processor, because they waited or because it was another one's turn.
fn switches(pid: u32) -> Option<u64> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let of_thread = |path: std::path::PathBuf| -> Option<u64> {
        let status = fs::read_to_string(path.join("status")).ok()?;
        let counts = status.lines().filter(|line| line.contains("ctxt_switches:"));
        Some(counts.filter_map(|line| line.rsplit_once(':')?.1.trim().parse::<u64>().ok()).sum())
    };
    // A thread that ends in between takes its count along.
    Some(threads.filter_map(|thread| of_thread(thread.ok()?.path())).sum())
}

pub(super) fn resident(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(kib.trim().trim_end_matches(" kB").parse::<u64>().ok()? << 10)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_memory_and_time_and_one_that_is_not_there_has_neither() {
        let us = std::process::id();
        assert!(resident(us).is_some_and(|bytes| bytes > 1 << 16));
        assert!(cpu_seconds(us).is_some() && switches(us).is_some_and(|times| times > 0));
        assert_eq!((resident(0), cpu_seconds(0), switches(0)), (None, None, None));
        assert_eq!(sum(&[us, 0], resident), None);
    }
}
