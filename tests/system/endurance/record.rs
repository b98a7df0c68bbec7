//! Append-only records of calls and responses, one file per process, outside the system. Each line is a single write, so a killed
//! process leaves complete lines.

use std::{
    fs::{File, OpenOptions},
    io::Write as _,
    path::{Path, PathBuf},
    str::FromStr,
    time::{SystemTime, UNIX_EPOCH},
};

/// Current time in microseconds since 1970. All processes use the clock of this machine.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros() as u64
}

/// An append-only record file.
#[derive(Clone)]
pub(super) struct Record(std::sync::Arc<File>);

impl Record {
    /// Opens `<dir>/<name>.log` for appending.
    pub(super) fn open(dir: &Path, name: &str) -> Self {
        let path = dir.join(format!("{name}.log"));
        Self(File::options().create(true).append(true).open(path).expect("a record").into())
    }

    pub(super) fn write(&self, line: &Line) {
        self.0.as_ref().write_all(line.text().as_bytes()).expect("a line of the record");
    }
}

/// Job id and token of a lease, as a worker received them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Lease {
    pub(super) id: i64,
    pub(super) token: i64,
}

/// An event in a record file, with its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Line {
    /// A producer sends a request for the first time.
    Requested { at: u64, request: String },
    /// An enqueue request succeeded and returned these ids, `after` milliseconds after its last call.
    Accepted { at: u64, request: String, after: u64, ids: Vec<i64> },
    /// An enqueue call failed.
    Refused { at: u64, code: String, after: u64 },
    /// A worker received a job.
    Begun { at: u64, lease: Lease, attempt: u32, task_type: String, name: String },
    /// A worker learned that it lost a lease.
    Lost { at: u64, lease: Lease },
    /// The broker confirmed a progress report that the worker sent at this time.
    Alive { at: u64, lease: Lease },
    /// A worker sends an outcome for the first time.
    Sent { at: u64, lease: Lease, outcome: String },
    /// A worker received the status of an outcome.
    Settled { at: u64, lease: Lease, status: String },
    /// A worker's stream ended or could not be opened.
    Broken { at: u64, why: String },
}

impl Line {
    fn text(&self) -> String {
        match self {
            Self::Requested { at, request } => format!("requested {at} {request}\n"),
            Self::Accepted { at, request, after, ids } => {
                let ids: Vec<String> = ids.iter().map(i64::to_string).collect();
                format!("accepted {at} {request} {after} {}\n", ids.join(","))
            }
            Self::Refused { at, code, after } => format!("refused {at} {code} {after}\n"),
            Self::Begun { at, lease, attempt, task_type, name } => {
                format!("begun {at} {} {} {attempt} {task_type} {name}\n", lease.id, lease.token)
            }
            Self::Lost { at, lease } => format!("lost {at} {} {}\n", lease.id, lease.token),
            Self::Alive { at, lease } => format!("alive {at} {} {}\n", lease.id, lease.token),
            Self::Sent { at, lease, outcome } => format!("sent {at} {} {} {outcome}\n", lease.id, lease.token),
            Self::Settled { at, lease, status } => format!("settled {at} {} {} {status}\n", lease.id, lease.token),
            Self::Broken { at, why } => format!("broken {at} {}\n", why.replace(char::is_whitespace, "_")),
        }
    }

    /// Parses a line of a record file; `None` for an incomplete line.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let kind = words.next()?;
        let at = words.next()?.parse().ok()?;
        fn next<T: FromStr>(words: &mut std::str::Split<'_, char>) -> Option<T> {
            words.next()?.parse().ok()
        }
        let words = &mut words;
        Some(match kind {
            "requested" => Self::Requested { at, request: next(words)? },
            "accepted" => {
                let (request, after) = (next(words)?, next(words)?);
                let ids = words.next()?.split(',').map(|id| id.parse().ok()).collect::<Option<_>>()?;
                Self::Accepted { at, request, after, ids }
            }
            "refused" => Self::Refused { at, code: next(words)?, after: next(words)? },
            "broken" => Self::Broken { at, why: next(words)? },
            _ => {
                let lease = Lease { id: next(words)?, token: next(words)? };
                match kind {
                    "begun" => Self::Begun {
                        at,
                        lease,
                        attempt: next(words)?,
                        task_type: next(words)?,
                        name: words.next()?.to_owned(),
                    },
                    "lost" => Self::Lost { at, lease },
                    "alive" => Self::Alive { at, lease },
                    "sent" => Self::Sent { at, lease, outcome: next(words)? },
                    "settled" => Self::Settled { at, lease, status: next(words)? },
                    _ => return None,
                }
            }
        })
    }
}

/// Returns all lines of all record files in a directory.
pub(super) fn read(dir: &Path) -> Vec<Line> {
    let entries = std::fs::read_dir(dir).expect("the directory of records");
    let files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    let logs = files.iter().filter(|path| path.extension().is_some_and(|e| e == "log"));
    logs.flat_map(|path| lines(path)).collect()
}

/// Returns the lines of one record file; empty if the file does not exist.
pub(super) fn read_one(dir: &Path, name: &str) -> Vec<Line> {
    lines(&dir.join(format!("{name}.log")))
}

fn lines(path: &Path) -> Vec<Line> {
    let text = std::fs::read_to_string(path).expect("a record");
    let line = |line: &str| {
        let whole = line.strip_suffix('\n').unwrap_or_else(|| panic!("{}: half a line", path.display()));
        Line::parse(whole).unwrap_or_else(|| panic!("{}: {whole:?}", path.display()))
    };
    text.split_inclusive('\n').map(line).collect()
}

/// Opens the file to which a process writes its standard error.
pub(super) fn diary(dir: &Path, name: &str) -> File {
    OpenOptions::new().create(true).append(true).open(dir.join(format!("{name}.err"))).expect("a diary")
}
