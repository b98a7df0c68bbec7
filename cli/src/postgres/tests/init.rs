use std::fs;

use super::super::{Cluster, ClusterConfig, DevError};
use super::{dead_pid, open_dir, persistent, script};

#[tokio::test]
async fn a_failed_initdb_leaves_nothing_and_says_why() {
    let base = open_dir();
    let bin = base.path().join("bin");
    fs::create_dir(&bin).unwrap();
    script(&bin.join("postgres"), "echo 'postgres (PostgreSQL) 15.1'");
    script(&bin.join("initdb"), "shift $(($# - 1)); echo 15 >\"$1/PG_VERSION\"; echo 'out of luck' >&2; exit 3");
    let data = base.path().join("data");
    // A persistent cluster is used, because the last argument of initdb is then the directory.
    let config = ClusterConfig { binaries: Some(bin), fsync: true, ..persistent(&data) };
    let error = Cluster::start(config).await.unwrap_err();
    assert!(matches!(error, DevError::InitFailed { .. }), "{error}");
    assert!(error.to_string().ends_with("out of luck"), "{error}");
    let names: Vec<_> = fs::read_dir(base.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["bin"]);
}

#[tokio::test]
async fn half_a_cluster_of_a_killed_initdb_is_thrown_away() {
    let base = open_dir();
    let half = base.path().join(format!(".data.initdb-{}-x1", dead_pid()));
    fs::create_dir(&half).unwrap();
    fs::write(half.join("PG_VERSION"), "15\n").unwrap();
    let cluster = Cluster::start(persistent(&base.path().join("data"))).await.unwrap();
    assert!(cluster.data_dir().join("PG_VERSION").exists());
    assert!(!half.exists());
}

#[tokio::test]
async fn an_existing_empty_directory_is_fine_and_one_with_other_files_is_not() {
    let base = open_dir();
    let data = base.path().join("data");
    fs::create_dir(&data).unwrap();
    Cluster::start(persistent(&data)).await.unwrap();

    let other = base.path().join("thesis");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("chapter-1.txt"), "It was").unwrap();
    let error = Cluster::start(persistent(&other)).await.unwrap_err();
    assert!(matches!(error, DevError::NotACluster { .. }), "{error}");
}

#[tokio::test]
async fn data_of_another_version_is_refused_by_name() {
    let base = open_dir();
    fs::write(base.path().join("PG_VERSION"), "9.6\n").unwrap();
    let error = Cluster::start(persistent(base.path())).await.unwrap_err();
    assert!(matches!(&error, DevError::OtherVersion { made_by, .. } if made_by == "9.6"), "{error}");
}
