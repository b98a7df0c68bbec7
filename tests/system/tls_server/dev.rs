//! Tests `howdah dev --tls` and `--auth token`: the printed output is all that a client needs.

use std::os::unix::fs::PermissionsExt as _;

use super::*;

#[tokio::test]
async fn howdah_dev_with_tls_prints_how_to_connect() {
    let args = ["dev", "--tls", "--ephemeral", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"];
    let mut dev = Program::start(&args);
    let ready = dev.line().await;
    let word = |name: &str| ready.split_whitespace().find_map(|word| word.strip_prefix(name)).expect(&ready).to_owned();
    let (grpc, http) = (word("grpc="), word("http="));
    let howdah = dev.line().await;
    let words: Vec<&str> = howdah.split_whitespace().collect();
    let ["howdah", "--server", server, "--tls-ca", ca, "types"] = words[..] else { panic!("{howdah}") };
    assert_eq!(server, format!("https://{grpc}"));
    let (status, _, errors) = run(&words[1..], b"").await;
    assert!(status.success(), "{errors}");
    assert_eq!(dev.line().await, format!("grpcurl -cacert {ca} {grpc} list"));
    let curl = dev.line().await;
    assert_eq!(curl, format!("curl --cacert {ca} https://{http}/readyz"));
    let output = tokio::process::Command::new("curl").args(curl.split(' ').skip(1)).arg("--silent").output().await;
    assert_eq!(output.expect("curl").stdout, b"ready\n");
    let key = std::path::Path::new(ca).with_file_name("server.key");
    assert_eq!(key.metadata().expect("the key").permissions().mode() & 0o777, 0o600);
    dev.signal(rustix::process::Signal::TERM);
    assert!(dev.ended().await.success());
    assert!(!std::path::Path::new(ca).exists(), "the temporary certificates were not deleted");
}

#[tokio::test]
async fn howdah_dev_with_tls_and_tokens_prints_how_to_connect_and_the_token_may_do_everything() {
    let args = ["dev", "--tls", "--auth", "token", "--ephemeral", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"];
    let mut dev = Program::start(&args);
    dev.line().await;
    let howdah = dev.line().await;
    let words: Vec<&str> = howdah.split_whitespace().collect();
    let ["howdah", "--server", server, "--tls-ca", ca, "--token-file", file, "types"] = words[..] else {
        panic!("{howdah}")
    };
    let access = &words[1..words.len() - 1];
    for command in [&["types"][..], &["enqueue", "t", "x"], &["token", "create", "shop", "--scope", "enqueue:t"]] {
        let (status, _, errors) = run(&[access, command].concat(), b"").await;
        assert!(status.success(), "{command:?}: {errors}");
    }
    let (status, _, errors) = run(&["--server", server, "--tls-ca", ca, "types"], b"").await;
    assert!(!status.success() && errors.contains("token"), "{errors}");
    let grpcurl = dev.line().await;
    assert!(grpcurl.contains(&format!("-H \"authorization: Bearer $(cat {file})\"")), "{grpcurl}");
    let mode = std::path::Path::new(file).metadata().expect("the token").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    dev.signal(rustix::process::Signal::TERM);
    assert!(dev.ended().await.success());
    assert!(!std::path::Path::new(file).exists(), "the temporary token was not deleted");
}
