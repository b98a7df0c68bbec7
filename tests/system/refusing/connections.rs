//! Tests passwords that change, limits on connections, and connection strings that cannot work.

use std::os::unix::fs::PermissionsExt as _;

use howdah_client::NewJob;
use howdah_proto::v1::JobState;

use super::*;

/// Starts a Postgres with a database `app`, in which the role `guarded` needs a password. The password is `first`.
pub(crate) async fn password_cluster() -> (Cluster, TestDatabase, tempfile::TempDir) {
    let directory = open_directory();
    let hba = directory.path().join("hba.conf");
    std::fs::write(&hba, "local all guarded scram-sha-256\nlocal all all trust\n").expect("write");
    std::fs::set_permissions(&hba, std::fs::Permissions::from_mode(0o644)).expect("chmod");
    let mut config = cluster_config();
    config.settings.push(("hba_file".into(), hba.display().to_string()));
    let cluster = Cluster::start(config).await.expect("Postgres");
    cluster.create_database("app").await.expect("database");
    let database = TestDatabase { url: cluster.url("app") };
    database.sql("CREATE ROLE guarded LOGIN SUPERUSER PASSWORD 'first'").await;
    (cluster, database, directory)
}

#[tokio::test]
async fn a_password_that_is_changed_in_its_file_is_read_again() {
    let (cluster, database, directory) = password_cluster().await;
    let file = directory.path().join("url");
    let url = |password: &str| format!("{}&user=guarded&password={password}", without_user(&database.url));
    let broker = TestBroker::on_with(&database, |config| {
        config.database_url = url("first");
        config.url_files.push(url_file(&file, &url("first")));
    })
    .await;
    broker.enqueue("t").outcome().await;
    let change = "ALTER ROLE guarded PASSWORD 'second';
                  SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'guarded'";
    TestDatabase { url: cluster.url("app") }.sql(change).await;
    eventually("a refused login", async || {
        broker.enqueue("t").answer().await.is_err_and(|refused| refused.message().contains("SQLSTATE 28P01"))
    })
    .await;
    let (ready, body) = readyz(&broker).await;
    assert!(!ready && body.contains("28P01"), "{body}");
    // A file with an invalid URL does not replace the old URL.
    std::fs::write(&file, "postgres://").expect("write");
    std::fs::write(&file, url("second")).expect("write");
    eventually("an accepted enqueue", async || broker.enqueue("t").answer().await.is_ok()).await;
}

#[tokio::test]
async fn a_worker_of_sql_waits_for_a_login_without_using_up_attempts() {
    let (_cluster, database, directory) = password_cluster().await;
    let broker = TestBroker::start().await;
    let client = broker.client().await;
    let file = directory.path().join("url");
    let url = |password: &str| format!("{}&user=guarded&password={password}", without_user(&database.url));
    std::fs::write(&file, url("wrong")).expect("write");
    let id = client.enqueue(NewJob::new("sql").payload("SELECT 7").max_attempts(1)).await.expect("enqueue").id;
    let from = format!("file:{}", file.display());
    let worker = Program::noted(&["work", "--server", &broker.grpc, "--sql", &from], &[]);
    let snoozed = "SELECT count(*) = 1 FROM howdah.scheduled WHERE attempt = 0";
    broker.until("a job that waits", snoozed).await;
    assert!(
        worker.last_words().contains("SQLSTATE 28P01") && !worker.last_words().contains("password=wrong"),
        "{}",
        worker.last_words()
    );
    std::fs::write(&file, url("first")).expect("write");
    let done = async || client.get_job(id).await.expect("get").is_some_and(|job| job.state() == JobState::Succeeded);
    eventually("a job that is done", done).await;
    assert_eq!(client.get_job(id).await.expect("get").expect("the job").attempt, 1);
}

