//! Tests jobs over TLS, and the errors of clients without TLS or with wrong options.

use std::sync::Arc;

use howdah_client::{CancellationToken, Job, JobError, NewJob};
use std::sync::Mutex;

use super::*;

#[tokio::test]
async fn a_job_goes_through_over_tls_for_clients_the_command_line_and_http() {
    let authority = Authority::new("own");
    let broker = broker_with(&authority.broker("server"), |config| config.http_enqueue = true).await;
    let client = connect(&broker, trust(&authority)).await.expect("connect");
    client.enqueue(NewJob::new("greet").payload("by the client")).await.expect("enqueue");
    let (server, ca) = (https(&broker), authority.ca().display().to_string());
    let args = ["enqueue", "greet", "by the command line", "--server", &server, "--tls-ca", &ca];
    let (status, _, errors) = run(&args, b"").await;
    assert!(status.success(), "{errors}");
    let http = broker.http.replace("http://", "https://");
    let post = ["--cacert", &ca, "--fail-with-body", "--silent", "-d", "by curl"];
    let curl = tokio::process::Command::new("curl").args(post).arg(format!("{http}/v1/jobs/greet")).output().await;
    assert!(curl.as_ref().expect("curl").status.success(), "{curl:?}");
    let (seen, done) = (Arc::new(Mutex::new(Vec::new())), CancellationToken::new());
    let (all, last) = (seen.clone(), done.clone());
    let handler = move |job: Job| {
        let (all, last) = (all.clone(), last.clone());
        async move {
            all.lock().unwrap().push(String::from_utf8_lossy(&job.payload).into_owned());
            if all.lock().unwrap().len() == 3 {
                last.cancel();
            }
            Ok::<_, JobError>(())
        }
    };
    let worker = client.worker().handle("greet", handler).build();
    with_timeout("three jobs", worker.run_until(done.cancelled_owned())).await.expect("a good end");
    seen.lock().unwrap().sort();
    assert_eq!(*seen.lock().unwrap(), ["by curl", "by the client", "by the command line"]);
    broker.stop().await;
}

/// Runs a command that cannot connect, and returns its error.
async fn refused(server: &str, more: &[&str]) -> String {
    let args = [&["types", "--server", server], more].concat();
    let (status, _, errors) = run(&args, b"").await;
    assert_eq!(status.code(), Some(69), "{errors}");
    errors.trim_end().to_owned()
}

#[tokio::test]
async fn commands_name_the_address_that_they_cannot_reach_and_say_what_to_do() {
    let (authority, other) = (Authority::new("own"), Authority::new("other"));
    let broker = broker_with(&authority.broker("server"), |_| {}).await;
    let (server, plain) = (https(&broker), TestBroker::on(&broker.database).await);
    let ca = other.ca().display().to_string();
    let untrusted = format!(
        "howdah: cannot reach {server}: the broker's certificate is not trusted: no authority that this client knows has \
         signed it; give the file of its authority with --tls-ca or HOWDAH_TLS_CA"
    );
    assert_eq!(refused(&server, &[]).await, untrusted);
    assert_eq!(refused(&server, &["--tls-ca", &ca]).await, untrusted);
    let set = "set the address with --server or HOWDAH_SERVER";
    let without = &broker.grpc;
    assert_eq!(refused(without, &[]).await, format!("howdah: {without}: this port needs TLS: use https://; {set}"));
    let with = https(&plain);
    assert_eq!(
        refused(&with, &[]).await,
        format!("howdah: cannot reach {with}: this port does not speak TLS: use http://; {set}")
    );
    let nobody = refused("http://127.0.0.1:1", &[]).await;
    assert!(nobody.starts_with("howdah: cannot reach http://127.0.0.1:1: "), "{nobody}");
}

#[tokio::test]
async fn commands_refuse_unusable_tls_files_and_name_the_flag() {
    let authority = Authority::new("own");
    let (files, missing) = (authority.client("urn:client"), "/no/such.pem");
    let cases = [
        (vec!["--tls-ca", missing], "howdah: --tls-ca /no/such.pem: cannot be read: No such file"),
        (vec!["--tls-ca", files.key()], "-----BEGIN CERTIFICATE-----; it must be PEM"),
        (vec!["--tls-cert", files.cert()], "howdah: --tls-cert and --tls-key go together"),
        (vec!["--tls-cert", files.cert(), "--tls-key", files.cert()], "holds no -----BEGIN PRIVATE KEY-----"),
    ];
    for (flags, expected) in cases {
        let (status, _, errors) = run(&[&["types", "--server", "https://localhost:1"], &flags[..]].concat(), b"").await;
        assert!(status.code() == Some(2) && errors.contains(expected), "{flags:?}: {errors}");
    }
}
