//! Tests the SQL interface with node-postgres.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use super::*;

#[tokio::test]
async fn the_node_postgres_example_of_the_docs_runs() {
    if !crate::support::has_language("node", "HOWDAH_SKIP_NODE") {
        return;
    }
    let modules = tokio::task::spawn_blocking(node_postgres).await.expect("Node.js with node-postgres");
    let database = database().await;
    let client = database.connect().await;
    client.batch_execute("CREATE TABLE orders (id bigint PRIMARY KEY, item text)").await.unwrap();
    let example = |code: &str| node(&modules, code, &database.url);

    // The error names the key, and the application's order is rolled back.
    let code = documented().replace("\"order-7\"", "\"k\".repeat(300)");
    let output = example(&code);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && stderr.starts_with("key is wrong: key "), "{stderr}");
    assert_eq!(database.count("SELECT count(*) FROM orders").await, 0);

    let output = example(&documented());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let id = one::<i64>(&client, "SELECT id FROM howdah.job WHERE key = 'order-7' AND task_type = 'order.ship'").await;
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), format!("job {id}"));
    let payload =
        format!("SELECT convert_from(payload, 'UTF8')::jsonb = '{{\"id\": 7}}' FROM howdah.ready WHERE id = {id}");
    assert!(one::<bool>(&client, &payload).await);
    assert_eq!(database.count("SELECT count(*) FROM orders WHERE id = 7").await, 1);
}

/// Returns the JavaScript code of docs/reference/sql.md.
fn documented() -> String {
    let docs = fs::read_to_string(crate::support::root().join("docs/reference/sql.md")).unwrap();
    let code = docs.split("```js\n").nth(1).expect("an example in JavaScript");
    code.split("```").next().unwrap().to_owned()
}

/// Runs an example with a node-postgres connection pool.
fn node(modules: &Path, code: &str, url: &str) -> Output {
    let script = format!(
        "const {{ Pool }} = require('pg');
         const pool = new Pool({{ connectionString: process.argv[1] }});
         (async () => {{ {code} }})().then(() => pool.end(), () => process.exit(1));"
    );
    Command::new("node").args(["-e", &script, url]).current_dir(modules).output().expect("node")
}

/// Returns a directory with node-postgres below `target/` that is created once.
fn node_postgres() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(target).expect("target/tmp");
    let lock = fs::File::create(target.join("node-postgres.lock")).expect("a lock file");
    lock.lock().expect("the lock");
    let directory = target.join("node-postgres");
    if directory.join("installed").exists() {
        return directory;
    }
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).expect("target/tmp/node-postgres");
    let install = ["install", "--silent", "--no-audit", "--no-fund", "--no-package-lock", "--prefix", ".", "pg@8.23.1"];
    let help = "Node.js with npm; HOWDAH_SKIP_NODE=1 leaves this test out";
    let output = Command::new("npm").args(install).current_dir(&directory).output().expect(help);
    assert!(output.status.success(), "{}\n{help}", String::from_utf8_lossy(&output.stderr));
    fs::write(directory.join("installed"), "").expect("installed");
    directory
}
