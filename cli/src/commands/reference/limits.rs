//! Tables of the limits of a broker with the default configuration.

use std::collections::BTreeSet;

use howdah_server::{
    config::Config,
    limits::{GROUPS, Limit, Set},
};

use super::{code, grouped, markdown};

/// Returns a table of the limits of a group.
pub(super) fn table(words: &[&str]) -> String {
    let group = GROUPS.into_iter().find(|(name, _)| [*name] == words);
    let (_, limits) = group.unwrap_or_else(|| panic!("no limits {words:?}"));
    let row = |row: Limit| [row.subject, grouped(&row.limit), set(row.set)];
    markdown(["what", "limit", "key"], limits(&Config::new("")).into_iter().map(row))
}

/// Returns the names of all groups.
pub(super) fn all() -> BTreeSet<String> {
    GROUPS.into_iter().map(|(name, _)| name.to_owned()).collect()
}

fn set(set: Set) -> String {
    let keys = |keys: &[&str]| keys.iter().map(code).collect::<Vec<_>>().join(", ");
    match set {
        Set::Fixed => String::new(),
        Set::Broker(of) => keys(of),
        Set::Default(of) => format!("{} (the default{})", keys(of), if of.len() > 1 { "s" } else { "" }),
        Set::Cluster(of) => format!("{} of the cluster", keys(of)),
    }
}
