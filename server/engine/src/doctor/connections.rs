//! Checks that one more broker gets its connections, within the limits of the server, the database and the role.

use howdah_core::config::Config;

use super::Finding;
use crate::store::{ConnectionLimits, Limit, Store};

/// Returns a finding for each limit that leaves too few connections.
pub(super) fn check(limits: &ConnectionLimits, config: &Config) -> Vec<Finding> {
    let need = i64::from(Store::most_connections(config.pool_size));
    let role = &limits.role_name;
    let short = |Limit { most, open }: Limit| (most >= 0 && most - open < need).then_some((most - open, most));
    let found = |(free, most), of: &str| {
        format!("{free} of {most} connections{of} are free, and one more broker may need {need}")
    };
    let checked = [
        (
            short(limits.server),
            "connections",
            String::new(),
            "raise max_connections, or lower the pools of other programs or pool_size".to_owned(),
        ),
        (
            short(limits.database),
            "database_connections",
            " of the database (datconnlimit)".to_owned(),
            "ALTER DATABASE ... CONNECTION LIMIT to more, or lower pool_size".to_owned(),
        ),
        (
            short(limits.role),
            "role_connections",
            format!(" of role {role} (rolconnlimit)"),
            format!("ALTER ROLE {role} CONNECTION LIMIT to more, or lower pool_size"),
        ),
    ];
    let checked = checked.into_iter();
    checked.filter_map(|(short, name, of, change)| Some(Finding::advice(name, found(short?, &of), change))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_that_leaves_too_few_connections_is_found() {
        let config = Config::new("");
        let need = i64::from(Store::most_connections(config.pool_size));
        let plenty = Limit { most: -1, open: 1_000 };
        let limits = |server, database, role| ConnectionLimits { role_name: "howdah".into(), role, database, server };
        let found = |limits: ConnectionLimits| -> Vec<_> { check(&limits, &config).iter().map(|f| f.check).collect() };
        assert_eq!(found(limits(plenty, plenty, plenty)), [""; 0]);
        let (enough, short) = (Limit { most: need + 3, open: 3 }, Limit { most: need + 2, open: 3 });
        assert_eq!(found(limits(enough, enough, enough)), [""; 0]);
        assert_eq!(found(limits(short, short, short)), ["connections", "database_connections", "role_connections"]);
        let role = check(&limits(plenty, plenty, Limit { most: 6, open: 2 }), &config).remove(0);
        assert!(role.found.starts_with("4 of 6 connections of role howdah (rolconnlimit) are free"), "{}", role.found);
    }
}
