//! Tests that roles have the intended rights on the schema and no others, whatever a dump or default privileges have
//! done.

use howdah_cli::postgres::Binaries;

use super::*;

/// Query for rights of roles other than the owner on functions, tables, views, sequences and columns.
const RIGHTS: &str = "
    SELECT concat_ws(' ', o.name, o.part, a.privilege_type, coalesce(nullif(a.grantee, 0)::regrole::text, 'PUBLIC'))
    FROM (SELECT p.oid::regprocedure::text AS name, NULL AS part, p.proowner AS owner, coalesce(p.proacl, acldefault('f', p.proowner)) AS acl
          FROM pg_proc p WHERE p.pronamespace = 'howdah'::regnamespace
          UNION ALL SELECT c.oid::regclass::text, NULL, c.relowner, c.relacl FROM pg_class c WHERE c.relnamespace = 'howdah'::regnamespace
          UNION ALL SELECT c.oid::regclass::text, t.attname, c.relowner, t.attacl
          FROM pg_class c JOIN pg_attribute t ON t.attrelid = c.oid WHERE c.relnamespace = 'howdah'::regnamespace) o
    CROSS JOIN LATERAL aclexplode(o.acl) a
    WHERE a.grantee <> o.owner ORDER BY 1";

/// Returns the name of a role that only this test's database uses.
fn role(database: &TestDatabase, name: &str) -> String {
    let config: tokio_postgres::Config = database.url.parse().expect("a URL");
    format!("{name}_{}", config.get_dbname().expect("a database"))
}

/// Runs `howdah migrate` and returns its standard output.
async fn migrate(database: &TestDatabase, more: &[&str]) -> String {
    let (status, out, err) = run(&[&["migrate", "--database-url", &database.url], more].concat(), b"").await;
    assert!(status.success(), "{out}{err}");
    out
}

/// Returns the findings of `howdah doctor` about rights, each as level, finding and remedy.
async fn findings(database: &TestDatabase) -> Vec<[String; 3]> {
    let (_, out, _) = run(&["doctor", "--json", "--database-url", &database.url], b"").await;
    let all = out.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect(line));
    let fields =
        |finding: serde_json::Value| ["level", "found", "change"].map(|key| finding[key].as_str().unwrap().to_owned());
    all.filter(|finding| finding["check"] == "rights").map(fields).collect()
}

#[tokio::test]
async fn rights_are_set_on_everything_that_is_in_a_new_schema() {
    let database = database().await;
    later_partitions(&database).await;
    let unknown = "SELECT (SELECT count(*) FROM pg_proc p WHERE p.pronamespace = 'howdah'::regnamespace
                                                           AND p.oid NOT IN (SELECT id FROM howdah.own_objects()))
                   + (SELECT count(*) FROM pg_class c WHERE c.relnamespace = 'howdah'::regnamespace AND c.relkind NOT IN ('i', 'I', 'c', 't')
                                                        AND c.oid NOT IN (SELECT id FROM howdah.own_objects()))";
    assert_eq!(database.count(unknown).await, 0);
    assert_eq!(texts(&database, RIGHTS).await, [""; 0]);
}

#[tokio::test]
async fn a_dump_that_is_restored_without_rights_gets_them_back() {
    let dump = Binaries::find(None).expect("Postgres").program("pg_dump");
    if !dump.exists() {
        eprintln!("!!! {} is missing: restoring a dump without rights is NOT tested", dump.display());
        return;
    }
    let database = database().await;
    database.sql("SELECT howdah.create_roles()").await;
    let intended = texts(&database, RIGHTS).await;
    let output = tokio::process::Command::new(dump).args(["--no-acl", "--inserts", "--dbname", &database.url]).output();
    let output = output.await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // Leaves out lines that begin with a backslash, because pg_dump writes commands there that only psql understands.
    let text = String::from_utf8(output.stdout).unwrap();
    let sql: Vec<&str> = text.lines().filter(|line| !line.starts_with('\\')).collect();
    let restored = database.empty("restored", "").await;
    restored.sql(&sql.join("\n")).await;
    restored.sql("CREATE FUNCTION howdah.of_somebody_else() RETURNS int LANGUAGE sql RETURN 1").await;
    let theirs = "howdah.of_somebody_else() EXECUTE PUBLIC";
    assert!(texts(&restored, RIGHTS).await.contains(&"howdah.cancel(bigint) EXECUTE PUBLIC".to_owned()));
    let found = findings(&restored).await;
    assert_eq!((found.len(), &found[0][0][..], &found[0][2][..]), (1, "problem", "howdah migrate"), "{found:?}");
    assert!(found[0][1].starts_with("PUBLIC has other rights than Howdah gives: "), "{found:?}");

    let out = migrate(&restored, &[]).await;
    assert!(out.contains("set rights or owners of "), "{out}");
    assert_eq!(texts(&restored, RIGHTS).await, [theirs]);
    migrate(&restored, &["--roles"]).await;
    let mut all = intended.clone();
    all.push(theirs.to_owned());
    all.sort_unstable();
    assert_eq!(texts(&restored, RIGHTS).await, all);
    let definers = "SELECT count(*) FROM pg_proc p WHERE p.pronamespace = 'howdah'::regnamespace AND p.prosecdef
                    AND has_function_privilege('howdah_reader', p.oid, 'EXECUTE')";
    assert_eq!(restored.count(definers).await, 0);
    assert_eq!(findings(&restored).await, [[""; 3]; 0]);
    assert!(
        !migrate(&restored, &[]).await.contains("set rights"),
        "a second migration has nothing to set, but set rights"
    );
}

