//! Rights on functions and tables of the schema, and their owners. `server/engine/schema/api/rights.sql` defines the intended
//! rights and compares them with the actual ones.

use super::{StoreError, connection::Connection};

/// Returns the oids of all objects in the schema as an SQL array. A migration calls this before its changes, and passes
/// the array to `set` as `known`, so that `set` can tell new objects from old ones.
pub(super) async fn objects(connection: &mut Connection, schema: &str) -> Result<String, StoreError> {
    let sql = format!(
        "SELECT ARRAY(SELECT p.oid FROM pg_proc p WHERE p.pronamespace = to_regnamespace('{schema}')
                      UNION ALL SELECT c.oid FROM pg_class c WHERE c.relnamespace = to_regnamespace('{schema}')
                      UNION ALL SELECT n.oid FROM pg_namespace n WHERE n.oid = to_regnamespace('{schema}'))"
    );
    let rows = connection.texts(&sql).await?;
    Ok(rows.into_iter().flatten().flatten().next().unwrap_or_else(|| "{}".into()))
}

/// Corrects owners, and the rights of PUBLIC and of Howdah's roles. On new objects, which are not in `known`, corrects
/// the rights of every role, because default privileges may have granted them. Returns the number of changed objects.
pub(super) async fn set(connection: &mut Connection, schema: &str, known: &str) -> Result<u64, StoreError> {
    let sql = format!(
        "SELECT {schema}.set_rights(ARRAY(SELECT o.id FROM {schema}.own_objects() o WHERE o.id <> ALL ('{known}'::oid[])))"
    );
    let rows = connection.texts(&sql).await?;
    Ok(rows.into_iter().flatten().flatten().next().and_then(|changed| changed.parse().ok()).unwrap_or_default())
}

/// Rights in the schema that differ from the intended ones.
#[derive(Debug, Default)]
pub(super) struct Unintended {
    /// Whether a call of [`set`] would correct at least one of the unintended rights.
    pub(super) can_set: bool,
    /// Descriptions of the rights that [`set`] leaves: rights of other roles, and rights on objects that this login may
    /// not change.
    pub(super) left: Vec<String>,
}

/// Compares all rights with the intended ones.
pub(super) async fn unintended(connection: &mut Connection, schema: &str) -> Result<Unintended, StoreError> {
    let sql = format!(
        "SELECT bool_or(r.may_change AND NOT r.is_foreign),
                format('%s has other rights than Howdah gives, on %s of its functions and tables, such as %s',
                       r.role, count(DISTINCT r.id), (array_agg(r.privilege || ' on ' || r.called ORDER BY r.is_meant, r.called))[1])
         FROM {schema}.wrong_rights() r GROUP BY r.role ORDER BY r.role"
    );
    let mut found = Unintended::default();
    for role in connection.texts(&sql).await? {
        let [can_set, text] = <[_; 2]>::try_from(role).unwrap_or_default();
        found.can_set |= can_set.as_deref() == Some("t");
        found.left.extend(text);
    }
    Ok(found)
}
