//! Checks of Postgres: settings, replication slots, and the rights of the broker's role on statistics.

use super::Finding;
use crate::store::Facts;

/// Age of the oldest unfrozen transaction id, in transactions, above which `howdah doctor` reports a problem.
/// Postgres stops writing at about 2,000 million.
const OLD_TRANSACTIONS: i64 = 1_000_000_000;
/// Number of concurrent statements over all day partitions of history for which the lock table should have room.
const READERS: i64 = 20;
const MIB: i64 = 1 << 20;
/// Page size of Postgres, the unit of `shared_buffers`.
const PAGE: i64 = 8 << 10;

/// Settings that must be on, with the reason.
const MUST_BE_ON: [(&str, &str); 5] = [
    ("fsync", "a crash of the machine loses jobs and may destroy the database"),
    ("full_page_writes", "a crash of the machine may destroy the database"),
    ("synchronous_commit", "a crash loses jobs whose enqueue was answered"),
    ("autovacuum", "dead rows of every job stay, and the tables grow without limit"),
    ("track_counts", "autovacuum does not know which tables need it, and the tables grow without limit"),
];

/// Runs all checks of Postgres.
pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(MUST_BE_ON.iter().filter_map(|(name, why)| must_be_on(facts, name, why)));
    findings.extend(wraparound(facts));
    findings.extend(statistics(facts));
    findings.extend(slots(facts));
    findings.extend(locks(facts));
    findings.extend(tuning(facts));
    findings
}

fn number(facts: &Facts, setting: &str) -> Option<i64> {
    facts.settings.get(setting)?.parse().ok()
}

fn must_be_on(facts: &Facts, name: &'static str, why: &str) -> Option<Finding> {
    // Only `off` counts: the other values of synchronous_commit differ only in how they treat standbys.
    let off = facts.settings.get(name).is_some_and(|value| value == "off");
    off.then(|| {
        let change = match facts.resets.get(name) {
            Some(reset) => format!("{reset}, and restart the brokers, whose sessions keep the value"),
            None => format!("ALTER SYSTEM SET {name} = on, and reload or restart Postgres"),
        };
        Finding::problem(name, format!("{name} is off: {why}"), change)
    })
}

fn wraparound(facts: &Facts) -> Option<Finding> {
    (facts.xid_age > OLD_TRANSACTIONS).then(|| {
        Finding::problem(
            "wraparound",
            format!("the oldest transaction id that is not frozen is {} transactions old", facts.xid_age),
            "end the holder of the oldest snapshot (howdah types --storage), then VACUUM (FREEZE) the database; Postgres \
             stops writing at 2,000 million",
        )
    })
}

fn statistics(facts: &Facts) -> Option<Finding> {
    (!facts.reads_all_stats).then(|| {
        Finding::advice(
            "statistics",
            "the role may not read which session holds an old snapshot",
            "GRANT pg_read_all_stats to the role",
        )
    })
}

fn slots(facts: &Facts) -> Option<Finding> {
    let names = facts.idle_slots.join(", ");
    (!names.is_empty()).then(|| {
        let found = format!("the replication slots {names} have no reader, and Postgres keeps its log for them");
        Finding::advice("slots", found, "restart their readers, or call pg_drop_replication_slot")
    })
}

/// Checks the size of the lock table. The server has `max_locks_per_transaction` locks per connection. When the lock table is
/// full, statements of all sessions fail (SQLSTATE 53200).
fn locks(facts: &Facts) -> Option<Finding> {
    let sessions = number(facts, "max_connections")? + number(facts, "max_prepared_transactions").unwrap_or_default();
    let room = number(facts, "max_locks_per_transaction")? * sessions;
    let need = facts.history_locks * READERS;
    (need > room).then(|| {
        Finding::advice(
            "max_locks_per_transaction",
            format!(
                "a statement over all of history locks {} partitions and indexes, and the server has room for {room} locks: \
                 {} such statements at once make statements of all sessions fail (SQLSTATE 53200), including claims",
                facts.history_locks,
                room / facts.history_locks.max(1) + 1
            ),
            format!(
                "ALTER SYSTEM SET max_locks_per_transaction = {}, and restart Postgres; or keep history for fewer days",
                need / sessions.max(1) + 1
            ),
        )
    })
}

/// Recommends settings for machines that are larger than Postgres's defaults assume.
fn tuning(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut advise = |check, found: String, change: &str| findings.push(Finding::advice(check, found, change));
    if let Some(seconds) = number(facts, "autovacuum_naptime").filter(|seconds| *seconds > 15) {
        let found = format!("autovacuum looks for work every {seconds}s, and each job leaves a dead row");
        advise("autovacuum_naptime", found, "ALTER SYSTEM SET autovacuum_naptime = '10s', and reload");
    }
    if number(facts, "idle_in_transaction_session_timeout") == Some(0) {
        let found = "a transaction that a client leaves open holds back vacuum forever".to_owned();
        let change = "ALTER SYSTEM SET idle_in_transaction_session_timeout = '10min', or only for the roles of people and applications";
        advise("idle_in_transaction_session_timeout", found, change);
    }
    if let Some(mib) = number(facts, "max_wal_size").filter(|mib| *mib < 4096) {
        let found =
            format!("max_wal_size is {mib} MiB: under load, checkpoints are frequent and write whole pages again");
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

    /// Facts of a database for which no check has a finding.
    fn healthy() -> Facts {
        let settings = [
            ("fsync", "on"),
            ("full_page_writes", "on"),
            ("synchronous_commit", "on"),
            ("autovacuum", "on"),
            ("track_counts", "on"),
            ("autovacuum_naptime", "10"),
            ("max_connections", "100"),
            ("max_locks_per_transaction", "64"),
            ("shared_buffers", "32768"),
            ("max_wal_size", "4096"),
            ("idle_in_transaction_session_timeout", "600000"),
        ];
        Facts {
            settings: settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            reads_all_stats: true,
            has_schema: true,
            ..Facts::default()
        }
    }

    /// Applies `change` to the facts of a healthy database, and returns the names of the checks that then have a
    /// finding.
    fn found(change: impl FnOnce(&mut Facts)) -> Vec<&'static str> {
        let mut facts = healthy();
        change(&mut facts);
        check(&facts).iter().map(|finding| finding.check).collect()
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
    fn old_transactions_few_locks_missing_rights_and_idle_slots_are_found() {
        assert_eq!(found(|facts| facts.xid_age = OLD_TRANSACTIONS + 1), ["wraparound"]);
        assert_eq!(found(|facts| facts.history_locks = 320), [""; 0]);
        assert_eq!(found(|facts| facts.history_locks = 321), ["max_locks_per_transaction"]);
        assert_eq!(found(|facts| facts.reads_all_stats = false), ["statistics"]);
        assert_eq!(found(|facts| facts.idle_slots = vec!["a".into(), "b".into()]), ["slots"]);
    }
}