#[tokio::test]
async fn rights_and_owners_that_were_changed_are_set_again() {
    let database = database().await;
    database.sql("SELECT howdah.create_roles()").await;
    let intended = texts(&database, RIGHTS).await;
    let owner = role(&database, "owner");
    database
        .sql(&format!(
            "CREATE ROLE {owner};
             GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA howdah TO howdah_reader, PUBLIC;
             GRANT ALL ON ALL TABLES IN SCHEMA howdah TO howdah_reader;
             REVOKE EXECUTE ON FUNCTION howdah.cancel(bigint) FROM howdah_producer;
             ALTER FUNCTION howdah.retry_now(bigint) OWNER TO {owner};
             ALTER TABLE howdah.dead OWNER TO {owner}"
        ))
        .await;
    migrate(&database, &[]).await;
    assert_eq!(texts(&database, RIGHTS).await, intended);
    let owners = "SELECT (SELECT count(DISTINCT proowner) FROM pg_proc WHERE pronamespace = 'howdah'::regnamespace)
                  * (SELECT count(DISTINCT relowner) FROM pg_class WHERE relnamespace = 'howdah'::regnamespace)";
    assert_eq!(database.count(owners).await, 1);
    database.sql(&format!("DROP ROLE {owner}")).await;
}

#[tokio::test]
async fn default_privileges_give_no_rights_on_objects_of_howdah() {
    let database = database().await.empty("defaults", "").await;
    let stranger = role(&database, "report");
    database
        .sql(&format!(
            "CREATE ROLE {stranger};
             ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO {stranger}, PUBLIC;
             ALTER DEFAULT PRIVILEGES GRANT ALL ON SEQUENCES TO {stranger}, PUBLIC;
             ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO {stranger};
             ALTER DEFAULT PRIVILEGES GRANT ALL ON SCHEMAS TO {stranger}, PUBLIC"
        ))
        .await;
    TestBroker::on(&database).await.stop().await;
    later_partitions(&database).await;
    assert_eq!(texts(&database, RIGHTS).await, [""; 0]);
    let may_create = format!("SELECT has_schema_privilege('{stranger}', 'howdah', 'CREATE')::integer::bigint");
    assert_eq!(database.count(&may_create).await, 0);
    // Simulates a later release that adds a function, and an operator who grants a right on another function on purpose.
    database
        .sql(&format!(
            "DROP FUNCTION howdah.extend(bigint, bigint, interval);
             GRANT EXECUTE ON FUNCTION howdah.cancel(bigint) TO {stranger};
             UPDATE howdah.schema_part SET hash = 'of another release' WHERE hash IS NOT NULL"
        ))
        .await;
    migrate(&database, &[]).await;
    assert_eq!(texts(&database, RIGHTS).await, [format!("howdah.cancel(bigint) EXECUTE {stranger}")]);
    database.sql(&format!("DROP OWNED BY {stranger}; DROP ROLE {stranger}")).await;
}

#[tokio::test]
async fn rights_of_other_roles_are_named_with_the_statements_that_revoke_them() {
    let database = database().await;
    let stranger = role(&database, "stranger");
    database
        .sql(&format!(
            "CREATE ROLE {stranger}; GRANT SELECT ON howdah.secret TO {stranger}; GRANT UPDATE (payload) ON howdah.ready TO {stranger}"
        ))
        .await;
    let out = migrate(&database, &[]).await;
    let expected = format!("{stranger} has other rights than Howdah gives, on 2 of its functions and tables");
    assert!(out.contains(&expected), "{out}");
    let found = findings(&database).await;
    assert_eq!((found.len(), &found[0][0][..]), (1, "problem"), "{found:?}");
    assert!(found[0][1].contains(&stranger) && found[0][1].contains("howdah.secret"), "{found:?}");
    database.sql(&found[0][2]).await;
    // Roles of Howdah may read `howdah.job`, so an operator may have granted this right on purpose: the finding is only advice.
    database.sql(&format!("GRANT SELECT ON howdah.job TO {stranger}")).await;
    let found = findings(&database).await;
    assert_eq!((found.len(), &found[0][0][..]), (1, "advice"), "{found:?}");
    database.sql(&found[0][2]).await;
    // Grants so many rights that a remedy with one statement per right would be too long.
    let all = format!(
        "GRANT ALL ON ALL TABLES IN SCHEMA howdah TO {stranger}; GRANT ALL ON ALL FUNCTIONS IN SCHEMA howdah TO {stranger};
         GRANT ALL ON ALL SEQUENCES IN SCHEMA howdah TO {stranger}"
    );
    database.sql(&all).await;
    let found = findings(&database).await;
    database.sql(&found[0][2]).await;
    assert_eq!(findings(&database).await, [[""; 3]; 0]);
    database.sql(&format!("DROP ROLE {stranger}")).await;
}
