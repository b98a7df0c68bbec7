use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// Size in bytes above which a log is renamed at the next start.
const ROTATE_AT: u64 = 16 << 20;
/// Amount read from the end of the log, in bytes and in lines.
const TAIL_BYTES: u64 = 16 << 10;
const TAIL_LINES: usize = 6;

/// Opens the log for appending. Also returns its length, where this run's output starts.
pub(super) fn open(path: &Path) -> io::Result<(File, u64)> {
    if fs::metadata(path).is_ok_and(|meta| meta.len() > ROTATE_AT) {
        fs::rename(path, path.with_extension("log.1"))?;
    }
    let file = File::options().create(true).append(true).open(path)?;
    let end = file.metadata()?.len();
    Ok((file, end))
}

/// The last lines written since offset `from`, joined to one line.
pub(super) fn tail(path: &Path, from: u64) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let start = file.metadata()?.len().saturating_sub(TAIL_BYTES).max(from);
        file.seek(SeekFrom::Start(start))?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().map_or_else(
        |error| format!("cannot read the log: {error}"),
        |bytes| last_lines(&String::from_utf8_lossy(&bytes)),
    )
}

/// The last lines of a text, joined to one line.
pub(super) fn last_lines(text: &str) -> String {
    let mut lines: Vec<_> =
        text.lines().map(str::trim).filter(|line| !line.is_empty()).rev().take(TAIL_LINES).collect();
    lines.reverse();
    if lines.is_empty() { "it logged nothing".to_owned() } else { lines.join(" | ") }
}
