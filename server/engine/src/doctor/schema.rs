//! Checks of the schema: owner, release, rights, collation, and the requirements of logical replication.

use howdah_core::config::Config;

use super::Finding;
use crate::store::{Facts, OwnedFacts, SchemaFacts, WrongRight};

/// Maximum number of surplus rights of a role that are listed and revoked one by one. For more rights, the advice
/// revokes all.
const FEW: usize = 3;

/// Runs all checks of the schema.
pub(super) fn check(facts: &Facts, schema: &SchemaFacts, config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(owner(schema));
    findings.extend(release(schema));
    findings.extend(collation(facts, schema));
    findings.extend(schema.unidentified.iter().map(unidentified));
    findings.extend(sequences(schema));
    findings.extend(missing(&schema.owned));
    findings.extend(foreign_triggers(&schema.owned));
    findings.extend(rights(&schema.owned.rights, &config.schema));
    findings
}

/// Checks that the tables have all indexes, constraints and triggers that they were created with.
fn missing(owned: &OwnedFacts) -> Option<Finding> {
    let names: Vec<_> = owned.missing.iter().map(|object| &object.name[..]).collect();
    let statements: Vec<_> = owned.missing.iter().map(|object| &object.statement[..]).collect();
    (!names.is_empty()).then(|| {
        let found = format!(
            "missing or disabled in the schema: {}: a restore has failed in part, or a statement has dropped it",
            names.join(", ")
        );
        let change = "restore the dump into an empty database while no broker runs, or run: ";
        Finding::problem("structure", found, format!("{change}{}", statements.join("; ")))
    })
}

fn foreign_triggers(owned: &OwnedFacts) -> Option<Finding> {
    (!owned.foreign_triggers.is_empty()).then(|| {
        Finding::advice(
            "foreign_triggers",
            format!(
                "Howdah has not created {}: it runs in each transaction of a broker, and can delay, change or lose jobs",
                owned.foreign_triggers.join(", ")
            ),
            "drop it, or make sure that it returns each row unchanged",
        )
    })
}

fn owner(schema: &SchemaFacts) -> Option<Finding> {
    (!schema.owns).then(|| {
        Finding::problem(
            "owner",
            "the role does not own the tables, so it cannot create the partition of the next day",
            "run brokers with the role that owns the schema, or REASSIGN OWNED",
        )
    })
}

fn release(schema: &SchemaFacts) -> Option<Finding> {
    let own = env!("CARGO_PKG_VERSION");
    let other = schema.releases.iter().find(|release| *release != own)?;
    Some(Finding::advice(
        "release",
        format!("part of the schema is of release {other}, but this program is {own}"),
        "finish the upgrade: run one release everywhere (docs/operate/upgrade.md)",
    ))
}

/// Checks the collation version. Indexes of Howdah do not depend on the collation, but indexes that an operator has
/// added may.
fn collation(facts: &Facts, schema: &SchemaFacts) -> Option<Finding> {
    let (made, now) = facts.collation.as_ref()?;
    let found = format!(
        "the database was created with version {made} of its collation, but the system has {now}: indexes on texts may no longer \
         be in order"
    );
    let refresh = "ALTER DATABASE … REFRESH COLLATION VERSION";
    Some(if schema.collated_indexes.is_empty() {
        let found = format!("{found}; Howdah's indexes do not depend on it, but indexes of other schemas may");
        Finding::advice("collation", found, format!("REINDEX DATABASE, then {refresh}"))
    } else {
        let reindex: Vec<_> = schema.collated_indexes.iter().map(|index| format!("REINDEX INDEX {index}; ")).collect();
        Finding::problem("collation", found, format!("{}then {refresh}", reindex.concat()))
    })
}

fn unidentified(table: &crate::store::UnidentifiedTable) -> Finding {
    let (name, change) = (&table.name, format!("ALTER TABLE {} REPLICA IDENTITY FULL", table.name));
    if table.published {
        let found = format!("{name} is published and has no replica identity: updates and deletes of it fail");
        Finding::problem("replica_identity", found, change)
    } else {
        let found = format!("{name} has no replica identity: with a publication, updates and deletes of it would fail");
        Finding::advice("replica_identity", found, change)
    }
}

fn sequences(schema: &SchemaFacts) -> Option<Finding> {
    let stuck = &schema.owned.stuck_sequences;
    (!stuck.is_empty()).then(|| {
        Finding::problem(
            "sequences",
            format!(
                "{} would return ids that rows already have: the rows were copied without the sequence",
                stuck.join(", ")
            ),
            "run howdah migrate, or start a broker: both advance it",
        )
    })
}

/// Returns one finding per role.
fn rights(all: &[WrongRight], schema: &str) -> Vec<Finding> {
    all.chunk_by(|a, b| a.role == b.role && a.is_foreign == b.is_foreign)
        .map(|of_role| of_one(of_role, schema))
        .collect()
}