#[tokio::test]
async fn the_password_is_read_from_a_password_file_of_libpq() {
    let (_cluster, database, directory) = password_cluster().await;
    let file = directory.path().join("pgpass");
    std::fs::write(&file, "*:*:*:guarded:first\n").expect("write");
    let url = format!("{}&user=guarded&passfile={}", without_user(&database.url), file.display());
    let open = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(&file, open).expect("chmod");
    let (status, _, err) = run(&["doctor", "--database-url", &url], b"").await;
    assert!(status.code() == Some(2) && err.contains("chmod 600"), "{err}");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("chmod");
    let broker = TestBroker::on_with(&database, |config| config.database_url = url).await;
    broker.enqueue("t").outcome().await;
}

#[tokio::test]
async fn a_start_with_a_connection_string_that_cannot_work_ends_at_once_and_names_the_problem() {
    let (_cluster, database, directory) = password_cluster().await;
    let missing = directory.path().join("missing.pem");
    let wrong = [
        (format!("{}&user=guarded&password=wrong", without_user(&database.url)), "28P01"),
        (database.url.replacen("app", "nowhere", 1), "3D000"),
        (format!("{}&sslmode=verify-full&sslrootcert={}", database.url, missing.display()), "missing.pem"),
        (format!("{}&requirepeer=postgres", database.url), "requirepeer"),
    ];
    for (url, problem) in wrong {
        // The timeout is so long that waiting for it would fail the test. The program must fail at once.
        let args = ["serve", "--database-url", &url, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"];
        let (status, _, err) = run(&[&args[..], &["--set", "database_timeout=10m"]].concat(), b"").await;
        assert!(status.code() == Some(2) && err.contains(problem), "{problem}: {status} {err}");
        assert!(!err.contains("wrong"), "{err}");
    }
}

#[tokio::test]
async fn a_broker_works_with_the_few_connections_that_its_role_may_have() {
    let database = database().await;
    let empty = database.empty("few", "").await;
    let role = format!("few_{}", std::process::id());
    let dbname = empty.url.clone();
    empty
        .sql(&format!(
            "CREATE ROLE {role} LOGIN CONNECTION LIMIT 3;
             DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO {role}', current_database()); END $$"
        ))
        .await;
    let url = format!("{}&user={role}", without_user(&dbname));
    let broker = TestBroker::on_with(&TestDatabase { url: dbname }, |config| config.database_url = url.clone()).await;
    let mut worker = broker.worker("t").window(200).await;
    let calls = (0..200).map(|_| broker.enqueue("t").answer());
    for answer in futures::future::join_all(calls).await {
        answer.expect("stored");
    }
    let jobs = worker.take(200).await;
    worker.settle(jobs.iter().map(ack).collect()).await;
    let list = ListJobsRequest { task_type: "t".into(), page_size: 10, ..ListJobsRequest::default() };
    with_timeout("a list", broker.jobs().list_jobs(list)).await.expect("a list");
    assert_eq!(readyz(&broker).await, (true, stores::all_ready()));
    let limit = empty.count(&format!("SELECT count(*) FROM pg_stat_activity WHERE usename = '{role}'")).await;
    assert!(limit <= 3, "{limit}");
    broker.stop().await;
    // Ends the connections of the stopped broker, which otherwise stay open until the runtime of the test process ends.
    empty.sql(&format!("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE usename = '{role}'")).await;
    let (_, found, err) = run(&["doctor", "--database-url", &url, "--json"], b"").await;
    assert!(found.contains("role_connections") && found.contains("rolconnlimit"), "{found} {err}");
    empty.sql(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

/// Returns the URL without its user. The URL ends with an option, so that callers can append further options.
pub(crate) fn without_user(url: &str) -> String {
    let user = url.split("://").nth(1).and_then(|rest| rest.split_once('@')).map(|(user, _)| format!("{user}@"));
    let url = url.replacen(&user.unwrap_or_default(), "", 1);
    if url.contains('?') { url } else { format!("{url}?application_name=howdah") }
}
