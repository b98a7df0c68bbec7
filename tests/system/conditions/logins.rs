//! Tests conditions in which the server refuses connections: limits, a changed password, another root certificate, no
//! listener.

use std::{fs, os::unix::fs::PermissionsExt as _};

use howdah_core::config::Config;

use super::*;
use crate::{
    refusing::connections::{password_cluster, without_user},
    tls::{certificates, hand_over, start_with_tls},
};

/// Operations that fail because the broker cannot open a connection to the database.
const CALLS: &[&str] =
    &["enqueue", "enqueue with a key", "enqueue with a request key", "list", "cancel", "retry", "bulk"];

const BACKGROUND: &[&str] = &["claim", "schedule", "statistics"];

/// Operations whose error says that they may have taken effect, because an earlier attempt of the same call may have
/// been stored.
pub(super) const OUTCOMES: &[&str] = &["ack", "nack", "snooze", "release", "extend", "wait"];

/// Operations that start a program. The program fails at its first connection, and its error has the reason.
const STARTS: &[&str] = &["retention", "second broker", "doctor"];

pub(super) const FEW_CONNECTIONS: Condition = Condition {
    name: "A role with six connections",
    cause: "`ALTER ROLE … CONNECTION LIMIT 6`, the limit of a small hosted plan.",
    remedy: "Allow each broker its pool, one listener and one maintenance connection. A smaller `pool_size` needs fewer.",
    doctor: Doctor::FindsOrFails("role_connections", "too many connections"),
    probe: "enqueue",
    exceptions: &[Exception { operations: STARTS, reason: Reason::Either("too many connections") }],
};

#[tokio::test]
async fn a_role_with_six_connections_stops_nothing() {
    let database = database().await.empty("six", "").await;
    let role = format!("six_{}", std::process::id());
    let create = format!(
        "CREATE ROLE {role} LOGIN CONNECTION LIMIT 6;
         DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO {role}', current_database()); END $$"
    );
    database.sql(&create).await;
    let url = format!("{}&user={role}", without_user(&database.url));
    let arena = Arena::on(&database, |config| config.database_url = url).await;
    let allow = format!("ALTER ROLE {role} CONNECTION LIMIT 60");
    FEW_CONNECTIONS.hold(&arena, async || arena.broker.sql(&allow).await).await;
    arena.broker.stop().await;
    database
        .sql(&format!("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE usename = '{role}'"))
        .await;
    database.sql(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

pub(super) const PASSWORD: Condition = Condition {
    name: "A changed password",
    cause: "The role's password was rotated, and the broker's `passfile` still has the old one.",
    remedy: "Write the new password to the `passfile`, or to the file that has the connection string: brokers read it again without a restart.",
    doctor: Doctor::Fails("28P01"),
    probe: "enqueue",
    exceptions: &[
        Exception { operations: OUTCOMES, reason: Reason::Refused("it is unknown whether this took effect") },
        Exception { operations: CALLS, reason: Reason::Refused("SQLSTATE 28P01") },
        Exception { operations: BACKGROUND, reason: Reason::Waits("a login; `/readyz` names SQLSTATE 28P01") },
        Exception { operations: STARTS, reason: Reason::Refused("28P01") },
    ],
};

#[tokio::test]
async fn a_changed_password_stops_a_broker_until_its_file_has_the_new_one() {
    let (_cluster, database, directory) = password_cluster().await;
    let file = directory.path().join("passwords");
    let write = |password: &str| fs::write(&file, format!("*:*:*:guarded:{password}\n")).expect("write");
    write("first");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("chmod");
    let url = format!("{}&user=guarded&passfile={}", without_user(&database.url), file.display());
    let arena = Arena::on(&database, |config| config.database_url = url).await;
    arena.broker.sql("ALTER ROLE guarded PASSWORD 'second'").await;
    refused(&arena, "usename = 'guarded'", "28P01").await;
    PASSWORD.hold(&arena, async || write("second")).await;
}

pub(super) const CERTIFICATE: Condition = Condition {
    name: "Another root certificate",
    cause: "The server's certificate was issued anew by another authority, and the broker's `sslrootcert` still has the old one.",
    remedy: "Write the new root certificate to the file of `sslrootcert`: brokers read it again without a restart.",
    doctor: Doctor::Fails("certificate"),
    probe: "enqueue",
    exceptions: &[
        Exception { operations: OUTCOMES, reason: Reason::Refused("it is unknown whether this took effect") },
        Exception { operations: CALLS, reason: Reason::Refused("its certificate is not trusted") },
        Exception {
            operations: BACKGROUND,
            reason: Reason::Waits("a trusted certificate; the log and `howdah doctor` name the certificate"),
        },
        Exception { operations: STARTS, reason: Reason::Refused("certificate") },
    ],
};

#[tokio::test]
async fn a_new_root_certificate_stops_a_broker_until_its_root_file_is_replaced() {
    let directory = tempfile::Builder::new().prefix("howdah-tls").tempdir_in("/tmp").expect("directory");
    let next = tempfile::tempdir().expect("directory");
    certificates(directory.path());
    certificates(next.path());
    hand_over(directory.path());
    let Some((cluster, port)) = start_with_tls(directory.path()).await else { return };
    cluster.create_database("app").await.expect("database");
    let database = TestDatabase { url: cluster.url("app") };
    let roots = next.path().join("roots.pem");
    fs::copy(directory.path().join("ca.pem"), &roots).expect("copy");
    let url = format!("postgres://howdah@localhost:{port}/app?sslmode=verify-full&sslrootcert={}", roots.display());
    let arena = Arena::on(&database, |config| config.database_url = url).await;
    for name in ["server.pem", "server.key"] {
        fs::write(directory.path().join(name), fs::read(next.path().join(name)).expect("read")).expect("write");
    }
    arena.broker.sql("SELECT pg_reload_conf()").await;
    refused(&arena, "client_port > 0", "its certificate is not trusted").await;
    let new_root = fs::read(next.path().join("ca.pem")).expect("read");
    CERTIFICATE.hold(&arena, async || fs::write(&roots, &new_root).expect("write")).await;
}

pub(super) const NO_LISTENER: Condition = Condition {
    name: "LISTEN refused",
    cause: "The connection string for notifications leads to a pooler or a port where LISTEN is not possible.",
    remedy: "Set `listen_database_url` to the server itself. Until then brokers poll (`howdah_listening` is 0), and jobs start up to `poll_interval` later.",
    doctor: Doctor::Finds("listen"),
    probe: "claim",
    exceptions: &[],
};

#[tokio::test]
async fn a_broker_that_cannot_listen_does_everything_by_polling() {
    let nowhere = format!("postgres://howdah@{}/app?connect_timeout=1", unused_address());
    let arena = Arena::on(&database().await, |config: &mut Config| config.listen_database_url = Some(nowhere)).await;
    NO_LISTENER.hold(&arena, async || {}).await;
}

/// Ends these database sessions of the broker repeatedly, until an enqueue fails for this reason.
async fn refused(arena: &Arena, sessions: &str, reason: &str) {
    let end = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {sessions}");
    eventually("a refused login", async || {
        arena.broker.sql(&end).await;
        arena.broker.enqueue("plain").answer().await.is_err_and(|refused| refused.message().contains(reason))
    })
    .await;
}
