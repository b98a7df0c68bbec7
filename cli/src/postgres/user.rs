use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::error::DevError;

/// Users that may own a data directory if howdah runs as root. Not `nobody`: other programs run as that user too, and could read
/// and change the data.
const OWNERS: [&str; 2] = ["postgres", "howdah"];
/// User that Postgres must not run as: other programs that run as this user could access its files.
const NOBODY: &str = "nobody";

/// User for Postgres when howdah runs as root, because Postgres refuses to run as root.
#[derive(Debug, Clone)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl User {
    /// The owner for a new data directory; `None` for the current user.
    pub(super) fn for_new_files() -> Result<Option<Self>, DevError> {
        if !is_root() {
            return Ok(None);
        }
        OWNERS.into_iter().find_map(Self::named).map(Some).ok_or(DevError::NoUser)
    }

    /// The owner of an existing data directory. Postgres must run as this user. `None` for the current user.
    pub(super) fn owner_of(data_dir: &Path) -> Result<Option<Self>, DevError> {
        let (uid, gid) = fs::metadata(data_dir)
            .map(|meta| (meta.uid(), meta.gid()))
            .map_err(DevError::io("read the owner of", data_dir))?;
        let ours = rustix::process::geteuid().as_raw();
        match (is_root(), uid) {
            (false, owner) if owner == ours => Ok(None),
            (false, owner) | (true, owner @ 0) => Err(DevError::WrongOwner { path: data_dir.to_owned(), owner }),
            (true, uid) => {
                let nameless = || Self { name: uid.to_string(), uid, gid };
                let owner = Self::named(&uid.to_string()).unwrap_or_else(nameless);
                if owner.name == NOBODY {
                    return Err(DevError::WrongOwner { path: data_dir.to_owned(), owner: uid });
                }
                Ok(Some(owner))
            }
        }
    }

    /// Looks up a user with the program `id`, which knows all user databases of this machine.
    pub(super) fn named(name_or_uid: &str) -> Option<Self> {
        let id = |flag| {
            let output = Command::new("id").args([flag, name_or_uid]).output().ok()?;
            String::from_utf8(output.stdout).ok().map(|answer| answer.trim().to_owned())
        };
        Some(Self { name: id("-un")?, uid: id("-u")?.parse().ok()?, gid: id("-g")?.parse().ok()? })
    }
}

/// Changes the owner of a path.
pub(super) fn give(path: &Path, user: Option<&User>) -> io::Result<()> {
    user.map_or(Ok(()), |user| chown(path, Some(user.uid), Some(user.gid)))
}

/// Lets the command run as the user, without root's supplementary groups (the standard library drops them).
pub(super) fn run_as(command: &mut Command, user: Option<&User>) {
    if let Some(user) = user {
        command.gid(user.gid).uid(user.uid);
    }
}

/// Checks that the user can reach an existing path, and enter or execute it.
pub(super) fn check_reach(path: &Path, user: Option<&User>) -> Result<(), DevError> {
    let Some(user) = user else { return Ok(()) };
    let real = fs::canonicalize(path).map_err(DevError::io("find", path))?;
    match closed_to(&real, user) {
        None => Ok(()),
        Some(blocked) => Err(DevError::Unreachable { user: user.name.clone(), path: path.to_owned(), blocked }),
    }
}

/// The topmost part of the path that the user may not enter, according to its mode bits.
fn closed_to(path: &Path, user: &User) -> Option<PathBuf> {
    let open = |part: &&Path| {
        fs::metadata(part).is_ok_and(|meta| {
            let class = if meta.uid() == user.uid {
                0o100
            } else if meta.gid() == user.gid {
                0o010
            } else {
                0o001
            };
            meta.permissions().mode() & class != 0
        })
    };
    path.ancestors().filter(|part| !open(part)).last().map(Path::to_owned)
}

pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
