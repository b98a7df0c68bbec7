//! Tests TLS from brokers and commands to Postgres, according to `sslmode`.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, time::Duration};

use howdah_cli::postgres::Cluster;
use howdah_core::config::Config;
use howdah_engine::store::{Store, StoreError};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use tokio_postgres::NoTls;

use crate::support::*;

/// Writes a certificate authority, and a certificate that is valid only for `localhost`.
pub(crate) fn certificates(directory: &Path) {
    let authority_key = KeyPair::generate().expect("key");
    let mut authority = CertificateParams::new(Vec::new()).expect("parameters");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_cert = authority.self_signed(&authority_key).expect("authority");
    let key = KeyPair::generate().expect("key");
    let issuer = Issuer::new(authority, authority_key);
    let cert = CertificateParams::new(vec!["localhost".into()]).expect("parameters").signed_by(&key, &issuer);
    let write = |name: &str, text: String| fs::write(directory.join(name), text).expect(name);
    write("ca.pem", authority_cert.pem());
    write("server.pem", cert.expect("certificate").pem());
    write("server.key", key.serialize_pem());
    // Makes Postgres refuse TCP connections without TLS. Local sockets need no TLS.
    let hba =
        "local all all trust\nhostssl all guarded 127.0.0.1/32 scram-sha-256\nhostssl all all 127.0.0.1/32 trust\n";
    write("hba.conf", hba.into());
}

/// Gives the files to the user that runs Postgres, if this is not the current user.
pub(crate) fn hand_over(directory: &Path) {
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).expect("mode");
    let id = std::process::Command::new("id").args(["-u", "postgres"]).output().expect("id");
    let postgres: Option<u32> = String::from_utf8_lossy(&id.stdout).trim().parse().ok();
    for entry in fs::read_dir(directory).expect("directory") {
        let path = entry.expect("entry").path();
        let mode = if path.extension().is_some_and(|e| e == "key") { 0o600 } else { 0o644 };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("mode");
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, postgres, None).expect("chown");
        }
    }
}

/// Starts a Postgres with these certificates at `127.0.0.1`. Returns `None` if this Postgres was built without TLS.
pub(crate) async fn start_with_tls(directory: &Path) -> Option<(Cluster, u16)> {
    let file = |name: &str| directory.join(name).display().to_string();
    let mut attempts = 0;
    loop {
        let port = unused_address().port();
        let mut config = cluster_config();
        config.settings.extend([
            ("listen_addresses".to_owned(), "127.0.0.1".to_owned()),
            ("port".to_owned(), port.to_string()),
            ("ssl".to_owned(), "on".to_owned()),
            ("ssl_cert_file".to_owned(), file("server.pem")),
            ("ssl_key_file".to_owned(), file("server.key")),
            ("hba_file".to_owned(), file("hba.conf")),
        ]);
        attempts += 1;
        match Cluster::start(config).await {
            Err(error) if error.to_string().contains("SSL is not supported by this build") => return None,
            // Another program may have taken the port meanwhile, so try another port.
            Err(_) if attempts < 5 => {}
            started => return Some((started.expect("Postgres"), port)),
        }
    }
}

/// Connects within the given time. Tests give a short time if the connection must fail.
async fn try_connect(host: &str, port: u16, options: &str, within: Duration) -> Result<(), StoreError> {
    let mut config = Config::new(format!("postgres://howdah@{host}:{port}/postgres?{options}"));
    config.database_timeout = within;
    Store::new(&config).expect("a good URL").ping().await
}

#[tokio::test]
async fn sslmode_decides_which_certificates_of_the_server_are_accepted() {
    let directory = tempfile::Builder::new().prefix("howdah-tls").tempdir_in("/tmp").expect("directory");
    let other = tempfile::tempdir().expect("directory");
    certificates(directory.path());
    certificates(other.path());
    hand_over(directory.path());
    let Some((cluster, port)) = start_with_tls(directory.path()).await else { return };
    let file = |name: &str| directory.path().join(name).display().to_string();
    let known = format!("sslrootcert={}", file("ca.pem"));
    let unknown = format!("sslrootcert={}", other.path().join("ca.pem").display());
    for (host, options, good) in [
        ("localhost", "sslmode=disable".to_owned(), false),
        ("localhost", "sslmode=prefer".to_owned(), true),
        ("127.0.0.1", "sslmode=require".to_owned(), true),
        ("127.0.0.1", format!("sslmode=require&{unknown}"), false),
        ("127.0.0.1", format!("sslmode=verify-ca&{known}"), true),
        ("127.0.0.1", format!("sslmode=verify-ca&{unknown}"), false),
        ("localhost", format!("sslmode=verify-full&{known}"), true),
        ("127.0.0.1", format!("sslmode=verify-full&{known}"), false),
    ] {
        let within = if good { PATIENCE } else { secs(5) };
        let result = try_connect(host, port, &options, within).await;
        assert_eq!(result.is_ok(), good, "{host} {options}: {result:?}");
    }
    // `sslnegotiation=direct` needs Postgres 17.
    let version = TestDatabase { url: cluster.url("postgres") }
        .count("SELECT current_setting('server_version_num')::bigint")
        .await;
    let direct = format!("sslmode=verify-full&{known}&sslnegotiation=direct");
    let within = if version >= 170_000 { PATIENCE } else { secs(5) };
    let result = try_connect("localhost", port, &direct, within).await;
    assert_eq!(result.is_ok(), version >= 170_000, "{result:?}");
    sql_by_tls(&cluster, &format!("localhost:{port}/postgres?sslmode=verify-full&{known}")).await;
}

/// Runs the SQL worker, which implements the Postgres protocol, on a connection with TLS and a password.
async fn sql_by_tls(cluster: &Cluster, address: &str) {
    let (client, connection) = tokio_postgres::connect(&cluster.url("postgres"), NoTls).await.expect("connect");
    tokio::spawn(connection);
    client.batch_execute("CREATE ROLE guarded LOGIN PASSWORD 's3cret'").await.expect("role");
    let broker = TestBroker::on(&database().await).await;
    let jobs = broker.client().await;
    let sql = "SELECT current_user AS me, ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    let wait = howdah_client::NewJob::new("sql").payload("SELECT pg_sleep('infinity')");
    let wait = wait.timeout(millis(300)).max_attempts(1);
    let jobs_to_do =
        [howdah_client::NewJob::new("sql").payload(sql), wait, howdah_client::NewJob::new("sql").payload(sql)];
    let ids: Vec<i64> = jobs.enqueue_all(jobs_to_do).await.expect("enqueue").iter().map(|job| job.id).collect();
    let work = async |password: &str, more: &[&str]| {
        let dsn = format!("postgres://guarded:{password}@{address}");
        let args = ["work", "--server", &broker.grpc, "--sql", &dsn];
        let (status, _, errors) = run(&[&args, more].concat(), b"").await;
        assert!(status.success() && !errors.contains(password), "{errors}");
        errors
    };
    // Uses --drain instead of --max-jobs, because the job that waits may time out before the worker gets it.
    work("s3cret", &["--drain"]).await;
    for id in [ids[0], ids[2]] {
        assert_eq!(&jobs.get_job(id).await.expect("get").expect("the job").result[..], b"me\tssl\nguarded\tt");
    }
    let id = jobs.enqueue(howdah_client::NewJob::new("sql").payload("SELECT 1")).await.expect("enqueue").id;
    let errors = work("an0ther", &["--max-jobs", "1"]).await;
    assert!(errors.contains("password authentication failed"), "{errors}");
    assert_eq!(jobs.get_job(id).await.expect("get").expect("the job").attempt, 0);
}
