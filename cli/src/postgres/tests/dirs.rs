use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::super::dirs::{DirLock, OwnDir, make_dir, sweep};
use super::{dead_pid, open_dir};

fn left_by(base: &Path, pid: u32) -> std::path::PathBuf {
    let path = base.join(format!("test-{pid}-abc"));
    fs::create_dir_all(path.join("data")).unwrap();
    path
}

#[test]
fn directories_of_a_dead_process_are_removed() {
    let base = open_dir();
    let left = left_by(base.path(), dead_pid());
    sweep(base.path(), "test-");
    assert!(!left.exists());
}

#[test]
fn our_directories_are_closed_to_everyone_else() {
    let base = open_dir();
    let own = OwnDir::create(base.path(), "test-", None).unwrap();
    let mode = fs::metadata(own.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn directories_of_a_living_process_stay() {
    let base = open_dir();
    let other = left_by(base.path(), 1);
    let own = OwnDir::create(base.path(), "test-", None).unwrap();
    sweep(base.path(), "test-");
    assert!(other.exists() && own.path().exists());
}

/// The lock simulates a process in another container that shares the directory.
#[test]
fn a_locked_directory_stays_though_its_pid_is_unknown_here() {
    let base = open_dir();
    let locked = left_by(base.path(), dead_pid());
    let lock = DirLock::take(&locked).unwrap().unwrap();
    sweep(base.path(), "test-");
    assert!(locked.exists());
    drop(lock);
    sweep(base.path(), "test-");
    assert!(!locked.exists());
}

#[test]
fn other_names_and_links_are_not_touched() {
    let base = open_dir();
    let pid = dead_pid();
    let target = base.path().join("precious");
    fs::create_dir(&target).unwrap();
    std::os::unix::fs::symlink(&target, base.path().join(format!("test-{pid}-link"))).unwrap();
    let names = [format!("test-{pid}"), format!("another-{pid}-x"), "test-x-y".to_owned(), "test--5-y".to_owned()];
    for name in &names {
        fs::create_dir(base.path().join(name)).unwrap();
    }
    sweep(base.path(), "test-");
    assert_eq!(fs::read_dir(base.path()).unwrap().count(), names.len() + 2);
}

#[test]
fn a_lock_is_held_by_one_and_given_back_on_drop() {
    let base = open_dir();
    let lock = DirLock::take(base.path()).unwrap();
    assert!(lock.is_some());
    assert!(DirLock::take(base.path()).unwrap().is_none());
    drop(lock);
    assert!(DirLock::take(base.path()).unwrap().is_some());
}

#[test]
fn a_directory_is_made_with_its_parents_and_may_exist_already() {
    let base = open_dir();
    let dir = base.path().join("a/b/c");
    make_dir(&dir).unwrap();
    make_dir(&dir).unwrap();
    make_dir(Path::new("")).unwrap();
    fs::write(base.path().join("file"), "").unwrap();
    make_dir(&base.path().join("file/below")).unwrap_err();
    make_dir(&base.path().join("file")).unwrap_err();
}
