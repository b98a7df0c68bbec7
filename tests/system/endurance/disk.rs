//! Fills the disk under Postgres and frees it again.

use std::{fs::File, io::Write as _, path::Path, process::Command, time::Duration};

use howdah_cli::postgres::{Cluster, StopMode};
use tokio::time::{sleep, timeout};

use super::{
    load::{Load, Plan, durable},
    mix::Mix,
};
use crate::support::open_directory;

/// A small separate file system for Postgres's data.
struct Small(tempfile::TempDir);

impl Small {
    fn mount(size: &str) -> Option<Self> {
        let dir = open_directory();
        let options = format!("size={size},mode=0755");
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "howdah-test"]).arg(dir.path()).output();
        mount.is_ok_and(|output| output.status.success()).then_some(Self(dir))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes long: cargo test --test system -- --ignored endurance"]
async fn a_full_disk_under_postgres_is_an_error_and_never_a_false_ok() {
    let Some(small) = Small::mount("600m") else {
        eprintln!("left out: mounting a tmpfs is not permitted here");
        return;
    };
    let mut config = durable();
    config.data_dir = Some(small.0.path().join("data"));
    config.settings.extend(
        [("max_wal_size", "48MB"), ("min_wal_size", "32MB"), ("checkpoint_timeout", "30s"), ("shared_buffers", "32MB")]
            .map(|(name, value)| (name.into(), value.into())),
    );
    let cluster = Cluster::start(config).await.expect("Postgres");
    cluster.create_database("app").await.expect("database");
    let url = cluster.url("app");
    let mut load = Load::start_on(Plan::new(Mix::All, 90), cluster, &url).await;
    load.produce();
    let filling = small.0.path().join("filling");
    let mut restarted = 0;
    for _ in 0..3 {
        sleep(Duration::from_secs(8)).await;
        let refused = load.refused();
        fill(&filling);
        while load.refused() < refused + 20 {
            sleep(Duration::from_millis(50)).await;
            // Fill the disk again, because Postgres may have freed space.
            fill(&filling);
        }
        sleep(Duration::from_secs(3)).await;
        std::fs::remove_file(&filling).expect("free it");
        // Postgres exits if it cannot write its WAL, and the test then restarts it.
        let url = load.database.url.clone();
        let back = timeout(Duration::from_secs(10), async {
            while tokio_postgres::connect(&url, tokio_postgres::NoTls).await.is_err() {
                sleep(Duration::from_millis(100)).await;
            }
        });
        if back.await.is_err() {
            load.cluster().restart().await.expect("restart");
            restarted += 1;
        }
        load.progress(1_000).await;
    }
    eprintln!("Postgres ended and was started again: {restarted} times");
    // The immediate stop discards everything that Postgres has not written to disk, so the check sees only durable
    // data.
    load.cluster().stop(StopMode::Immediate).await;
    load.cluster().restart().await.expect("restart");
    load.check("disk full under Postgres", 3).await;
}

/// Fills all free space of the file system.
fn fill(path: &Path) {
    let mut file = File::options().create(true).append(true).open(path).expect("a file");
    let block = vec![1; 64 << 10];
    while file.write_all(&block).is_ok() {}
    // The failing write has stored a part of its block, so less than a Postgres page (8 KiB) is free.
}
