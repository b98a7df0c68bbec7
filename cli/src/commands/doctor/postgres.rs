//! Settings of Postgres, its connections, and the rights of the broker's role.

use howdah_server::{config::Config, store::Facts};

use super::finding::Finding;

/// Connections of a broker besides its pool: operators' calls, LISTEN, and work that waits for locks.
const BESIDES_POOL: i64 = 4 + 1 + 8;
/// A database must be vacuumed long before two thousand million.
const OLD_TRANSACTIONS: i64 = 1_000_000_000;
const MIB: i64 = 1 << 20;
/// The size of Postgres's pages, of which `shared_buffers` is told.
const PAGE: i64 = 8 << 10;

/// Settings that must be on, and why.
const MUST_BE_ON: [(&str, &str); 5] = [
    ("fsync", "a crash of the machine loses jobs and may destroy the database"),
    ("full_page_writes", "a crash of the machine may destroy the database"),
    ("synchronous_commit", "a crash loses jobs whose enqueue was answered"),
    ("autovacuum", "dead rows of every job stay, and the tables grow without end"),
    ("track_counts", "autovacuum does not know what to do, and the tables grow without end"),
];

/// All of them.
pub(super) fn check(facts: &Facts, config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(MUST_BE_ON.iter().filter_map(|(name, why)| must_be_on(facts, name, why)));
    findings.extend(wraparound(facts));
    findings.extend(connections(facts, config));
    findings.extend(rights(facts));
    findings.extend(release(facts));
    findings.extend(tuning(facts));
    findings
}

fn number(facts: &Facts, setting: &str) -> Option<i64> {
    facts.settings.get(setting)?.parse().ok()
}

fn must_be_on(facts: &Facts, name: &'static str, why: &str) -> Option<Finding> {
    // synchronous_commit has more values, which only standbys tell apart.
    let off = facts.settings.get(name).is_some_and(|value| value == "off");
    off.then(|| {
        Finding::problem(
            name,
            format!("{name} is off: {why}"),
            format!("ALTER SYSTEM SET {name} = on, and reload or restart Postgres"),
        )
    })
}

fn wraparound(facts: &Facts) -> Option<Finding> {
    (facts.xid_age > OLD_TRANSACTIONS).then(|| {
        Finding::problem(
            "wraparound",
            format!("the oldest transaction that is not frozen is {} transactions old", facts.xid_age),
            "end what holds the oldest snapshot (howdah types --storage), then VACUUM (FREEZE) the database; Postgres \
             stops writing at 2,000 million",
        )
    })
}

fn connections(facts: &Facts, config: &Config) -> Option<Finding> {
    let most = number(facts, "max_connections")? - number(facts, "superuser_reserved_connections").unwrap_or_default();
    let (free, need) = (most - facts.connections, i64::from(config.pool_size) + BESIDES_POOL);
    (free < need).then(|| {
        Finding::advice(
            "connections",
            format!("{free} of {most} connections are free, and one more broker may need {need}"),
            "raise max_connections, or lower the pools of other programs or pool_size",
        )
    })
}

fn rights(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !facts.owns {
        findings.push(Finding::problem(
            "owner",
            "the role does not own the tables, so it cannot make the partition of the next day",
            "give brokers the role that owns the schema, or REASSIGN OWNED",
        ));
    }
    if !facts.reads_all_stats {
        findings.push(Finding::advice(
            "statistics",
            "the role may not read who holds an old snapshot",
            "GRANT pg_read_all_stats to it",
        ));
    }
    findings
}

fn release(facts: &Facts) -> Option<Finding> {
    let own = env!("CARGO_PKG_VERSION");
    let other = facts.releases.iter().find(|release| *release != own)?;
    Some(Finding::advice(
        "release",
        format!("a part of the schema is of release {other}, and this program is {own}"),
        "end the upgrade: run one release everywhere (docs/operate/upgrade.md)",
    ))
}

