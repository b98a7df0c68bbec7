//! The record of what was called and answered: a file a process, outside the system, and only ever appended to. Each line
//! is one write, so that a process that is killed leaves whole lines.

use std::{
    fs::{File, OpenOptions},
    io::Write as _,
    path::{Path, PathBuf},
    str::FromStr,
    time::{SystemTime, UNIX_EPOCH},
};

/// Microseconds since 1970, on the one clock of this machine.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros() as u64
}

/// What a process appends to.
#[derive(Clone)]
pub(super) struct Record(std::sync::Arc<File>);

impl Record {
    /// Opens or goes on with `<dir>/<name>.log`.
    pub(super) fn open(dir: &Path, name: &str) -> Self {
        let path = dir.join(format!("{name}.log"));
        Self(File::options().create(true).append(true).open(path).expect("a record").into())
    }

    pub(super) fn write(&self, line: &Line) {
        self.0.as_ref().write_all(line.text().as_bytes()).expect("a line of the record");
    }
}

/// A lease, as its worker knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Lease {
    pub(super) id: i64,
    pub(super) token: i64,
}

/// A line, each with the time at which it happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Line {
    /// A producer begins to ask for these jobs.
    Asked { at: u64, request: String },
    /// They were answered OK, so many ms after the last call for them, and these are their ids.
    Accepted { at: u64, request: String, after: u64, ids: Vec<i64> },
    /// A broker answered an enqueue with an error.
    Refused { at: u64, code: String, after: u64 },
    /// A worker has a job in its hands.
    Begun { at: u64, lease: Lease, attempt: u32, task_type: String, name: String },
    /// A worker was told that a lease is not its own any more.
    Lost { at: u64, lease: Lease },
    /// A report of progress that was sent then was answered OK.
    Alive { at: u64, lease: Lease },
    /// A worker sends an outcome for the first time.
    Sent { at: u64, lease: Lease, outcome: String },
    /// The answer to an outcome.
    Settled { at: u64, lease: Lease, status: String },
    /// A worker's stream ended, or could not be opened.
    Broken { at: u64, why: String },
}

impl Line {
    fn text(&self) -> String {
        match self {
            Self::Asked { at, request } => format!("asked {at} {request}\n"),
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

    /// None for a line of which only a part was written.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let kind = words.next()?;
        let at = words.next()?.parse().ok()?;
        fn next<T: FromStr>(words: &mut std::str::Split<'_, char>) -> Option<T> {
            words.next()?.parse().ok()
        }
        let words = &mut words;
        Some(match kind {
            "asked" => Self::Asked { at, request: next(words)? },
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

/// All lines of all records in a directory.
pub(super) fn read(dir: &Path) -> Vec<Line> {
    let entries = std::fs::read_dir(dir).expect("the directory of records");
    let files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    let logs = files.iter().filter(|path| path.extension().is_some_and(|e| e == "log"));
    logs.flat_map(|path| lines(path)).collect()
}

/// The lines of one record; none if nobody has begun it.
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

/// Where a program's standard error goes.
pub(super) fn diary(dir: &Path, name: &str) -> File {
    OpenOptions::new().create(true).append(true).open(dir.join(format!("{name}.err"))).expect("a diary")
}
