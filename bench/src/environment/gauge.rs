//! Reads memory and processor time from `/proc`. On systems without `/proc` the values are unknown.

use std::{fs, time::Instant};

use super::Environment;

/// Ticks per second in `/proc/PID/stat`: `USER_HZ`, which is always 100 for programs on Linux.
const TICKS: f64 = 100.0;

/// Resource counters of the benchmark, the brokers and Postgres at one time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    pub(crate) at: Instant,
    /// Processor seconds of this process, of the brokers and of Postgres.
    cpu: [Option<f64>; 3],
    /// Resident bytes of the brokers.
    resident: Option<u64>,
    /// Bytes of write-ahead log.
    wal: Option<i64>,
    /// Context switches of the brokers and of Postgres.
    switches: [Option<u64>; 2],
}

impl Mark {
    pub(crate) async fn take(environment: &Environment) -> Self {
        let (mut postgres, mut wal, mut switched) = (None, None, None);
        if let Some(database) = &environment.database {
            wal = database.wal_bytes().await.ok();
            if environment.is_local {
                // Processor time of a Postgres session that ended before this reading is not counted. Brokers keep their
                // sessions open.
                let pids = database.pids().await.ok();
                postgres = pids.as_ref().map(|pids| pids.iter().copied().filter_map(cpu_seconds).sum::<f64>());
                switched = pids.map(|pids| pids.into_iter().filter_map(switches).sum::<u64>());
            }
        }
        let brokers: Vec<u32> = environment.broker_pids().collect();
        let cpu = [cpu_seconds(std::process::id()), sum(&brokers, cpu_seconds), postgres];
        let switches = [sum(&brokers, switches), switched];
        Self { at: Instant::now(), cpu, resident: environment.resident(), wal, switches }
    }

    /// Returns the resources used since the reading `before`.
    pub(crate) fn since(&self, before: &Self) -> Used {
        Used {
            cpu: std::array::from_fn(|at| Some(self.cpu[at]? - before.cpu[at]?)),
            switches: std::array::from_fn(|at| Some(self.switches[at]?.saturating_sub(before.switches[at]?))),
            wal: self.wal.zip(before.wal).map(|(after, before)| after - before),
            resident: [before.resident, self.resident],
        }
    }
}

/// Resources used between two readings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Used {
    /// Processor seconds of this process, of the brokers and of Postgres.
    pub(crate) cpu: [Option<f64>; 3],
    /// Context switches of the brokers and of Postgres.
    pub(crate) switches: [Option<u64>; 2],
    /// Bytes of write-ahead log.
    pub(crate) wal: Option<i64>,
    /// Resident bytes of the brokers at the start and at the end.
    pub(crate) resident: [Option<u64>; 2],
}

impl Used {
    /// Adds the resources used in a later measurement.
    pub(crate) fn add(&mut self, later: &Self) {
        self.cpu = std::array::from_fn(|at| Some(self.cpu[at]? + later.cpu[at]?));
        self.switches = std::array::from_fn(|at| Some(self.switches[at]? + later.switches[at]?));
        self.wal = self.wal.zip(later.wal).map(|(total, more)| total + more);
        self.resident[1] = later.resident[1];
    }
}

impl Environment {
    /// Resident bytes of the brokers that this process started.
    pub(crate) fn resident(&self) -> Option<u64> {
        sum(&self.broker_pids().collect::<Vec<_>>(), resident)
    }
}

/// Sums a value over processes; `None` if the list is empty or one value is unknown.
fn sum<T: std::iter::Sum>(pids: &[u32], read: impl Fn(u32) -> Option<T>) -> Option<T> {
    if pids.is_empty() {
        return None;
    }
    pids.iter().map(|&pid| read(pid)).sum()
}

/// Processor seconds of a process with all its threads.
fn cpu_seconds(pid: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The process name may contain spaces and parentheses, so skip to the last `)`.
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().ok());
    Some(ticks.sum::<Option<u64>>()? as f64 / TICKS)
}

/// Number of context switches of a process, voluntary and involuntary.
fn switches(pid: u32) -> Option<u64> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let of_thread = |path: std::path::PathBuf| -> Option<u64> {
        let status = fs::read_to_string(path.join("status")).ok()?;
        let counts = status.lines().filter(|line| line.contains("ctxt_switches:"));
        Some(counts.filter_map(|line| line.rsplit_once(':')?.1.trim().parse::<u64>().ok()).sum())
    };
    // The kernel keeps context switches per thread, so those of a thread that ended are not counted.
    Some(threads.filter_map(|thread| of_thread(thread.ok()?.path())).sum())
}

fn resident(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(kib.trim().trim_end_matches(" kB").parse::<u64>().ok()? << 10)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn gauges_are_known_for_a_running_process_and_unknown_for_a_missing_one() {
        let us = std::process::id();
        assert!(resident(us).is_some_and(|bytes| bytes > 1 << 16));
        assert!(cpu_seconds(us).is_some() && switches(us).is_some_and(|times| times > 0));
        assert_eq!((resident(0), cpu_seconds(0), switches(0)), (None, None, None));
        assert_eq!(sum(&[us, 0], resident), None);
    }
}