/// What the defaults of Postgres leave undone, for machines that are larger than those of the defaults.
fn tuning(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut advise = |check, found: String, change: &str| findings.push(Finding::advice(check, found, change));
    if let Some(seconds) = number(facts, "autovacuum_naptime").filter(|seconds| *seconds > 15) {
        let found = format!("autovacuum looks for work every {seconds}s, and each job leaves a dead row");
        advise("autovacuum_naptime", found, "ALTER SYSTEM SET autovacuum_naptime = '10s', and reload");
    }
    if number(facts, "idle_in_transaction_session_timeout") == Some(0) {
        let found = "a transaction that somebody leaves open holds back vacuum for ever".to_owned();
        let change = "ALTER SYSTEM SET idle_in_transaction_session_timeout = '10min', or for the roles of people and applications";
        advise("idle_in_transaction_session_timeout", found, change);
    }
    if let Some(mib) = number(facts, "max_wal_size").filter(|mib| *mib < 4096) {
        let found =
            format!("max_wal_size is {mib} MiB: under load, checkpoints come often and write whole pages again");
        advise("max_wal_size", found, "ALTER SYSTEM SET max_wal_size = '4GB' or more, if the disk has it, and reload");
    }
    if let Some(pages) = number(facts, "shared_buffers").filter(|pages| pages * PAGE < 256 * MIB) {
        let found = format!("shared_buffers is {} MiB", pages * PAGE / MIB);
        advise(
            "shared_buffers",
            found,
            "ALTER SYSTEM SET shared_buffers to a quarter of the machine's memory, and restart",
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A database with nothing to say about.
    fn healthy() -> Facts {
        let settings = [
            ("fsync", "on"),
            ("full_page_writes", "on"),
            ("synchronous_commit", "on"),
            ("autovacuum", "on"),
            ("track_counts", "on"),
            ("autovacuum_naptime", "10"),
            ("max_connections", "100"),
            ("superuser_reserved_connections", "3"),
            ("shared_buffers", "32768"),
            ("max_wal_size", "4096"),
            ("idle_in_transaction_session_timeout", "600000"),
        ];
        Facts {
            settings: settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            reads_all_stats: true,
            owns: true,
            releases: vec![env!("CARGO_PKG_VERSION").to_owned()],
            ..Facts::default()
        }
    }

    /// The names of what is found after a change.
    fn found(change: impl FnOnce(&mut Facts)) -> Vec<&'static str> {
        let mut facts = healthy();
        change(&mut facts);
        check(&facts, &Config::new("")).iter().map(|finding| finding.check).collect()
    }

    #[test]
    fn a_healthy_database_has_no_findings() {
        assert_eq!(found(|_| {}), Vec::<&str>::new());
    }

    #[test]
    fn each_setting_that_endangers_jobs_or_slows_them_is_found() {
        let wrong = [
            ("fsync", "off"),
            ("full_page_writes", "off"),
            ("synchronous_commit", "off"),
            ("autovacuum", "off"),
            ("track_counts", "off"),
            ("autovacuum_naptime", "60"),
            ("idle_in_transaction_session_timeout", "0"),
            ("max_wal_size", "1024"),
            ("shared_buffers", "16384"),
        ];
        for (name, value) in wrong {
            assert_eq!(found(|facts| drop(facts.settings.insert(name.into(), value.into()))), [name]);
        }
        assert_eq!(
            found(|facts| drop(facts.settings.insert("synchronous_commit".into(), "remote_apply".into()))),
            [""; 0]
        );
    }

    #[test]
    fn what_the_role_and_the_database_cannot_do_is_found() {
        assert_eq!(found(|facts| facts.xid_age = OLD_TRANSACTIONS + 1), ["wraparound"]);
        assert_eq!(found(|facts| facts.connections = 80), ["connections"]);
        assert_eq!(found(|facts| facts.owns = false), ["owner"]);
        assert_eq!(found(|facts| facts.reads_all_stats = false), ["statistics"]);
        assert_eq!(found(|facts| facts.releases.push("9.9.9".into())), ["release"]);
    }
}