fn of_one(wrong: &[WrongRight], schema: &str) -> Finding {
    let Some(first) = wrong.first() else { return Finding::advice("rights", "", "") };
    let role = &first.role;
    let shown: Vec<_> =
        wrong.iter().take(FEW).map(|right| format!("{} on {}", right.privilege, right.called)).collect();
    let more = wrong.len().saturating_sub(FEW);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let differ = if first.is_foreign { "rights that Howdah does not give" } else { "other rights than Howdah gives" };
    let found = format!("{role} has {differ}: {}{more}", shown.join(", "));
    if !first.is_foreign {
        return Finding::problem("rights", found, "howdah migrate");
    }
    let change = if wrong.len() <= FEW {
        wrong.iter().map(|right| &right.statement[..]).collect::<Vec<_>>().join("; ")
    } else {
        let kinds = ["TABLES", "SEQUENCES", "FUNCTIONS"];
        kinds.map(|kind| format!("REVOKE ALL ON ALL {kind} IN SCHEMA {schema} FROM {role}")).join("; ")
    };
    // A foreign role's right is only an advice if one of Howdah's own roles has the same right, because it may be
    // granted on purpose.
    if wrong.iter().all(|right| right.is_meant) {
        Finding::advice("rights", found, change)
    } else {
        Finding::problem("rights", found, change)
    }
}

#[cfg(test)]
mod tests {
    use crate::store::UnidentifiedTable;

    use super::{super::Level, *};

    /// Applies `change` to the facts of a healthy schema, and returns the findings.
    fn found(change: impl FnOnce(&mut Facts, &mut SchemaFacts)) -> Vec<(&'static str, Level, String)> {
        let mut facts = Facts::default();
        let releases = vec![env!("CARGO_PKG_VERSION").to_owned()];
        let mut schema = SchemaFacts { owns: true, releases, ..SchemaFacts::default() };
        change(&mut facts, &mut schema);
        let findings = check(&facts, &schema, &Config::new(""));
        findings.into_iter().map(|finding| (finding.check, finding.level, finding.change)).collect()
    }

    fn right(role: &str, is_foreign: bool, is_meant: bool) -> WrongRight {
        let (called, statement) = ("howdah.job".into(), format!("REVOKE SELECT ON TABLE howdah.job FROM {role}"));
        WrongRight { role: role.into(), called, privilege: "SELECT".into(), is_foreign, is_meant, statement }
    }

    #[test]
    fn a_schema_as_it_was_made_has_no_findings() {
        assert_eq!(found(|_, _| {}), []);
        let owner = found(|_, schema| schema.owns = false);
        assert_eq!((owner[0].0, owner[0].1), ("owner", Level::Problem));
        let release = found(|_, schema| schema.releases.push("0.0.9".into()));
        assert_eq!((release[0].0, release[0].1), ("release", Level::Advice));
    }

    #[test]
    fn a_collation_of_another_version_is_a_problem_for_indexes_that_depend_on_it() {
        let changed = |indexes: &[&str]| {
            found(|facts, schema| {
                facts.collation = Some(("2.31".into(), "2.36".into()));
                schema.collated_indexes = indexes.iter().map(|&index| index.to_owned()).collect();
            })
        };
        assert_eq!(changed(&[])[0].1, Level::Advice);
        let found = &changed(&["howdah.theirs"])[0];
        assert_eq!((found.1, found.2.starts_with("REINDEX INDEX howdah.theirs; ")), (Level::Problem, true));
    }

    #[test]
    fn a_table_without_identity_and_a_sequence_that_lags_are_found() {
        let table = |published| UnidentifiedTable { name: "howdah.dead".into(), published };
        let found_table = |published| found(|_, schema| schema.unidentified = vec![table(published)]).remove(0);
        assert_eq!((found_table(true).1, found_table(false).1), (Level::Problem, Level::Advice));
        assert_eq!(found_table(true).2, "ALTER TABLE howdah.dead REPLICA IDENTITY FULL");
        let stuck = OwnedFacts { stuck_sequences: vec!["howdah.job_id".into()], ..OwnedFacts::default() };
        assert_eq!(found(|_, schema| schema.owned = stuck)[0].0, "sequences");
    }

    #[test]
    fn wrong_rights_are_found_by_role_with_the_statement_that_revokes_them() {
        let found = |rights: Vec<WrongRight>| found(|_, schema| schema.owned.rights = rights);
        let ours = found(vec![right("PUBLIC", false, false), right("PUBLIC", false, false)]);
        assert_eq!(ours, [("rights", Level::Problem, "howdah migrate".to_owned())]);
        let meant = found(vec![right("ann", true, true)]);
        assert_eq!((meant[0].1, &meant[0].2[..]), (Level::Advice, "REVOKE SELECT ON TABLE howdah.job FROM ann"));
        let two = found(vec![right("ann", true, true), right("ann", true, false), right("bob", true, true)]);
        assert_eq!((two.len(), two[0].1, two[1].1), (2, Level::Problem, Level::Advice));
        let many = found(vec![right("ann", true, true); 4]);
        assert!(many[0].2.starts_with("REVOKE ALL ON ALL TABLES IN SCHEMA howdah FROM ann; "), "{}", many[0].2);
    }
}
