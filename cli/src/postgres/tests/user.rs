use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use super::super::DevError;
use super::super::user::{User, check_reach, give, is_root};
use super::open_dir;

fn other_user() -> User {
    User { name: "other_user".to_owned(), uid: 4_000_000, gid: 4_000_000 }
}

#[test]
fn root_runs_postgres_as_another_user_and_other_users_as_themselves() {
    let user = User::for_new_files().unwrap();
    assert_eq!(user.is_some(), is_root());
    assert!(user.is_none_or(|user| user.uid != 0 && ["postgres", "howdah"].contains(&user.name.as_str())));
}

#[test]
fn a_data_directory_of_the_user_nobody_is_refused() {
    let base = open_dir();
    let Some(nobody) = User::named("nobody").filter(|_| is_root()) else { return };
    give(base.path(), Some(&nobody)).unwrap();
    let error = User::owner_of(base.path()).unwrap_err();
    assert!(matches!(error, DevError::WrongOwner { owner, .. } if owner == nobody.uid), "{error}");
    assert!(error.to_string().contains("chown -R"), "{error}");
}

#[test]
fn the_error_names_the_parent_directory_that_the_other_user_cannot_enter() {
    let base = open_dir();
    let (closed, inside) = (base.path().join("closed"), base.path().join("closed/a/b"));
    fs::create_dir_all(&inside).unwrap();
    fs::set_permissions(&closed, Permissions::from_mode(0o700)).unwrap();
    let error = check_reach(&inside, Some(&other_user())).unwrap_err();
    let real = fs::canonicalize(&closed).unwrap();
    assert!(matches!(&error, DevError::Unreachable { blocked, .. } if *blocked == real), "{error}");
    assert!(error.to_string().contains("other_user"));
}

#[test]
fn an_open_path_is_reachable_by_another_user_and_a_closed_one_by_its_owner() {
    let base = open_dir();
    check_reach(base.path(), Some(&other_user())).unwrap();
    fs::set_permissions(base.path(), Permissions::from_mode(0o700)).unwrap();
    check_reach(base.path(), None).unwrap();
}
