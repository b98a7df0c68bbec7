use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::error::{DevError, OLDEST};
use super::serverlog;

/// A directory with usable `initdb` and `postgres` programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binaries {
    bin_dir: PathBuf,
    major: u32,
}

impl Binaries {
    pub fn bin_dir(&self) -> &Path {
        &self.bin_dir
    }

    /// Major version, such as 18.
    pub fn major(&self) -> u32 {
        self.major
    }

    /// Path of a program in the bin directory.
    pub fn program(&self, name: &str) -> PathBuf {
        self.bin_dir.join(name)
    }

    /// Inspects a bin directory of any version. The error describes the problem.
    pub(super) fn inspect(bin_dir: &Path) -> Result<Self, String> {
        for name in ["postgres", "initdb"] {
            if !bin_dir.join(name).is_file() {
                return Err(format!("there is no `{name}` in it"));
            }
        }
        // Debian and Homebrew link single programs into PATH. The directory that the links point to has the other programs too.
        let real_path = |path: &Path| fs::canonicalize(path).map_err(|error| error.to_string());
        let (bin_dir, postgres) = (real_path(bin_dir)?, real_path(&bin_dir.join("postgres"))?);
        let real = postgres.parent().filter(|dir| dir.join("initdb").is_file()).unwrap_or(&bin_dir);
        let version = answer_of(Command::new(real.join("postgres")).arg("--version"))?;
        let major =
            major_of(&version).ok_or_else(|| format!("`postgres --version` printed no version: {version:?}"))?;
        Ok(Self { bin_dir: real.to_owned(), major })
    }
}

/// The locations to search for Postgres, as fields so that tests can set others.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// A directory named explicitly, with the source of the name. If set, no other location is tried.
    pub(super) named: Option<(PathBuf, &'static str)>,
    /// Name of a `pg_config` program.
    pub(super) pg_config: Option<OsString>,
    /// Value of `PATH`.
    pub(super) path: Option<OsString>,
    /// Directories with one directory per version, such as `/usr/lib/postgresql`.
    pub(super) versioned: Vec<PathBuf>,
    /// Bin directories of packages that may have been downloaded.
    pub(super) fetched: Vec<PathBuf>,
}

impl Places {
    pub(super) fn of_this_machine(explicit: Option<&Path>) -> Self {
        let from_env = || env::var_os("HOWDAH_PG_BIN").filter(|value| !value.is_empty());
        let named = explicit
            .map(|path| (path.to_owned(), "the configuration"))
            .or_else(|| from_env().map(|value| (value.into(), "HOWDAH_PG_BIN")));
        Self {
            named,
            pg_config: Some("pg_config".into()),
            path: env::var_os("PATH"),
            versioned: ["/usr/lib/postgresql", "/usr", "/opt/homebrew/opt", "/usr/local/opt"]
                .map(PathBuf::from)
                .to_vec(),
            fetched: Vec::new(),
        }
    }

    /// Returns the first Postgres that is new enough. Prefers the major version `made_by`, which created an existing data
    /// directory.
    pub(super) fn search(&self, made_by: Option<u32>) -> Result<Binaries, DevError> {
        if let Some((bin_dir, from)) = &self.named {
            return named(bin_dir, from);
        }
        let mut first = None;
        let mut too_old = None;
        for found in self.candidates().filter_map(|dir| Binaries::inspect(&dir).ok()) {
            if found.major < OLDEST {
                too_old.get_or_insert(found);
            } else if made_by.is_none_or(|major| major == found.major) {
                return Ok(found);
            } else {
                first.get_or_insert(found);
            }
        }
        match (first, too_old) {
            (Some(found), _) => Ok(found),
            (None, Some(Binaries { bin_dir, major })) => Err(DevError::TooOld { bin_dir, major }),
            (None, None) => Err(DevError::NotInstalled),
        }
    }

    /// Candidate directories. The iterator is lazy, because the first one usually fits, and each check starts a program.
    fn candidates(&self) -> impl Iterator<Item = PathBuf> {
        let pg_config = self.pg_config.iter().filter_map(|program| line_of(Command::new(program).arg("--bindir")));
        let path = self.path.iter().flat_map(|path| env::split_paths(path).collect::<Vec<_>>());
        let versioned = self.versioned.iter().flat_map(|dir| by_version(dir));
        pg_config.map(PathBuf::from).chain(path).chain(versioned).chain(self.fetched.iter().cloned())
    }
}

fn named(bin_dir: &Path, from: &'static str) -> Result<Binaries, DevError> {
    let bad = |why| DevError::BadBinaries { bin_dir: bin_dir.to_owned(), from, why };
    let found = Binaries::inspect(bin_dir).map_err(bad)?;
    if found.major < OLDEST {
        return Err(bad(format!("it is PostgreSQL {}, but {OLDEST} or later is required", found.major)));
    }
    Ok(found)
}

/// Finds `16/bin`, `pgsql-16/bin` and `postgresql@16/bin` in `dir`, highest version first.
fn by_version(dir: &Path) -> Vec<PathBuf> {
    let version = |name: &OsStr| -> Option<u32> {
        let name = name.to_str()?;
        let number = name.strip_prefix("pgsql-").or_else(|| name.strip_prefix("postgresql@")).unwrap_or(name);
        number.parse().ok()
    };
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut found: Vec<_> =
        entries.flatten().filter_map(|entry| Some((version(&entry.file_name())?, entry.path().join("bin")))).collect();
    found.sort_by(|a, b| b.cmp(a));
    found.into_iter().map(|(_, bin)| bin).collect()
}

/// Parses the major version, such as 15 from `postgres (PostgreSQL) 15.12 (Debian 15.12-0+deb12u2)`; also accepts `18beta1`.
pub(super) fn major_of(version: &str) -> Option<u32> {
    let (_, number) = version.split_once("(PostgreSQL) ")?;
    let digits = number.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

/// The first line of a program's output; `None` if it fails or prints nothing.
fn line_of(command: &mut Command) -> Option<String> {
    answer_of(command).ok().filter(|line| !line.is_empty())
}

/// The first line of a program's output. The error describes the failure.
pub(super) fn answer_of(command: &mut Command) -> Result<String, String> {
    let outcome = match command.output() {
        Ok(output) if output.status.success() => String::from_utf8(output.stdout).map_err(|error| error.to_string()),
        Ok(output) => Err(serverlog::last_lines(&String::from_utf8_lossy(&output.stderr))),
        Err(error) => Err(error.to_string()),
    };
    match outcome {
        Ok(text) => Ok(text.lines().next().unwrap_or_default().trim().to_owned()),
        Err(why) => Err(format!("{} cannot be run: {why}", Path::new(command.get_program()).display())),
    }
}
